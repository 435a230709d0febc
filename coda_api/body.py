"""Reads the straight line of a unit into values: statements, names, numbers, operators, and calls of words.

What words mean for dims is the business of the subclasses, one a kind of unit: `epilogue` for kernels, `finishing` for
finishers, `arranging` for preparations.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Form, Kind, Type, TypeKind, Value
from coda_synth.coda_api.rules import Broken, Report, did_you_mean, nearest, shown
from coda_synth.coda_api.syntax import Number, UnitText, check_name, dim_of, fold, number
from coda_synth.coda_api.words import CONSTANTS, DTYPES, HABITS, LOOKUP, NAMES, WORDS, Place, Word

MAX_OPERATIONS_DEEP = 150

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitAnd: "and", ast.BitOr: "or"}
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_KINDS = {"float": Kind.FLOAT, "int": Kind.INT, "bool": Kind.BOOL}
_MODULES = ("torch", "tl", "triton", "math", "np", "numpy", "F")
_FORBIDDEN: dict[type[ast.AST], str] = {
    ast.Attribute: "values have no attributes",
    ast.Subscript: "values are not indexed; take columns with even, odd, low and high",
    ast.IfExp: "there are no branches; write where(condition, a, b)",
    ast.Lambda: "there are no functions inside a unit",
    ast.ListComp: "there are no comprehensions",
    ast.GeneratorExp: "there are no comprehensions",
    ast.JoinedStr: "there are no strings to format",
    ast.NamedExpr: "assign in a line of its own",
    ast.Dict: "only the return holds a dict",
}
_STATEMENTS: dict[type[ast.AST], str] = {
    ast.For: "there are no loops; the kernel's mainloop is the gemm, and words work on whole tiles",
    ast.While: "there are no loops; the kernel's mainloop is the gemm, and words work on whole tiles",
    ast.If: "there are no branches; write where(condition, a, b)",
    ast.Import: "nothing is imported: the words are all there is",
    ast.ImportFrom: "nothing is imported: the words are all there is",
    ast.FunctionDef: "units do not nest; write it at top level",
    ast.AnnAssign: "only parameters have types; write NAME = expression",
    ast.Pass: "a unit does something and returns it",
}

T = TypeVar("T")


def unknown(node: ast.AST | None = None) -> Value:
    """The value of an expression that had an error."""
    return Value("unknown", form=Form.UNKNOWN, line=getattr(node, "lineno", 0))


def is_unknown(values: Iterable[Value]) -> bool:
    return any(v.form is Form.UNKNOWN for v in values)


def common_kind(kinds: Iterable[Kind]) -> Kind:
    """The kind of a result that keeps its arguments' kind."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else Kind.FLOAT


def over(value: Value) -> str:
    """The dims of a value, for a message."""
    dims = ", ".join(f'"{d}"' for d in (value.rows, value.cols) if d is not None)
    return f"[{dims}]" if dims else "a number"


class Body:
    """One unit while it is read. Subclasses say how parameters are read and what each word's dims must be."""

    place: ClassVar[Place]
    meanings: ClassVar[Mapping[str, Callable[[Any, ast.Call, Word, list[Value], dict[str, Any]], Value]]] = {}

    def __init__(self, unit: UnitText, constants: Mapping[str, Number], report: Report) -> None:
        self.unit, self.constants, self.report = unit, constants, report
        self.names: dict[str, Value] = {}
        self.loads: dict[str, Value] = {}
        self._depth: dict[int, int] = {}
        self._kept: list[Value] = []  # keeps the ids in _depth alive

    # -- for subclasses

    def load(self, node: ast.Name, name: str, type: Type) -> Value:
        """The value of a vector, matrix or partial parameter."""
        raise NotImplementedError

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        """Rows, columns and form of an elementwise result."""
        raise NotImplementedError

    def check_output(self, node: ast.expr, value: Value) -> None:
        """Raises where a value cannot be returned."""
        raise NotImplementedError

    # -- statements

    def read(self) -> dict[str, Value] | None:
        """The unit's outputs; None where its return could not be read. Errors go to the report."""
        outputs: dict[str, Value] | None = None
        for position, statement in enumerate(self.unit.node.body):
            last = position == len(self.unit.node.body) - 1
            if isinstance(statement, ast.Return):
                outputs = self.guard(lambda s=statement, last=last: self._return(s, last), outputs)  # type: ignore[misc]
            else:
                self._guarded_statement(statement)
        if not any(isinstance(s, ast.Return) for s in self.unit.node.body):
            self.report.add(
                rules.ReturnForm(
                    self.unit.node, f'{self.unit.name!r} returns nothing; end it with return {{"name": value}}'
                )
            )
        return outputs

    def guard(self, action: Callable[[], T], otherwise: T) -> T:
        """The action's result; where it breaks a rule, that goes to the report and `otherwise` takes its place."""
        try:
            return action()
        except Broken as broken:
            self.report.add(broken)
            return otherwise

    def _guarded_statement(self, node: ast.stmt) -> None:
        try:
            self._statement(node)
        except Broken as broken:
            self.report.add(broken)
            self.names |= {name: unknown(node) for name in assigned(node) if name not in self.unit.types}

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Assign(targets=[ast.Name() as name], value=value):
                self._bind(name, self.value(value))
            case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names)], value=value):
                self._unpack(node, names, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                plain = f"{name} = {ast.unparse(ast.BinOp(ast.Name(name), node.op, node.value))}"
                raise rules.StatementForm(node, f"write {plain}", (node, plain))
            case ast.Expr():
                self.value(node.value)
                raise rules.StatementForm(node, f"the value of {shown(node)} is dropped; give it a name or return it")
            case _:
                why = _STATEMENTS.get(type(node), "a unit holds assignments and a final return")
                raise rules.StatementForm(node, f"{type(node).__name__} is not a statement of the language: {why}")

    def _unpack(self, node: ast.Assign, targets: list[ast.expr], source: ast.expr) -> None:
        if isinstance(source, ast.Tuple):
            values = [self.value(item) for item in source.elts]
        else:
            values = self._parts(self.value(source, several=True))
        if values and len(values) != len(targets):
            for target in targets:
                self._bind(target, unknown(node))
            raise rules.Unpacking(node, f"{shown(source)} gives {len(values)} values for {len(targets)} names")
        for target, value in zip(targets, values or [unknown(node)] * len(targets), strict=True):
            self._bind(target, value)

    def _parts(self, value: Value) -> list[Value]:
        """The values of a word with several; none of one that is not known."""
        if value.form is Form.UNKNOWN:
            return []
        if value.form is not Form.SEVERAL:
            return [value]
        rows, cols, form = value.rows, value.cols, value.attrs["form"]
        return [
            self.keep(
                Value(
                    "part",
                    (value,),
                    rows,
                    cols,
                    value.kind,
                    form,
                    {**value.attrs, "index": i},
                    value.line,
                    value.column,
                )
            )  # type: ignore[arg-type]
            for i in range(value.attrs["results"])  # type: ignore[arg-type]
        ]

    def _bind(self, target: ast.expr, value: Value) -> None:
        if not isinstance(target, ast.Name):
            raise rules.StatementForm(target, f"{shown(target)} cannot be assigned; assign to a name")
        name = target.id
        if name in self.unit.types:
            raise rules.ReservedName(target, f"{name!r} is a parameter and keeps its meaning; choose another name")
        if name != "_":
            check_name(name.lstrip("_"), target, "a value")
        self.names[name] = value

    def _return(self, node: ast.Return, last: bool) -> dict[str, Value]:
        if not last:
            raise rules.StatementForm(node, "a unit has one return, at its end")
        outputs: dict[str, Value] = {}
        for name, key, item in return_items(node):
            if name in outputs:
                raise rules.DuplicateName(key, f"{name!r} is returned twice")
            outputs[name] = self.guard(lambda item=item: self._output(item), unknown(item))  # type: ignore[misc]
        return outputs

    def _output(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.form is not Form.UNKNOWN:
            self.check_output(node, value)
            if value.kind is not Kind.FLOAT:
                raise rules.StoredKind(
                    node,
                    f"{shown(node)} is {value.kind.value}, and what is stored is a float; write where(c, 1.0, 0.0) or x * 1.0",
                )
        return value

    # -- expressions

    def value(self, node: ast.expr, several: bool = False) -> Value:
        """The value of an expression; an error in it is reported and gives an unknown value."""
        value = self.guard(lambda: self._expression(node), unknown(node))
        if value.form is Form.SEVERAL and not several:
            count = value.attrs["results"]
            self.report.add(
                rules.Unpacking(
                    node, f"{shown(node)} gives {count} values; unpack it into {count} names in a line of its own"
                )
            )
            return unknown(node)
        return value

    def _expression(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | str() | bytes() | complex() | None):
                raise rules.ExpressionForm(node, f"{shown(node)} is not a number")
            case ast.Constant(value=constant) if constant is not Ellipsis:
                return self.number(node, constant)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp(op=ast.Pow()):
                return self._power(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._operator(node, _BINARY[type(op)], [self.value(left), self.value(right)])
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return self._operator(node, _COMPARE[type(op)], [self.value(left), self.value(right)])
            case ast.Compare(ops=[_, _, *_]):
                raise rules.OneComparison(
                    node, f"{shown(node)}: compare one pair at a time and combine with &, as (a < b) & (b < c)"
                )
            case ast.BoolOp(op=op):
                sign, word = ("&", "and") if isinstance(op, ast.And) else ("|", "or")
                raise rules.BooleanForm(
                    node,
                    f"conditions combine with {sign}, not `{word}`, each in parentheses, as (a < b) {sign} (c < d)",
                )
            case ast.Call():
                return self._call(node)
        why = _FORBIDDEN.get(type(node), "expressions are made of names, numbers, operators and words")
        raise rules.ExpressionForm(node, f"{shown(node)} is not an expression of the language: {why}")

    def number(self, node: ast.expr, value: Number) -> Value:
        kind = Kind.INT if isinstance(value, int) else Kind.FLOAT
        return self.make(node, "number", (), kind=kind, attrs={"value": number(value, node)})

    def _name(self, node: ast.Name, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name in self.unit.types:
            return self.parameter(node, name)
        if name in self.constants:
            return self.number(node, self.constants[name])
        if name in CONSTANTS:
            return self.number(node, math.pi if name == "pi" else math.inf)
        if name in NAMES:
            raise rules.UnknownName(node, f"{name!r} is a word and must be called, as in {_example(name, self.place)}")
        known = [*self.names, *self.unit.types, *self.constants, *CONSTANTS]
        raise rules.UnknownName(
            node, f"{name!r} is not defined{did_you_mean(name, known)}", _rename(node, nearest(name, known))
        )

    def parameter(self, node: ast.Name, name: str) -> Value:
        """The value of a parameter: the same object at every use."""
        type = self.unit.types[name]
        if type is None:
            return unknown(node)
        if name not in self.loads:
            self.loads[name] = self._load(node, name, type)
        return self.loads[name]

    def _load(self, node: ast.Name, name: str, type: Type) -> Value:
        if type.kind is TypeKind.SIZE:
            return self.make(node, "size", (), kind=Kind.INT, attrs={"dim": type.dims[0]})
        if type.kind is TypeKind.SCALAR:
            return self.make(node, "param", (), attrs={"name": name})
        return self.load(node, name, type)

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            raise rules.BooleanForm(node, "write ~condition, not `not condition`")
        operand = self.value(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(node.op, ast.USub) and operand.word == "number":
            return self.number(node, -operand.attrs["value"])  # type: ignore[operator]
        return self._operator(node, "neg" if isinstance(node.op, ast.USub) else "not", [operand])

    def _power(self, node: ast.BinOp) -> Value:
        base, exponent = self.value(node.left), self.value(node.right)
        if is_unknown((base, exponent)):
            return unknown(node)
        if exponent.word != "number" or exponent.attrs["value"] not in (2, 3):
            raise rules.PowerForm(
                node, f"{shown(node)}: powers are ** 2 and ** 3; write sqrt, rsqrt, or exp(y * log(x)) for others"
            )
        times = int(exponent.attrs["value"])  # type: ignore[call-overload]
        if base.word == "number":
            value = base.attrs["value"]
            square = fold("mul", value, value, node)  # type: ignore[arg-type]
            return self.number(node, square if times == 2 else fold("mul", square, value, node))  # type: ignore[arg-type]
        return self._elementwise(node, LOOKUP[self.place, "pow"], [base], {"exponent": times})

    def _operator(self, node: ast.expr, name: str, values: list[Value]) -> Value:
        word = LOOKUP.get((self.place, name))
        if word is None:
            raise rules.WordPlace(node, f"a @{self.place} has no {shown(node)}; its operators are + - * / and ** 2")
        if all(v.word == "number" for v in values) and name in ("add", "sub", "mul", "div"):
            left, right = (v.attrs["value"] for v in values)
            return self.number(node, fold(name, left, right, node))  # type: ignore[arg-type]
        return self._elementwise(node, word, values, {})

    def _elementwise(self, node: ast.expr, word: Word, values: list[Value], attrs: dict[str, Any]) -> Value:
        if is_unknown(values):
            return unknown(node)
        self._check_kinds(node, word, values)
        rows, cols, form = self.combine(node, values)
        return self.make(node, word.name, values, rows, cols, _result_kind(word, values), form, attrs)

    def _check_kinds(self, node: ast.expr, word: Word, values: list[Value]) -> None:
        conditions = values if word.rule == "logical" else values[:1] if word.rule == "where" else []
        for value in conditions:
            if value.kind is not Kind.BOOL:
                raise rules.KindMismatch(
                    node, f"{shown(node)}: {word.symbol or 'where'} needs a condition, as (x > 0), not a number"
                )
        for value in values[len(conditions) :]:
            if value.kind is Kind.BOOL:
                raise rules.KindMismatch(
                    node, f"{shown(node)}: a condition is not a number; write where(condition, 1.0, 0.0)"
                )

    # -- words

    def _call(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name):
            raise self._attribute_call(node)
        word = LOOKUP.get((self.place, node.func.id))
        if word is None or word.symbol:
            for argument in node.args:
                if not isinstance(argument, ast.Constant):
                    self.value(argument)
            raise self._not_a_word(node, node.func)
        values, attrs = self._arguments(node, word)
        if is_unknown(values):
            return unknown(node)
        if word.rule in ("elementwise", "where"):
            return self._elementwise(node, word, values, attrs)
        return self.meanings[word.rule](self, node, word, values, attrs)

    def _attribute_call(self, node: ast.Call) -> Broken:
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if (self.place, last) in LOOKUP:
            return rules.ExpressionForm(node, f"{shown(node.func)} is not a word; write {last}(...)", (node.func, last))
        hint = f"; its word here is {HABITS[last]}" if last in HABITS else ""
        return rules.ExpressionForm(
            node, f"{shown(node.func)} is not a word: words are plain names, without modules or methods{hint}"
        )

    def _not_a_word(self, node: ast.Call, func: ast.Name) -> Broken:
        name = func.id
        if name in NAMES:
            places = sorted({f"@{p}" for w in WORDS if w.name == name for p in w.places})
            return rules.WordPlace(
                node,
                f"{name} has no meaning in a @{self.place}; it stands in {' and '.join(places)}{_instead(name, self.place)}",
            )
        if name in self.unit.types or name in self.names:
            return rules.ExpressionForm(
                node, f"{name!r} is a value and cannot be called; write name * (...) for a product"
            )
        options = [n for p, n in LOOKUP if p is self.place]
        close = HABITS.get(name) or nearest(name, options)
        hint = f"; did you mean {close!r}?" if close else ""
        return rules.UnknownWord(func, f"{name[:60]!r} is not a word of the language{hint}", _rename(func, close))

    def _arguments(self, node: ast.Call, word: Word) -> tuple[list[Value], dict[str, Any]]:
        if node.keywords:
            raise rules.WordArguments(node, f"{word.name} takes its arguments by position: {word.signature}")
        least, most = word.arity
        if not least <= len(node.args) <= most or any(isinstance(a, ast.Starred) for a in node.args):
            wanted = str(least) if least == most else f"{least} or {most}"
            raise rules.WordArguments(
                node, f"{word.name} takes {wanted} arguments, not {len(node.args)}: {word.signature}"
            )
        values: list[Value] = []
        attrs: dict[str, Any] = {}
        for take, argument in zip(word.takes, node.args, strict=False):
            match take[0]:
                case "x":
                    values.append(self.operand(argument) if word.rule == "gemm" else self.value(argument))
                case "d":
                    attrs["dim"] = self.known_dim(argument)
                case "g":
                    attrs["group"] = self._group(argument)
                case "t":
                    attrs["dtype"] = _dtype(argument)
        return values, attrs

    def operand(self, node: ast.expr) -> Value:
        """An argument of gemm: named, not read as a tile."""
        return Value("operand", line=node.lineno)

    def known_dim(self, node: ast.expr) -> Dim:
        """A dimension in quotes that is made of the unit's symbols."""
        dim = dim_of(node)
        missing = sorted(dim.all_symbols - self.unit.symbols)
        if missing and None not in self.unit.types.values():
            name = missing[0]
            raise rules.UnknownDim(
                node,
                f'no parameter of {self.unit.name!r} has the dim "{name}"{did_you_mean(name, self.unit.symbols)}; '
                f'a parameter {name.lower()}: Size["{name}"] would bring it in',
            )
        return dim

    def _group(self, node: ast.expr) -> Dim:
        if isinstance(node, ast.Name) and isinstance(self.constants.get(node.id), int):
            node = ast.copy_location(ast.Constant(self.constants[node.id]), node)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            if not 1 <= node.value <= 65536:
                raise rules.GroupSize(node, f"a group has between 1 and 65536 columns, not {node.value}")
            return Dim.number(node.value)
        return self.known_dim(node)

    def make(
        self,
        node: ast.expr,
        word: str,
        args: Sequence[Value],
        rows: Dim | None = None,
        cols: Dim | None = None,
        kind: Kind = Kind.FLOAT,
        form: Form = Form.TILE,
        attrs: Mapping[str, object] | None = None,
    ) -> Value:
        """A value at a node; raises TooDeep where a chain of operations grows beyond what any unit needs."""
        line, column = self.report.place(node)
        value = self.keep(Value(word, tuple(args), rows, cols, kind, form, dict(attrs or {}), line, column))
        if self._depth[id(value)] > MAX_OPERATIONS_DEEP:
            raise rules.TooDeep(
                node,
                f"more than {MAX_OPERATIONS_DEEP} operations depend on one another; a unit is a short straight line",
            )
        return value

    def keep(self, value: Value) -> Value:
        self._depth[id(value)] = 1 + max((self._depth.get(id(a), 0) for a in value.args), default=0)
        self._kept.append(value)
        return value


def assigned(node: ast.stmt) -> set[str]:
    """Every name that a statement assigns, so that a broken one raises no second error where the name is read."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def return_items(node: ast.Return) -> list[tuple[str, ast.expr, ast.expr]]:
    """(name, key, value) of `return {"name": value, ...}`; raises ReturnForm."""
    form = 'write return {"name": value}'
    if not isinstance(node.value, ast.Dict) or not node.value.keys:
        raise rules.ReturnForm(node, f"a unit returns its outputs by name; {form}")
    items = []
    for key, item in zip(node.value.keys, node.value.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise rules.ReturnForm(key or item, f"the name of an output is a string; {form}")
        if not key.value.isidentifier():
            raise rules.BadName(
                key, f"{key.value[:60]!r} cannot name an output; use letters, digits and underscores, a letter first"
            )
        check_output_name(key.value, key)
        items.append((key.value, key, item))
    return items


def check_output_name(name: str, node: ast.AST) -> None:
    """Outputs live behind a dot, so they may be called like words ("sum"), yet not like Python keywords."""
    if name not in NAMES and name not in CONSTANTS:
        check_name(name, node, "an output")


def _result_kind(word: Word, values: Sequence[Value]) -> Kind:
    if word.gives == "same":
        return common_kind(v.kind for v in (values[1:] if word.rule == "where" else values))
    return _KINDS[word.gives]


def _dtype(node: ast.expr) -> str:
    text = node.value if isinstance(node, ast.Constant) else shown(node).split(".")[-1]
    if isinstance(node, ast.Constant) and text in DTYPES:
        return str(text)
    close = nearest(str(text), DTYPES)
    raise rules.CastDtype(
        node,
        f"{shown(node)} is not a dtype in quotes; the dtypes are {', '.join(DTYPES)}",
        (node, f'"{close}"') if close else None,
    )


def _rename(node: ast.Name, name: str | None) -> tuple[ast.AST, str] | None:
    return (node, name) if name and name.isidentifier() else None


def _example(name: str, place: Place) -> str:
    word = LOOKUP.get((place, name)) or next(w for w in WORDS if w.name == name)
    return word.example


def _instead(name: str, place: Place) -> str:
    """What an author who wrote a word of another kind of unit most likely needs."""
    if place is Place.KERNEL and name.startswith("total_"):
        return "; a kernel sees one tile, so return tile_... and finish it in a @finisher"
    if place is Place.KERNEL and name == "sum":
        return '; inside a kernel reduce with tile_sum(x, "N") and finish it in a @finisher'
    if place is Place.FINISHER and name.startswith("tile_"):
        return f"; here write {name.replace('tile_', 'total_')}(partial)"
    if place is Place.FINISHER and name == "gemm":
        return "; a finisher never sees a matrix"
    return ""

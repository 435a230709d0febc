"""Reads expressions into values: names, numbers and operators. What words mean is the business of `calls`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Form, Kind, Type, TypeKind, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import Broken, did_you_mean, nearest, shown
from coda_synth.coda_api.syntax import Number, UnitText, fold, number
from coda_synth.coda_api.words import CONSTANTS, LOOKUP, NAMES, WORDS, Place, Word

MAX_OPERATIONS_DEEP = 150
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitAnd: "and", ast.BitOr: "or"}
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
_KINDS = {"float": Kind.FLOAT, "int": Kind.INT, "bool": Kind.BOOL}
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


class Formulas:
    """The expressions of one unit. Subclasses say how parameters are read and how dims combine."""

    place: ClassVar[Place]

    def __init__(self, unit: UnitText, constants: Mapping[str, Number], report: Report) -> None:
        self.unit, self.constants, self.report = unit, constants, report
        self.names: dict[str, Value] = {}
        self.loads: dict[str, Value] = {}
        self._depth: dict[int, int] = {}
        self._kept: list[Value] = []  # keeps the ids in _depth alive

    def load(self, node: ast.Name, name: str, type: Type) -> Value:
        """The value of a vector, matrix or partial parameter."""
        raise NotImplementedError

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        """Rows, columns and form of an elementwise result."""
        raise NotImplementedError

    @property
    def columns(self) -> str:
        """The columns of the unit's tile, "" where it has none."""
        return ""

    def guard(self, action: Callable[[], T], otherwise: T) -> T:
        """The action's result; where it breaks a rule, that goes to the report and `otherwise` takes its place."""
        try:
            return action()
        except Broken as broken:
            self.report.add(broken)
            return otherwise

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
                    node,
                    f"{shown(node)}: compare one pair at a time and combine with &, as (a < b) & (b < c)",
                    repairs.comparisons(node),
                )
            case ast.BoolOp(op=op):
                sign, word = ("&", "and") if isinstance(op, ast.And) else ("|", "or")
                raise rules.BooleanForm(
                    node,
                    f"conditions combine with {sign}, not `{word}`, each in parentheses, as (a < b) {sign} (c < d)",
                    repairs.booleans(node),
                )
            case ast.Call():
                return self.call(node)
        why = _FORBIDDEN.get(type(node), "expressions are made of names, numbers, operators and words")
        message = f"{shown(node)} is not an expression of the language: {why}"
        raise rules.ExpressionForm(node, message, repairs.foreign(node, self.unit.matrices))

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
            node, f"{name!r} is not defined{did_you_mean(name, known)}", rename(node, nearest(name, known))
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
            meant = f"~({ast.unparse(node.operand)})"
            raise rules.BooleanForm(node, "write ~condition, not `not condition`", (node, meant))
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
        times = exponent.attrs.get("value")
        if times not in (2, 3):
            raise rules.PowerForm(
                node,
                f"{shown(node)}: powers are ** 2 and ** 3; write sqrt, rsqrt, or exp(y * log(x)) for others",
                repairs.power(node),
            )
        if base.word == "number":
            value: Any = base.attrs["value"]
            square = fold("mul", value, value, node)
            return self.number(node, square if times == 2 else fold("mul", square, value, node))
        return self.elementwise(node, LOOKUP[self.place, "pow"], [base], {"exponent": 2 if times == 2 else 3})

    def _operator(self, node: ast.expr, name: str, values: list[Value]) -> Value:
        word = LOOKUP.get((self.place, name))
        if word is None:
            raise rules.WordPlace(node, f"a @{self.place} has no {shown(node)}; its operators are + - * / and ** 2")
        if all(v.word == "number" for v in values) and name in ("add", "sub", "mul", "div"):
            left, right = (v.attrs["value"] for v in values)
            return self.number(node, fold(name, left, right, node))  # type: ignore[arg-type]
        return self.elementwise(node, word, values, {})

    def elementwise(self, node: ast.expr, word: Word, values: list[Value], attrs: dict[str, Any]) -> Value:
        if is_unknown(values):
            return unknown(node)
        self._check_kinds(node, word, values)
        rows, cols, form = self.combine(node, values)
        return self.make(node, word.name, values, rows, cols, _result_kind(word, values), form, attrs)

    def _check_kinds(self, node: ast.expr, word: Word, values: list[Value]) -> None:
        conditions = len(values) if word.rule == "logical" else 1 if word.rule == "where" else 0
        for index, value in enumerate(values):
            part = repairs.operand(node, index)
            if index < conditions and value.kind is not Kind.BOOL:
                raise rules.KindMismatch(
                    node,
                    f"{shown(node)}: {word.symbol or 'where'} needs a condition, as (x > 0), not a number",
                    (part, f"({ast.unparse(part)} != 0)") if part else None,
                )
            if index >= conditions and value.kind is Kind.BOOL:
                raise rules.KindMismatch(
                    node,
                    f"{shown(node)}: a condition is not a number; write where(condition, 1.0, 0.0)",
                    (part, f"where({ast.unparse(part)}, 1.0, 0.0)") if part else None,
                )

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

    def call(self, node: ast.Call) -> Value:
        """The value of a word's call."""
        raise NotImplementedError


def _result_kind(word: Word, values: Sequence[Value]) -> Kind:
    if word.gives == "same":
        return common_kind(v.kind for v in (values[1:] if word.rule == "where" else values))
    return _KINDS[word.gives]


def rename(node: ast.Name, name: str | None) -> tuple[ast.AST, str] | None:
    return (node, name) if name and name.isidentifier() else None


def _example(name: str, place: Place) -> str:
    word = LOOKUP.get((place, name)) or next(w for w in WORDS if w.name == name)
    return word.example

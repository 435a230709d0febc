"""From text to the units of a file as syntax: limits, top-level rules, parameters and their types. Executes nothing."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.declarations import check_name, declared_type
from coda_synth.coda_api.errors import Edit
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.program import Param, Type, TypeKind
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import Broken, nearest, shown
from coda_synth.coda_api.words import DECORATORS

MAX_CHARACTERS = 64_000
MAX_DEPTH = 60
MAX_NODES = 20_000

Number = int | float


@dataclass(frozen=True, slots=True)
class UnitText:
    """A decorated function. types: the declared type of every parameter, None where the declaration is broken."""

    kind: str
    name: str
    node: ast.FunctionDef
    types: Mapping[str, Type | None]
    hints: tuple[ast.keyword, ...] = ()

    @property
    def params(self) -> tuple[Param, ...]:
        return tuple(Param(name, type) for name, type in self.types.items() if type)

    @property
    def matrices(self) -> tuple[str, ...]:
        """The parameters that a gemm can take."""
        return tuple(p.name for p in self.params if p.type.kind is TypeKind.TENSOR and len(p.type.dims) == 2)

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol that a parameter brings in."""
        return frozenset(s for p in self.params for d in p.type.dims for s in d.all_symbols)


@dataclass(slots=True)
class File:
    """A candidate's text, taken apart."""

    docstring: str = ""
    units: dict[str, UnitText] = field(default_factory=dict)
    programs: list[UnitText] = field(default_factory=list)
    constants: dict[str, Number] = field(default_factory=dict)
    broken: set[str] = field(
        default_factory=set
    )  # functions left out: their own errors are said, calls of them are not


def parse(text: str, report: Report) -> File:
    """Takes a text apart; what breaks a rule is reported and left out."""
    tree = _tree(text, report)
    file = File()
    if tree is None:
        return file
    file.docstring = ast.get_docstring(tree) or ""
    for node in tree.body:
        try:
            _top_level(node, file, report)
        except Broken as broken:
            report.add(broken)
            if isinstance(node, ast.FunctionDef):
                file.broken.add(node.name)
    _count_programs(file, report)
    return file


def _tree(text: str, report: Report) -> ast.Module | None:
    if len(text) > MAX_CHARACTERS:
        report.add_at(
            rules.TextTooLarge, f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read", 1, 1
        )
        return None
    try:
        tree = parse_statements(text)
    except SyntaxError as error:
        message = (
            f"this is not Python syntax: {error.msg}; a candidate is one Python-syntax text without Markdown fences"
        )
        line, column = error.lineno or 1, max(error.offset or 1, 1)
        colon = Edit(line, column, column, ":") if error.msg == "expected ':'" else None
        report.add_at(rules.BrokenSyntax, message, line, column, colon)
        return None
    except (RecursionError, MemoryError):
        report.add_at(rules.TooDeep, f"expressions nest deeper than {MAX_DEPTH} levels; give the parts names", 1, 1)
        return None
    except ValueError as error:  # NUL bytes, lone surrogates
        report.add_at(rules.BrokenSyntax, f"this is not a text: {error}", 1, 1)
        return None
    return tree if _shallow(tree, report) else None


def _shallow(tree: ast.Module, report: Report) -> bool:
    """Whether the rest may recurse over the tree. Walks with its own stack, since the text may be hostile."""
    pending: list[tuple[ast.AST, int]] = [(tree, 0)]
    count = 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_NODES:
            what = (
                f"nest deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"have more than {MAX_NODES:,} parts"
            )
            report.add(rules.TooDeep(node, f"the expressions {what}; give the parts names and keep units short"))
            return False
        pending += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return True


def _top_level(node: ast.stmt, file: File, report: Report) -> None:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.ImportFrom(module="coda_api" | "coda_synth.coda_api", level=0):
            return
        case ast.Import() | ast.ImportFrom():
            raise rules.TopLevel(
                node,
                "nothing is imported: the words are all there is (only `from coda_api import ...` is ignored)",
                (node, ""),
            )
        case ast.Assign(targets=[ast.Name(id=name)]):
            check_name(name, node, "a constant")
            if name in file.units:
                raise rules.DuplicateName(node, f"{name!r} is already a unit")
            file.constants[name] = _constant(node.value, file.constants)
        case ast.FunctionDef():
            _add_unit(node, file, report)
        case _:
            what = type(node).__name__
            raise rules.TopLevel(
                node,
                f"{what} cannot stand at top level; allowed are @prepare, @kernel, @finisher, @program, and NAME = "
                "number",
            )


def _add_unit(node: ast.FunctionDef, file: File, report: Report) -> None:
    kind, hints = _decorator(node)
    check_name(node.name, node, "a unit")
    if node.name in file.constants or node.name in file.units or any(p.name == node.name for p in file.programs):
        raise rules.DuplicateName(node, f"{node.name!r} is defined twice; give every unit a name of its own")
    unit = UnitText(kind, node.name, node, _parameters(node, kind, report), hints)
    if kind == "program":
        file.programs.append(unit)
    else:
        file.units[node.name] = unit


def _count_programs(file: File, report: Report) -> None:
    if not file.programs:
        report.add_at(
            rules.OneProgram,
            "there is no @program: one function that calls the units and returns the task's outputs",
            1,
            1,
        )
    for extra in file.programs[1:]:
        report.add(rules.OneProgram(extra.node, f"{extra.name!r} is a second @program; a file has one"))


def _decorator(node: ast.FunctionDef) -> tuple[str, tuple[ast.keyword, ...]]:
    allowed = "@" + ", @".join(DECORATORS)
    if len(node.decorator_list) != 1:
        count = len(node.decorator_list) or "no"
        raise rules.DecoratorNeeded(
            node,
            f"{node.name!r} has {count} decorators; it must have exactly one of {allowed}",
            None if node.decorator_list else repairs.decorator(node),
        )
    match node.decorator_list[0]:
        case ast.Name(id=kind) if kind in DECORATORS:
            return kind, ()
        case ast.Call(func=ast.Name(id=kind), args=[], keywords=keywords) if kind in DECORATORS:
            if keywords and kind != "kernel":
                raise rules.ScheduleHint(
                    keywords[0],
                    f"@{kind} takes no keywords; schedule hints belong to @kernel",
                    (node.decorator_list[0], kind),
                )
            return kind, tuple(keywords)
        case ast.Call(func=ast.Name(id=kind)) as call if kind in DECORATORS:
            takes = "schedule hints by name only, as @kernel(block_m=128)" if kind == "kernel" else "no arguments"
            raise rules.DecoratorNeeded(call, f"@{shown(call)}: @{kind} takes {takes}", (call, kind))
        case other:
            name = other.func if isinstance(other, ast.Call) else other
            close = nearest(shown(name), DECORATORS)
            raise rules.DecoratorNeeded(
                other,
                f"@{shown(other)} is not a decorator of the language; use one of {allowed}",
                (name, close) if close else None,
            )


def _parameters(node: ast.FunctionDef, kind: str, report: Report) -> dict[str, Type | None]:
    given = node.args
    extra = [a for a in (given.vararg, given.kwarg) if a] + list(given.kwonlyargs) + list(given.posonlyargs)
    for odd in extra:
        report.add(rules.ParameterList(odd, f"{odd.arg!r}: a unit has plain parameters only, without *, ** or /"))
    for default in [*given.defaults, *(d for d in given.kw_defaults if d)]:
        report.add(
            rules.ParameterList(
                default,
                "parameters have no defaults; the program passes every argument",
                repairs.without_default(given, default),
            )
        )
    types: dict[str, Type | None] = {}
    for arg in given.args:
        try:
            check_name(arg.arg, arg, "a parameter")
            if arg.arg in types:
                raise rules.DuplicateName(arg, f"{arg.arg!r} is a parameter twice")
            types[arg.arg] = None
            types[arg.arg] = declared_type(arg, kind)
        except Broken as broken:
            report.add(broken)
    return types


def number(value: Number, node: ast.AST) -> Number:
    """The number, if the hardware's 32 bits hold it; raises NumberRange."""
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise rules.NumberRange(node, "this integer does not fit 32 bits; write a float, as 1e10")
    if isinstance(value, float) and (math.isnan(value) or (abs(value) > 3.4028234e38 and not math.isinf(value))):
        raise rules.NumberRange(
            node, "this number does not fit a 32-bit float; the constant `inf` is infinity", (node, "inf")
        )
    return value


def fold(name: str, left: Number, right: Number, node: ast.AST) -> Number:
    """The value of an operator between two numbers; raises NumberRange."""
    try:
        value = {"add": left + right, "sub": left - right, "mul": left * right}.get(name)
        return number(left / right if value is None else value, node)
    except (ArithmeticError, ValueError):
        raise rules.NumberRange(node, f"{shown(node)} has no value") from None


_FOLDED = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


def _constant(node: ast.expr, known: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=str() as text) if re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", text):
            raise rules.ConstantValue(node, f"{shown(node)} is text; a number has no quotes", (node, text))
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            pass
        case ast.Constant(value=value) if value is not Ellipsis:
            return number(value, node)  # type: ignore[arg-type]
        case ast.Name(id="pi"):
            return math.pi
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_constant(operand, known)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _FOLDED:
            return fold(_FOLDED[type(op)], _constant(left, known), _constant(right, known), node)
    raise rules.ConstantValue(
        node, f"{shown(node)} is not a number; a top-level name is a number, as SCALE = 0.5 or 2 / pi"
    )

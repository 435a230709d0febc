"""Edits that mend what authors write from habit: each a node and the text to put in its place, from the syntax."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from coda_synth.coda_api.rules import Repair, nearest
from coda_synth.coda_api.schedule import ALLOWED, HINTS
from coda_synth.coda_api.words import DTYPES, LOOKUP, Place, Word

_POWERS = {0.5: "sqrt({})", -0.5: "rsqrt({})", -1: "reciprocal({})", -2: "reciprocal({} ** 2)", 1: "{}"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "float": "float32", "half": "float16", "fp16": "float16"}
_DTYPES |= {"fp8": "float8_e4m3", "e4m3": "float8_e4m3", "float8_e4m3fn": "float8_e4m3", "e5m2": "float8_e5m2"}
_SYMBOLS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "=="}


def span(first: ast.AST, last: ast.AST) -> ast.AST:
    """From the start of one node to the end of another."""
    return _at(first.lineno, first.col_offset, last.end_lineno, last.end_col_offset)  # type: ignore[attr-defined]


def up_to(first: ast.AST, next: ast.AST) -> ast.AST:
    """From the start of one node to the start of another."""
    return _at(first.lineno, first.col_offset, next.lineno, next.col_offset)  # type: ignore[attr-defined]


def before(node: ast.AST, text: str) -> Repair:
    """An insertion in front of a node."""
    line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
    return _at(line, column, line, column), text


def _at(line: int, column: int, end_line: int, end: int) -> ast.AST:
    return ast.Constant(0, lineno=line, col_offset=column, end_lineno=end_line, end_col_offset=end)


def power(node: ast.BinOp) -> Repair | None:
    """x ** 0.5 is sqrt(x), and so on."""
    try:
        exponent = ast.literal_eval(node.right)
    except ValueError:
        return None
    base = ast.unparse(node.left)
    base = base if isinstance(node.left, (ast.Name, ast.Call)) else f"({base})"
    if exponent == 4:
        return node, f"({base} ** 2) ** 2"
    form = _POWERS.get(exponent) if isinstance(exponent, (int, float)) else None
    return (node, form.format(base)) if form else None


def comparisons(node: ast.Compare) -> Repair | None:
    """a < b < c is (a < b) & (b < c)."""
    sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
    signs = [_SYMBOLS.get(type(op)) for op in node.ops]
    if None in signs:
        return None
    return node, " & ".join(f"({a} {sign} {b})" for a, sign, b in zip(sides, signs, sides[1:], strict=False))


def booleans(node: ast.BoolOp) -> Repair:
    sign = " & " if isinstance(node.op, ast.And) else " | "
    return node, sign.join(f"({ast.unparse(value)})" for value in node.values)


def foreign(node: ast.expr, matrices: Sequence[str]) -> Repair | None:
    """Python's and torch's ways of saying what the language has a word for. matrices: parameters that a gemm takes."""
    match node:
        case ast.IfExp(test=ast.Constant(value=bool(chosen)), body=body, orelse=other):
            return node, ast.unparse(body if chosen else other)
        case ast.IfExp(test=test, body=body, orelse=other):
            return node, f"where({ast.unparse(test)}, {ast.unparse(body)}, {ast.unparse(other)})"
        case ast.BinOp(left=ast.Name(id=a), op=ast.MatMult(), right=ast.Name(id=b)) if {a, b} <= {*matrices}:
            return node, f"gemm({a}, {b})"
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[ast.Slice(), ast.Slice() as columns])):
            word = _every_second(columns)
            return (node, f"{word}({ast.unparse(value)})") if word else None
    return None


def _every_second(columns: ast.Slice) -> str | None:
    step = columns.step.value if isinstance(columns.step, ast.Constant) else None
    start = columns.lower.value if isinstance(columns.lower, ast.Constant) else 0
    if step != 2 or columns.upper is not None:
        return None
    return "even" if start == 0 else "odd" if start == 1 else None


def method(node: ast.Call, place: Place, names: Sequence[str]) -> Repair | None:
    """x.exp() is exp(x); torch.exp(x) is exp(x)."""
    if not isinstance(node.func, ast.Attribute) or (place, node.func.attr) not in LOOKUP:
        return None
    owner = node.func.value
    if isinstance(owner, ast.Name) and owner.id not in names:
        return node.func, node.func.attr
    arguments = ", ".join(ast.unparse(a) for a in (owner, *node.args))
    return node, f"{node.func.attr}({arguments})"


def arguments(node: ast.Call, word: Word, columns: str) -> Repair | None:
    """Keywords made positional; the dim of the columns where a reduction lacks its dim; what is too much left out."""
    given = [ast.unparse(a) for a in (*node.args, *(k.value for k in node.keywords))]
    least, most = word.arity
    if len(given) == least - 1 and word.takes[len(given)].startswith("d") and columns:
        given.append(f'"{columns}"')
    given = given[:most]
    return (node, f"{word.name}({', '.join(given)})") if len(given) >= least else None


def elsewhere(node: ast.Call, place: Place, columns: str) -> Repair | None:
    """The word that does in this kind of unit what the one that was written does in another."""
    if not isinstance(node.func, ast.Name) or not node.args:
        return None
    name, first = node.func.id, ast.unparse(node.args[0])
    kind = "sum" if name == "sum" else name.removeprefix("total_").removeprefix("tile_")
    if place is Place.FINISHER and name.startswith("tile_") and (place, f"total_{kind}") in LOOKUP:
        return node, f"total_{kind}({first})"
    if place is Place.KERNEL and columns and (place, f"tile_{kind}") in LOOKUP:
        return node, f'tile_{kind}({first}, "{columns}")'
    return None


def matrix(node: ast.expr, matrices: Sequence[str]) -> Repair | None:
    """w.T, transpose(w), w.contiguous(): the one matrix parameter inside, as it lies."""
    inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in matrices}
    numbers = any(isinstance(n, ast.BinOp) for n in ast.walk(node))
    return (node, inside.pop()) if len(inside) == 1 and not numbers else None


def operand(node: ast.expr, index: int) -> ast.expr | None:
    """The index-th value that an operator or a word takes."""
    match node:
        case ast.BinOp(left=left, right=right):
            return (left, right)[index]
        case ast.Compare(left=left, comparators=[right]):
            return (left, right)[index]
        case ast.UnaryOp(operand=only):
            return only
        case ast.Call(args=args) if index < len(args):
            return args[index]
    return None


def outermost(unit: ast.FunctionDef, node: ast.expr) -> ast.expr:
    """The whole expression of a statement, or of an output, in which a node lies."""
    for statement in unit.body:
        roots: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            roots = [statement.value]
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Dict):
            roots = statement.value.values
        for root in roots:
            if any(inner is node for inner in ast.walk(root)):
                return root
    return node


def returned(node: ast.Return) -> Repair | None:
    """return h, g is return {"h": h, "g": g}."""
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        pairs = [(str(k.arg), ast.unparse(k.value)) for k in value.keywords]
    else:
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        pairs = [(n.id, n.id) for n in items if isinstance(n, ast.Name)]
        if len(pairs) != len(items):
            return None
    said = ", ".join(f'"{name}": {text}' for name, text in pairs)
    return (node, f"return {{{said}}}") if pairs else None


def without_default(arguments: ast.arguments, default: ast.expr) -> Repair | None:
    for arg, value in zip(reversed(arguments.args), reversed(arguments.defaults), strict=False):
        if value is default:
            return span(arg, default), ast.unparse(arg)
    return None


def hint(word: ast.keyword) -> Repair | None:
    """The nearest schedule hint, or the nearest value of this one."""
    name, written = str(word.arg), str(getattr(word.value, "value", getattr(word.value, "id", "")))
    known = name if name in HINTS else nearest(name.replace("num_", ""), HINTS)
    if known is None:
        return None
    numbers = [v for v in ALLOWED[known] if isinstance(v, int)]
    if not numbers:
        close = nearest(written, [str(v) for v in ALLOWED[known]])
        return (word, f'{known}="{close}"') if close else None
    try:
        number = float(written)
    except ValueError:
        return None
    return word, f"{known}={min(numbers, key=lambda v: (abs(v - number), v))}"


def decorator(node: ast.FunctionDef) -> Repair | None:
    """The kind of a unit without one, by what it calls; in front of it."""
    called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    if "gemm" in called:
        return before(node, "@kernel\n")
    if any(name.startswith("total_") for name in called):
        return before(node, "@finisher\n")
    if called & {"interleave", "concat", "join", "transpose", "matvec"}:
        return before(node, "@prepare\n")
    reads = any(isinstance(n, ast.Attribute) for n in ast.walk(node))
    return before(node, "@program\n") if reads else None


def dtype(node: ast.expr) -> Repair | None:
    text = str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node).split(".")[-1]
    found = text if text in DTYPES else _DTYPES.get(text)
    return (node, f'"{found}"') if found else None


def with_arguments(call: ast.Call, more: Mapping[str, str]) -> Repair:
    said = [*(ast.unparse(a) for a in (*call.args, *call.keywords)), *(f"{n}={v}" for n, v in more.items())]
    return call, f"{ast.unparse(call.func)}({', '.join(said)})"


def with_fewer(call: ast.Call, count: int) -> Repair:
    said = [ast.unparse(a) for a in call.args[:count]]
    return call, f"{ast.unparse(call.func)}({', '.join(said)})"

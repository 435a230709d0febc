"""Expressions over a tile, which the planner reads out of a traced reference, and the identities that tidy them.

An expression is a value without a place: equal text of a reference gives equal expressions. It knows nothing of
kernels, and nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from coda_synth.coda_api.dims import Dim

ROW, COL = "row", "col"
BINDERS = ("gemm", "sum", "max", "min", "logsumexp", "moments", "pick")  # their body is a tile of its own
HALVES = {"low": "high", "even": "odd"}
JOINS = {"low": "join", "even": "interleave"}


@dataclass(frozen=True, slots=True)
class Expr:
    """One operation.

    word: a word of the language, or "load", "number", "gemm"; "sum", "max", "min", "logsumexp" reduce the columns of
    their body, as does "moments" (its "part" 0 is the mean, 1 the biased variance); "pick" takes one column a row;
    "total" sums a row vector.
    name, axes, dims: of a load, the stored value, what its axes are in this tile, and the length of each. A gemm has
    axes and dims too: its rows and columns. Arguments of a gemm, a reduction or a pick are in a tile of their own.
    dim: the group of low, high and join, the length that cycle and spread make.
    node: where in the graph it comes from; takes no part in comparisons.
    """

    word: str
    args: tuple[Expr, ...] = ()
    name: str = ""
    axes: tuple[str, ...] = ()
    dims: tuple[Dim, ...] = ()
    number: float | int | None = None
    dim: Dim | None = None
    node: str = field(default="", compare=False)
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        key = (self.word, self.args, self.name, self.axes, self.dims, self.number, self.dim)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash


def number(value: float | int) -> Expr:
    return Expr("number", number=value)


def sides(expr: Expr) -> frozenset[str]:
    """Which axes of the tile it varies along."""
    if expr.word in ("load", "gemm"):
        return frozenset(expr.axes)
    if expr.word in BINDERS:
        return frozenset({ROW})
    if expr.word == "total":
        return frozenset()
    return frozenset().union(*(sides(a) for a in expr.args))


def walk(expr: Expr) -> Iterator[Expr]:
    """Every distinct expression in its own tile, arguments first; does not enter a gemm, a reduction or a pick."""
    seen: set[Expr] = set()

    def visit(e: Expr) -> Iterator[Expr]:
        if e in seen:
            return
        seen.add(e)
        if e.word not in BINDERS:
            for a in e.args:
                yield from visit(a)
        yield e

    return visit(expr)


def loads_of(value: Expr) -> Iterator[Expr]:
    """The loads of a value that is made of stored ones, the operands of its GEMM included."""
    for e in walk(value):
        if e.word in BINDERS:
            yield from (load for a in e.args for load in loads_of(a))
        elif e.word == "load":
            yield e


def rebuild(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with `change` applied top down, where it gives something; does not enter a binder's own tile."""
    done: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr:
        if e not in done:
            changed = change(e)
            if changed is None:
                inner = e.args if e.word in BINDERS else tuple(visit(a) for a in e.args)
                changed = e if inner == e.args else remake(e, inner)
            done[e] = changed
        return done[e]

    return visit(expr)


def remake(expr: Expr, args: tuple[Expr, ...]) -> Expr:
    """The same operation on other arguments, tidied."""
    makers: dict[str, Callable[..., Expr]] = {"add": add, "sub": sub, "mul": mul, "div": div, "neg": neg}
    return makers[expr.word](*args) if expr.word in makers else replace(expr, args=args)


def add(a: Expr, b: Expr) -> Expr:
    if _is_number(a, 0):
        return b
    if _is_number(b, 0):
        return a
    if b.word == "neg":
        return sub(a, b.args[0])
    if a.word == "neg":
        return sub(b, a.args[0])
    return _folded("add", a, b, lambda x, y: x + y)


def sub(a: Expr, b: Expr) -> Expr:
    if _is_number(b, 0):
        return a
    if b.word == "neg":
        return add(a, b.args[0])
    return neg(b) if _is_number(a, 0) else _folded("sub", a, b, lambda x, y: x - y)


def mul(a: Expr, b: Expr) -> Expr:
    for one, other in ((a, b), (b, a)):
        if _is_number(one, 1):
            return other
        if _is_number(one, -1):
            return neg(other)
    if a.word == "neg":
        return neg(mul(a.args[0], b))
    if b.word == "neg":
        return neg(mul(a, b.args[0]))
    return _folded("mul", a, b, lambda x, y: x * y)


def div(a: Expr, b: Expr) -> Expr:
    if _is_number(b, 1):
        return a
    if a.word == "neg":
        return neg(div(a.args[0], b))
    return Expr("div", (a, b))


def neg(a: Expr) -> Expr:
    if a.word == "neg":
        return a.args[0]
    if a.word == "sub":
        return sub(a.args[1], a.args[0])
    return number(-a.number) if a.word == "number" and a.number is not None else Expr("neg", (a,))


def power(a: Expr, exponent: float) -> Expr | None:
    """a ** exponent where the language can write it: whole exponents up to 4, halves and reciprocals of them."""
    if exponent < 0:
        positive = power(a, -exponent)
        if exponent == -0.5:
            return Expr("rsqrt", (a,))
        return None if positive is None else Expr("reciprocal", (positive,))
    if exponent == 0.5:
        return Expr("sqrt", (a,))
    if exponent in (2, 3):
        return Expr("pow", (a,), number=int(exponent))
    if exponent == 1:
        return a
    return Expr("pow", (Expr("pow", (a,), number=2),), number=2) if exponent == 4 else None


def factors(expr: Expr) -> list[tuple[Expr, int]]:
    """A product as its factors with exponents 1 or -1; a negation is a factor of -1."""
    if expr.word == "mul":
        return factors(expr.args[0]) + factors(expr.args[1])
    if expr.word == "div":
        return factors(expr.args[0]) + [(f, -sign) for f, sign in factors(expr.args[1])]
    if expr.word == "neg":
        return [(number(-1), 1), *factors(expr.args[0])]
    return [(expr, 1)]


def product(parts: list[tuple[Expr, int]]) -> Expr:
    """The inverse of factors; 1 for none."""
    result = number(1)
    for part, sign in sorted(parts, key=lambda p: -p[1]):
        result = mul(result, part) if sign > 0 else div(result, part)
    return result


def halve(expr: Expr, half: str, group: Dim | None) -> Expr:
    """low, high, even or odd of an expression: nothing is cut where it does not vary along the columns."""
    return Expr(half, (expr,), dim=group) if COL in sides(expr) else expr


def _is_number(expr: Expr, value: float) -> bool:
    return expr.word == "number" and expr.number == value


def _folded(word: str, a: Expr, b: Expr, compute: Callable[[float, float], float]) -> Expr:
    if a.number is not None and b.number is not None and a.word == b.word == "number":
        return number(compute(a.number, b.number))
    return Expr(word, (a, b))

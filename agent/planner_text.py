"""Expressions as text: precedence, numbers, and which values deserve a local name and which one."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from coda_synth.agent.planner_expr import BINDERS, COL, HALVES, Expr, sides
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.words import NAMES

_OPERATORS = {"or": ("|", 1), "and": ("&", 2), "add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5)}
_OPERATORS |= {"lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 3), "ne": ("!=", 3)}
_SEVERAL = {"rotation": ("c", "s"), "tile_moments": ("mean", "m2"), "total_moments": ("mu", "var")}
_LEAVES = ("load", "number", "pi", "size")
_ATOM, _POWER, _UNARY = 9, 8, 7
WIDE = 96  # a returned expression longer than this is cut at its product


class Body:
    """The straight line of one unit: local names in order, and its outputs.

    read: how a load is written; dims: how a dim is written in this unit; product: how the gemm is written; pair: names
    for even and odd columns.
    """

    def __init__(
        self,
        outputs: Mapping[str, Expr],
        read: Callable[[Expr], str],
        dims: Callable[[Dim], str],
        taken: Iterable[str],
        product: str = "",
        pair: tuple[str, str] = ("a", "b"),
    ) -> None:
        self.outputs, self.read, self.dims, self.pair = outputs, read, dims, pair
        self.product = product
        self.product = product
        self.taken = {*taken, *NAMES, *keyword.kwlist, "pi", "inf"}
        self.names: dict[Expr, str] = {}
        self.lines: list[str] = []
        self._order = list(ordered(outputs.values()))
        self._uses = Counter(a for e in self._order for a in e.args) + Counter(outputs.values())
        for e in self._order:
            self._consider(e)
        self.returned = {name: self.text(value) for name, value in outputs.items()}

    def _consider(self, e: Expr) -> None:
        if e in self.names or e.word in _LEAVES:
            return
        if e.word in _SEVERAL:
            self._unpack(e, [Expr("part", (e,), number=i) for i in (0, 1)], _SEVERAL[e.word])
        elif e.word in (*HALVES, *HALVES.values()):
            self._halves(e)
        elif self._uses[e] > 1 and e.word != "cycle":
            self._assign(e)
        elif e.word == "gemm" and any(self._length(v) > WIDE for v in self.outputs.values()):
            self._assign(e)

    def _halves(self, e: Expr) -> None:
        """Both halves in one line where either is used twice; a half used once stands where it is used."""
        first, second = next((a, b) for a, b in HALVES.items() if e.word in (a, b))
        both = [Expr(word, e.args, dim=e.dim) for word in (first, second)]
        if max(self._uses[b] for b in both) > 1:
            if all(self._uses[b] for b in both):
                self._unpack(None, both, self.pair if first == "even" else ("a", "b"))
            else:
                self._assign(e)

    def _unpack(self, source: Expr | None, parts: list[Expr], wanted: tuple[str, str]) -> None:
        value = self.text(source) if source else ", ".join(self.text(p) for p in parts)
        names = [self._name(w) for w in wanted]
        self.lines.append(f"{', '.join(names)} = {value}")
        self.names.update(zip(parts, names, strict=True))

    def _assign(self, e: Expr) -> None:
        value = self.text(e)
        name = self._name(self._wanted(e))
        self.lines.append(f"{name} = {value}")
        self.names[e] = name

    def _wanted(self, e: Expr) -> str:
        known = next((name for name, value in self.outputs.items() if value == e), None)
        if known and known not in self.taken:
            return known
        if any(w.word == "gemm" for w in ordered([e])):
            return "z" if e.word == "gemm" or (e.word == "mul" and e.args[0].word == "gemm") else "h"
        return {"total_logsumexp": "total", "ne": "kept", "tanh": "t", "sigmoid": "t", "div": "t"}.get(
            e.word, "v" if COL in sides(e) else "r"
        )

    def _name(self, wanted: str) -> str:
        name = next(n for n in (wanted, *(f"{wanted}{i}" for i in range(2, 1000))) if n not in self.taken)
        self.taken.add(name)
        return name

    def _length(self, value: Expr) -> int:
        return len(self.text(value))

    # -- text

    def text(self, e: Expr, least: int = 0) -> str:
        """An expression, in brackets where its operator binds less than `least`."""
        written, binds = self._written(e)
        return f"({written})" if binds < least else written

    def _written(self, e: Expr) -> tuple[str, int]:
        if e in self.names:
            return self.names[e], _ATOM
        if e.word in _OPERATORS:
            symbol, binds = _OPERATORS[e.word]
            right = binds + (e.word in ("sub", "div") or binds == 3 or e.args[1].word in ("sub", "div"))
            return f"{self.text(e.args[0], binds + (binds == 3))} {symbol} {self.text(e.args[1], right)}", binds
        if e.word in ("neg", "not"):
            return ("-" if e.word == "neg" else "~") + self.text(e.args[0], _UNARY), _UNARY
        if e.word == "pow":
            return f"{self.text(e.args[0], _ATOM)} ** {e.number}", _POWER
        if e.word == "number":
            return _number(e.number)
        return self._call(e), _ATOM

    def _call(self, e: Expr) -> str:
        if e.word == "load":
            return self.read(e)
        if e.word in ("gemm", "pi"):
            return self.product if e.word == "gemm" else "pi"
        word = "sum" if e.word == "total" else e.word
        arguments = [self.text(a) for a in e.args]
        if e.dim is not None and e.word not in ("total",):
            arguments.append(str(e.dim) if e.dim.is_number else f'"{self.dims(e.dim)}"')
        if e.word == "cast":
            arguments.append(f'"{e.name}"')
        return f"{word}({', '.join(arguments)})"


def _number(value: float | int | None) -> tuple[str, int]:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return ("inf", _ATOM) if value > 0 else ("-inf", _UNARY)
    return repr(value), _ATOM if value is not None and value >= 0 else _UNARY


def ordered(values: Iterable[Expr]) -> Iterable[Expr]:
    """Every distinct expression of a unit, arguments first; a gemm's operands are not a unit's own."""
    seen: set[Expr] = set()

    def visit(e: Expr) -> Iterable[Expr]:
        if e in seen:
            return
        seen.add(e)
        if e.word not in BINDERS or e.word == "pick":
            for a in e.args:
                yield from visit(a)
        yield e

    for value in values:
        yield from visit(value)

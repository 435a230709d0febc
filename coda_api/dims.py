"""Dimensions of the language: a number times a product of symbols, exact and comparable by name, never by size."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda_synth.coda_api.parsing import parse_expression


class DimSyntaxError(ValueError):
    """The text is not a product of a number and symbols."""


class DimSizeError(ValueError):
    """The dimension is not a whole, positive number under these sizes, or two tensors disagree about it."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A monomial `scale * product(symbol ** power)`, as in "N", "2*N", "N/2" or "N/H"."""

    scale: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def number(value: int | Fraction) -> Dim:
        return Dim(Fraction(value))

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim(Fraction(1), ((name, 1),))

    @staticmethod
    def parse(text: str) -> Dim:
        """Reads "2*N", "N/H", "128"; raises DimSyntaxError."""
        try:
            tree = parse_expression(str(text).strip())
        except SyntaxError:
            raise DimSyntaxError(f"{text!r} is not a dimension") from None
        return _build(tree, text)

    def __mul__(self, other: Dim | int) -> Dim:
        other = other if isinstance(other, Dim) else Dim.number(other)
        powers = dict(self.powers)
        for name, power in other.powers:
            powers[name] = powers.get(name, 0) + power
        return Dim(self.scale * other.scale, tuple(sorted((n, p) for n, p in powers.items() if p)))

    def __truediv__(self, other: Dim | int) -> Dim:
        other = other if isinstance(other, Dim) else Dim.number(other)
        return self * Dim(1 / other.scale, tuple((n, -p) for n, p in other.powers))

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols it is made of, numerator only: {"N"} of "N/H"."""
        return frozenset(n for n, p in self.powers if p > 0)

    @property
    def all_symbols(self) -> frozenset[str]:
        return frozenset(n for n, _ in self.powers)

    @property
    def is_number(self) -> bool:
        return not self.powers

    def substitute(self, binding: Mapping[str, Dim]) -> Dim:
        """Replaces every symbol; a symbol that `binding` lacks raises KeyError."""
        result = Dim(self.scale)
        for name, power in self.powers:
            for _ in range(abs(power)):
                result = result * binding[name] if power > 0 else result / binding[name]
        return result

    def exact(self, sizes: Mapping[str, int]) -> Fraction:
        """Its length under `sizes`, whole or not."""
        value = self.scale
        for name, power in self.powers:
            value *= Fraction(sizes[name]) ** power
        return value

    def size(self, sizes: Mapping[str, int]) -> int:
        """Its length under `sizes`; raises DimSizeError where that is no whole positive number."""
        value = self.exact(sizes)
        if value.denominator != 1 or value < 1:
            shown = ", ".join(f"{n} = {sizes[n]}" for n, _ in self.powers)
            raise DimSizeError(f'the dimension "{self}" is {value} with {shown}; it must be a whole number')
        return int(value)

    def __str__(self) -> str:
        over = [n for n, p in self.powers for _ in range(p)]
        under = [n for n, p in self.powers for _ in range(-p)]
        if self.scale.numerator != 1 or not over:
            over = [str(self.scale.numerator), *over]
        if self.scale.denominator != 1:
            under = [str(self.scale.denominator), *under]
        return "*".join(over) + "".join(f"/{n}" for n in under)

    def __repr__(self) -> str:
        return f'Dim("{self}")'


def _build(node: ast.expr, text: str) -> Dim:
    if isinstance(node, ast.Name):
        return Dim.symbol(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0:
        return Dim.number(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _build(node.left, text) * _build(node.right, text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _build(node.left, text) / _build(node.right, text)
    raise DimSyntaxError(f'{text!r} is not a dimension; write a product of a number and symbols, as in "2*N" or "N/H"')


def bind_sizes(shapes: list[tuple[str, tuple[Dim, ...], tuple[int, ...]]]) -> dict[str, int]:
    """The size of every symbol, from (name, dims, shape) triples; raises DimSizeError where they disagree.

    A symbol is solved from the first tensor in which it is the only unknown; then every dimension is verified.
    """
    pending = [(name, dim, length) for name, dims, shape in shapes for dim, length in zip(dims, shape, strict=True)]
    sizes: dict[str, int] = {}
    progress = True
    while progress:
        progress = False
        for name, dim, length in pending:
            unknown = [s for s in dim.all_symbols if s not in sizes]
            if len(unknown) != 1:
                continue
            sizes[unknown[0]] = _solve(name, dim, length, unknown[0], sizes)
            progress = True
    for name, dim, length in pending:
        missing = [s for s in dim.all_symbols if s not in sizes]
        if missing:
            raise DimSizeError(f"the size of {missing[0]} does not follow from any tensor")
        if dim.size(sizes) != length:
            raise DimSizeError(f'{name}: the dimension "{dim}" is {dim.size(sizes)}, but the tensor has {length}')
    return sizes


def _solve(name: str, dim: Dim, length: int, symbol: str, sizes: Mapping[str, int]) -> int:
    rest, power = Fraction(dim.scale), 1
    for other, p in dim.powers:
        if other == symbol:
            power = p
        else:
            rest *= Fraction(sizes[other]) ** p
    value = Fraction(length) / rest if power == 1 else rest / Fraction(length)
    if abs(power) != 1 or value.denominator != 1 or value < 1:
        raise DimSizeError(f'{name}: a length of {length} does not fit the dimension "{dim}"')
    return int(value)

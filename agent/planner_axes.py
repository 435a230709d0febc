"""Coordinates: where in a tile an element of a traced tensor lies, kept exact through views, slices and concatenations.

A tensor's axis is addressed by a tuple of atoms, outermost first; an axis of length 1 by (). It knows nothing of
operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from coda_synth.coda_api.dims import Dim

ONE = Dim.number(1)
TWO = Dim.number(2)


class AxisError(ValueError):
    """A view or a cut that coordinates of this kind cannot follow; the message says which."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A run of positions along one side of the tile.

    side: "row" or "col". dim: how many; stride: how far apart, in positions of the side; extent: the length of
    the whole side. half: "low", "high", "even" or "odd" where it addresses that half of an axis twice as long.
    """

    side: str
    dim: Dim
    stride: Dim
    extent: Dim
    half: str = ""

    @property
    def visible(self) -> Dim:
        """The length of the axis that it addresses."""
        return self.dim * 2 if self.half else self.dim


Axis = tuple[Atom, ...]


def whole(side: str, dim: Dim) -> Axis:
    """An axis that is a whole side of the tile."""
    return (Atom(side, dim, ONE, dim),)


def merged(axis: Axis) -> Axis:
    """The same coordinates in as few atoms as possible."""
    result: list[Atom] = []
    for atom in axis:
        last = result[-1] if result else None
        if last and not last.half and last.side == atom.side and _contiguous(last, atom):
            result[-1] = replace(atom, dim=last.dim * atom.dim)
        else:
            result.append(atom)
    return tuple(result)


def _contiguous(outer: Atom, inner: Atom) -> bool:
    """low and high halves keep their group, so they stay apart."""
    return (
        inner.half not in ("low", "high") and outer.stride == inner.stride * inner.dim and outer.extent == inner.extent
    )


def regroup(axes: tuple[Axis, ...], shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[Axis, ...]:
    """The coordinates of a tensor of this shape, of which `axes` addresses a view; raises AxisError."""
    left = list(merged(tuple(itertools.chain(*axes))))
    result: list[Axis] = []
    for length in reversed(shape):
        taken: list[Atom] = []
        while length > 1:
            if not left:
                raise AxisError("a view of a tensor that is broadcast")
            atom = left.pop()
            visible = atom.visible.size(sizes)
            if length % visible == 0:
                taken.insert(0, atom)
                length //= visible
            elif visible % length == 0:
                outer, inner = _split(atom, length, sizes)
                left.append(outer)
                taken.insert(0, inner)
                length = 1
            else:
                raise AxisError(f"a view that cuts an axis of {atom.visible} across")
        result.insert(0, tuple(taken))
    return tuple(result)


def _split(atom: Atom, length: int, sizes: Mapping[str, int]) -> tuple[Atom, Atom]:
    """An atom as an outer one and an inner one that addresses `length` positions."""
    inner_dim = named(atom.visible, length, sizes)
    if atom.half in ("low", "high"):
        raise AxisError("a view that cuts half of a group once more")
    if atom.half:
        inner_dim = inner_dim / 2
    inner = replace(atom, dim=inner_dim)
    return replace(atom, dim=atom.dim / inner_dim, stride=atom.stride * inner_dim, half=""), inner


def named(dim: Dim, length: int, sizes: Mapping[str, int]) -> Dim:
    """The simplest divisor of `dim`, as a product of its symbols, that has this length."""
    choices = [[(name, p) for p in range(min(0, power), max(0, power) + 1)] for name, power in dim.powers]
    found: list[Dim] = []
    for powers in itertools.product(*choices):
        product = Dim(Fraction(1), tuple((n, p) for n, p in powers if p))
        value = Fraction(1)
        for name, power in product.powers:
            value *= Fraction(sizes[name]) ** power
        found.append(product * Dim.number(Fraction(length) / value))
    return min(found, key=lambda d: (d.scale.numerator + d.scale.denominator, str(d)))


def cut(axis: Axis, half: str) -> Axis:
    """The coordinates of an axis twice as long, of which `axis` addresses that half; raises AxisError."""
    axis = merged(axis)
    last = axis[-1] if axis else None
    if last is None or last.half or last.side != "col" or last.stride != ONE:
        raise AxisError("a cut through anything but the innermost columns")
    if half in ("low", "high") and len(axis) > 1:
        raise AxisError("a cut through the middle of several groups")
    return (*axis[:-1], replace(last, half=half))


def piece(axis: Axis, count: int) -> tuple[int, Axis] | None:
    """Which of two equal pieces of an axis of `count` elements this addresses, and where in it; None for both."""
    axis = merged(axis)
    last = axis[-1] if axis else None
    if len(axis) == 1 and last and last.half in ("low", "high"):
        return ("low", "high").index(last.half), (replace(last, half=""),)
    if len(axis) == 1 and last and last.half and count == 2:
        return ("even", "odd").index(last.half), ()
    return None


def uncut(axis: Axis) -> tuple[str, Dim | None, Axis]:
    """A halved axis as the half ("" for none), its group (None for even and odd), and the coordinates of the whole."""
    axis = merged(axis)
    if not axis or not any(a.half for a in axis):
        return "", None, axis
    last = axis[-1]
    if not last.half or any(a.half for a in axis[:-1]) or last.stride != ONE:
        raise AxisError("halves of halves")
    outer = [replace(a, stride=a.stride * 2, extent=a.extent * 2) for a in axis[:-1]]
    inner = Atom(last.side, last.dim * 2, ONE, last.extent * 2)
    return last.half, inner.dim if last.half in ("low", "high") else None, merged((*outer, inner))


def halved(side: str, dim: Dim, group: Dim, half: str) -> Axis:
    """A whole side of length `dim`, of which one half of every group is addressed."""
    if group == TWO:
        return (Atom(side, dim / 2, ONE, dim / 2, {"low": "even", "high": "odd"}[half]),)
    lane = Atom(side, group / 2, ONE, dim / 2, half)
    return (lane,) if group == dim else (Atom(side, dim / group, group / 2, dim / 2), lane)

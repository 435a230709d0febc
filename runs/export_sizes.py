"""Python text for the sizes of an exported package: how each symbol follows from a shape, and dims as arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coda_synth.coda_api.dims import Dim


class SizeError(ValueError):
    """A symbol whose size follows from no tensor."""


def dim_text(dim: Dim) -> str:
    """ "2 * F", "H // 2", "HQ * H": an int expression; whole for every size that the checks let through."""
    over = [name for name, power in dim.powers for _ in range(power)]
    under = [name for name, power in dim.powers for _ in range(-power)]
    if dim.scale.numerator != 1 or not over:
        over = [str(dim.scale.numerator), *over]
    if dim.scale.denominator != 1:
        under = [str(dim.scale.denominator), *under]
    return " * ".join(over) + "".join(f" // {name}" for name in under)


def shape_text(dims: Sequence[Dim]) -> str:
    """ "(T, 2 * F)", "(T,)", "()"."""
    inside = ", ".join(map(dim_text, dims))
    return f"({inside},)" if len(dims) == 1 else f"({inside})"


def solved(tensors: Iterable[tuple[str, Sequence[Dim]]], known: Iterable[str] = ()) -> list[tuple[str, str]]:
    """(symbol, expression) for every symbol of the tensors that is not known yet, in an order that works.

    Each comes from the first dim in which it is the only unknown. Raises SizeError.
    """
    places = [(f"{name}.shape[{i}]", dim) for name, dims in tensors for i, dim in enumerate(dims)]
    found: dict[str, str] = dict.fromkeys(known, "")
    lines: list[tuple[str, str]] = []
    while True:
        step = next(((p, d, u[0]) for p, d in places if len(u := sorted(d.all_symbols - set(found))) == 1), None)
        if step is None:
            break
        place, dim, symbol = step
        found[symbol] = place
        lines.append((symbol, _inverse(place, dim, symbol)))
    missing = {s for _, d in places for s in d.all_symbols} - set(found)
    if missing:
        raise SizeError(f"the size of {min(missing)} follows from no tensor alone")
    return lines


def _inverse(place: str, dim: Dim, symbol: str) -> str:
    """The symbol, from the length of a dim that is a multiple of it."""
    rest = dim / Dim.symbol(symbol)
    if symbol in rest.all_symbols:
        raise SizeError(f'the dimension "{dim}" does not give {symbol}')
    quotient = Dim.number(1) / rest
    over = [place, *(n for n, p in quotient.powers for _ in range(p))]
    if quotient.scale.numerator != 1:
        over.append(str(quotient.scale.numerator))
    under = [n for n, p in quotient.powers for _ in range(-p)]
    if quotient.scale.denominator != 1:
        under.append(str(quotient.scale.denominator))
    return " * ".join(over) + "".join(f" // {name}" for name in under)

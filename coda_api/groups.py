"""Groups of columns: what one spans of the product, and how many places of a tile it takes.

A tile is a power of two wide, and registers fold in powers of two only. So a group that is no power of two takes the
next one of places: its columns first, then places that hold nothing. Everything that is done with groups stays a
reshape; only the addresses of columns, the masks and the number of tiles change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.program import Call, Kernel, Program, Value, walk
from coda_synth.coda_api.schedule import Schedule

_NARROW = 16  # groups of fewer columns are not worth slices of their own
_PAIRS = ("even", "odd", "interleave")
HALVES = ("low", "high", "join")
GROUPS = ("group_sum", "group_max", "group_min", "spread")


@dataclass(frozen=True, slots=True)
class Padding:
    """Every `columns` product columns take `places` of the tile; both are 1 where each column simply has its place."""

    columns: int = 1
    places: int = 1

    def __bool__(self) -> bool:
        return self.places > self.columns

    def __str__(self) -> str:
        idle = 100 * (1 - self.columns / self.places)
        return (
            f"groups of {self.columns} columns take {self.places} places of the tile each, the next power of two,"
            f" so {idle:.3g} % of it is computed for nothing"
        )

    def taken(self, columns: int) -> int:
        """Places that a group of so many product columns takes."""
        return columns // self.columns * self.places if columns % self.columns == 0 else columns

    def ratio(self, real: Fraction) -> Fraction:
        """Places of a value for one place of the product, from its columns for one column of the product."""
        run = real * self.columns  # columns of the value in one group
        if not self or run.denominator == 1 and power_of_two(real):
            return real
        if run.numerator == 1 and power_of_two(run):
            return run / self.places
        raise LoweringError(f"values of {1 / real} columns each have no place beside groups of {self.columns} columns")


def column_ratio(kernel: Kernel, cols: Dim, sizes: Mapping[str, int]) -> Fraction:
    """Columns of `cols` for one product column: 1/2 for a half tile, 2 for a double one, 1/128 for group values."""
    value = (cols / kernel.cols).scale
    for symbol, power in (cols / kernel.cols).powers:
        value *= Fraction(sizes[symbol]) ** power
    return value


def grouped_columns(value: Value) -> Dim:
    """The columns that the groups of a word lie in."""
    whole = value if value.word in ("spread", "join") else value.args[0]
    assert whole.cols is not None
    return whole.cols


def group_size(value: Value, sizes: Mapping[str, int]) -> int:
    group = value.attrs["group"]
    assert isinstance(group, Dim)
    return group.size(sizes)


def product_columns(kernel: Kernel, value: Value, sizes: Mapping[str, int]) -> int:
    """Columns of the product that one group of a word spans, or several where its tile is a double one: more than its
    own where its tile is a half one."""
    size: Fraction = group_size(value, sizes) / column_ratio(kernel, grouped_columns(value), sizes)
    return size.numerator


def padding(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int]) -> Padding:
    """How the groups of a kernel lie in its tile, by the narrowest that is no power of two."""
    odd = min((g for g, _ in spans(kernel, live, sizes) if not power_of_two(g)), default=1)
    return Padding(odd, 1 << (odd - 1).bit_length())


def spans(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int]) -> list[tuple[int, Value]]:
    """Columns of the product that must lie together: those of a word's group, and those that a "N/96" lies over."""
    found = []
    for v in walk(live):
        if v.word in (*HALVES, *GROUPS):
            found.append((product_columns(kernel, v, sizes), v))
        if _over(kernel, v):
            found.append((_ratio(kernel, v, sizes).denominator, v))
    return found


def _over(kernel: Kernel, value: Value) -> bool:
    """Whether a value lies along the columns of the tile."""
    return value.cols is not None and bool(value.cols.symbols & kernel.cols.symbols)


def _ratio(kernel: Kernel, value: Value, sizes: Mapping[str, int]) -> Fraction:
    assert value.cols is not None
    return column_ratio(kernel, value.cols, sizes)


def halved_group(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int]) -> int:
    """The group whose halves a tile is walked by, in columns, 0 where there is none: all halves are of groups of the
    product that are so wide, and every value is as wide as the product, half as wide, or has a column a group."""
    values = list(walk(live))
    found = {product_columns(kernel, v, sizes) for v in values if v.word in HALVES}
    grouped = {product_columns(kernel, v, sizes) for v in values if v.word in GROUPS}
    own = {grouped_columns(v) for v in values if v.word in HALVES} == {kernel.cols}
    if len(found) != 1 or grouped - found or not own or any(v.word in _PAIRS for v in values):
        return 0
    (group,) = found
    if group < _NARROW and power_of_two(group):
        return 0
    widths = {_ratio(kernel, v, sizes) for v in values if _over(kernel, v)}
    return group if widths <= {Fraction(1), Fraction(1, 2), Fraction(1, group)} else 0


def misfits(
    kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], block_n: int
) -> Iterator[tuple[Value, str]]:
    """Why a tile of block_n places cannot hold the columns of a kernel's values: each reason with the value where it
    shows, as it is written. sizes: of the kernel's local symbols."""
    for value in walk(live):
        if value.word in (*HALVES, *GROUPS):
            yield from ((value, message) for message in _uneven(kernel, value, sizes))
        elif _over(kernel, value) and not power_of_two(_ratio(kernel, value, sizes).numerator):
            times = _ratio(kernel, value, sizes)
            yield value, f'"{value.cols}" has {times} times the columns "{kernel.cols}" of the tile, no power of two'
    padded, walked = padding(kernel, live, sizes), halved_group(kernel, live, sizes)
    for columns, value in spans(kernel, live, sizes):
        places = padded.taken(columns)
        takes = f" takes {places} places, the next power of two, and" if places > columns else ""
        if places > block_n:
            yield value, f"a group of {columns} columns of the product{takes} must fit the tile (block_n = {block_n})"
        elif padded and padded.columns % columns and not power_of_two(Fraction(columns, padded.columns)):
            yield (
                value,
                f"groups of {columns} and of {padded.columns} columns cannot share a tile: {padded.columns} is no power"
                " of two, so the other must divide it and be a power of two, or be 2, 4, 8, ... times as wide",
            )
        elif padded and value.word in HALVES and not walked:
            yield (
                value,
                f"{value.word} beside groups of {padded.columns} columns, no power of two: there halves are of one size"
                " of groups of the whole product, and stand beside no pairs and no other groups",
            )


def _uneven(kernel: Kernel, value: Value, sizes: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with the size of one word's group."""
    cols, group = grouped_columns(value), group_size(value, sizes)
    columns = cols.size(sizes)
    if columns % group:
        yield f'groups of {group} columns do not divide the {columns} columns of "{cols}"'
    elif value.word in HALVES and group % 2:
        yield f"a group of {group} columns has no two halves"
    elif (group / column_ratio(kernel, cols, sizes)).denominator != 1 and not power_of_two(group):
        yield f'groups of {group} columns of "{cols}" begin inside a column of "{kernel.cols}"'


def tile_step(program: Program, call: Call, sizes: Mapping[str, int], schedule: Schedule) -> int:
    """Columns of the product that one tile of a kernel call computes; whether it holds a group at all, `geometry` says.

    sizes: of the program's symbols.
    """
    assert isinstance(call.unit, Kernel)
    live = {name: call.unit.outputs[name] for name in program.live_outputs(call)}
    local = {symbol: dim.size(sizes) for symbol, dim in call.binding.items()}
    padded = padding(call.unit, live, local)
    return max(1, schedule.block_n // padded.places) * padded.columns


def power_of_two(value: Fraction | int) -> bool:
    """Whether a number is 1, 2, 4, ... or 1/2, 1/4, ..."""
    return all(n & (n - 1) == 0 for n in (value.numerator, value.denominator))

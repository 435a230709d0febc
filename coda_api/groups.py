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
from coda_synth.coda_api.schedule import ALLOWED, Schedule

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
    own = {grouped_columns(v) for v in values if v.word in (*HALVES, *GROUPS)} == {kernel.cols}
    if len(found) != 1 or grouped - found or not own or any(v.word in _PAIRS for v in values):
        return 0
    (group,) = found
    if group < _NARROW and power_of_two(group):
        return 0
    widths = {_ratio(kernel, v, sizes) for v in values if _over(kernel, v)}
    return group if widths <= {Fraction(1), Fraction(1, 2), Fraction(1, group)} else 0


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a tile cannot hold the columns of a value, and what one can. value: where it shows, as it is written."""

    value: Value
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.value.line}:{self.value.column}: {self.value.word}: {self.why}; {self.remedy}"


def misfits(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], block_n: int) -> Iterator[Misfit]:
    """What a tile of block_n places cannot hold of a kernel's values. sizes: of the kernel's local symbols."""
    for value in walk(live):
        if value.word in (*HALVES, *GROUPS):
            yield from _uneven(kernel, value, sizes)
        elif _over(kernel, value) and not power_of_two(_ratio(kernel, value, sizes).numerator):
            why = f'"{value.cols}" has {_ratio(kernel, value, sizes)} times the tile\'s columns "{kernel.cols}"'
            yield Misfit(value, why, "a tile holds a part of them, as many, or 2, 4, 8, ... times as many")
    padded, walked = padding(kernel, live, sizes), halved_group(kernel, live, sizes)
    for columns, value in spans(kernel, live, sizes):
        if value.word not in (*HALVES, *GROUPS) and any(value.cols == arg.cols for arg in value.args):
            continue  # as wide as what it is made of
        places, odd = padded.taken(columns), padded.columns
        takes = f" takes {places} places, the next power of two, and" if places > columns else ""
        if places > block_n:
            why = f"a group of {columns} columns of the product{takes} must fit the tile (block_n = {block_n})"
            yield Misfit(value, why, _wider(places))
        elif padded and odd % columns and not power_of_two(Fraction(columns, odd)):
            yield Misfit(
                value,
                f"groups of {columns} and of {odd} columns cannot share a tile, since {odd} is no power of two",
                f"beside it there may be groups of 2, 4, 8, ... columns that divide {odd}, or 2, 4, ... times as wide",
            )
        elif padded and value.word in HALVES and not walked:
            yield Misfit(
                value,
                f"these halves have no place beside groups of {odd} columns, since {odd} is no power of two",
                "there all halves are of groups of one size of the whole product, without pairs or groups of another",
            )


def _wider(places: int) -> str:
    widest = max(n for n in ALLOWED["block_n"] if isinstance(n, int))
    if places <= widest:
        return f"write block_n={places} or more, or leave it out"
    return f"no tile has more than {widest}: leave partials with tile_... and finish them in a @finisher"


def _uneven(kernel: Kernel, value: Value, sizes: Mapping[str, int]) -> Iterator[Misfit]:
    """What is wrong with the size of one word's group."""
    cols, group = grouped_columns(value), group_size(value, sizes)
    columns = cols.size(sizes)
    if columns % group:
        why = f'groups of {group} columns do not divide the {columns} columns of "{cols}"'
        yield Misfit(value, why, "use a group that does")
    elif value.word in HALVES and group % 2:
        yield Misfit(value, f"a group of {group} columns has no two halves", "use an even number of columns")
    elif (group / column_ratio(kernel, cols, sizes)).denominator != 1 and not power_of_two(group):
        why = f'groups of {group} columns of "{cols}" begin inside a column of "{kernel.cols}"'
        yield Misfit(value, why, "use an even number of columns")


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

"""Groups of columns: what one spans of the product, and how many places of a tile it takes.

A tile is a power of two wide, and registers fold in powers of two only. So a group that is no power of two takes the
next one of places: its columns first, then places that hold nothing. Everything that is done with groups stays a
reshape; only the addresses of columns, the masks and the number of tiles change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.program import Call, Kernel, Program, Value, walk
from coda_synth.coda_api.schedule import Schedule

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

    def check_fit(self, columns: int, block_n: int) -> None:
        """Raises LoweringError where a tile of block_n places cannot hold a group of so many product columns."""
        places = self.taken(columns)
        takes = f" takes {places} places, the next power of two, and" if places > columns else ""
        if places > block_n:
            raise LoweringError(f"a group of {columns} columns{takes} must fit the tile (block_n = {block_n})")

    def ratio(self, real: Fraction) -> Fraction:
        """Places of a value for one place of the product, from its columns for one column of the product."""
        if not self:
            return real
        run = real * self.columns  # columns of the value in one group
        if run.denominator == 1 and _power_of_two(real):
            return real
        if run.numerator == 1 and _power_of_two(run):
            return run / self.places
        raise LoweringError(
            f"values of {1 / real} columns each cannot meet groups of {self.columns} columns in one kernel"
        )


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
    """Columns of the product that one group of a word spans: more than its own where its tile is a half one."""
    cols = grouped_columns(value)
    size = group_size(value, sizes) / column_ratio(kernel, cols, sizes)
    if size.denominator != 1 or (value.word in HALVES and cols != kernel.cols):
        place = f"{value.line}:{value.column}"
        raise LoweringError(f'{place}: {value.word} over "{cols}"; it is lowered for tiles over "{kernel.cols}"')
    return int(size)


def padding(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int]) -> Padding:
    """How the groups of a kernel lie in its tile; raises LoweringError where two sizes cannot share one."""
    values = list(walk(live))
    groups = {product_columns(kernel, v, sizes) for v in values if v.word in (*HALVES, *GROUPS)}
    over = {v.cols for v in values if v.cols is not None and v.cols.symbols & kernel.cols.symbols}
    groups |= {column_ratio(kernel, cols, sizes).denominator for cols in over}  # what a "N/96" lies over
    odd = min((g for g in groups if not _power_of_two(Fraction(g))), default=1)
    for group in groups if odd > 1 else ():
        if odd % group and not _power_of_two(Fraction(group, odd)):
            raise LoweringError(
                f"groups of {group} and of {odd} columns cannot share a tile: {odd} is no power of two, so the other"
                " must divide it or be 2, 4, 8, ... times as wide"
            )
    return Padding(odd, 1 << (odd - 1).bit_length())


def tile_step(program: Program, call: Call, sizes: Mapping[str, int], schedule: Schedule) -> int:
    """Columns of the product that one tile of a kernel call computes; whether it holds a group at all, `geometry` says.

    sizes: of the program's symbols.
    """
    assert isinstance(call.unit, Kernel)
    live = {name: call.unit.outputs[name] for name in program.live_outputs(call)}
    local = {symbol: dim.size(sizes) for symbol, dim in call.binding.items()}
    padded = padding(call.unit, live, local)
    return max(1, schedule.block_n // padded.places) * padded.columns


def _power_of_two(value: Fraction) -> bool:
    return all(n & (n - 1) == 0 for n in (value.numerator, value.denominator))

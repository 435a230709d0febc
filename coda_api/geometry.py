"""Where the columns of an epilogue's values lie: a kernel's tile is walked in slices, and every value has a width in
proportion to the product's. Two ways to walk: by adjacent columns, and by halves (a slice holds the same columns of
both halves of each group, so that rotate-half renames registers and slices may be narrower than a group). The second
serves halves of one size of groups of the product; beside anything else a slice holds whole groups and their halves are
split off. Everything here is in places of the tile; `groups` says how columns lie in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.groups import (
    HALVES,
    Padding,
    column_ratio,
    group_size,
    grouped_columns,
    halved_group,
    misfits,
    padding,
    product_columns,
    spans,
)
from coda_synth.coda_api.program import Kernel, Value, walk
from coda_synth.coda_api.schedule import Schedule

NARROW_SLICE, WIDE_SLICE = 64, 128


@dataclass(frozen=True, slots=True)
class Geometry:
    """How one kernel's tile is walked. All widths in places of the product, one a column unless groups are padded.

    half_group: in a walk by halves the group of low/high/join, else 0. slice_n: places in a slice, of both halves.
    """

    kernel: Kernel
    sizes: Mapping[str, int]  # of the kernel's local symbols
    half_group: int
    slice_n: int
    block_n: int
    padding: Padding

    @property
    def step(self) -> int:
        """Columns of the product that one tile computes."""
        return self.block_n // self.padding.places * self.padding.columns

    @property
    def slices(self) -> int:
        return self.block_n // self.slice_n

    @property
    def segments(self) -> int:
        """Runs of adjacent columns in a slice."""
        return 2 if self.half_group else 1

    @property
    def segment_n(self) -> int:
        return self.slice_n // self.segments

    def ratio(self, cols: Dim) -> Fraction:
        """Places of `cols` for one of the product: 1/2 for a half tile, 2 for a double one, 1/128 for group values."""
        return self.padding.ratio(column_ratio(self.kernel, cols, self.sizes))

    def run(self, cols: Dim) -> tuple[int, int]:
        """So many columns of a value take so many places, over and over; equal where each column has its place."""
        real = column_ratio(self.kernel, cols, self.sizes)
        if not self.padding or self.ratio(cols) != real:
            return 1, 1
        share = min(real, Fraction(1, 2)) if self.half_group else real  # halves lie in segments of their own
        return int(share * self.padding.columns), int(share * self.padding.places)

    def group_places(self, value: Value) -> int:
        """Places of one group of a word, counted in the value that the groups lie in."""
        if not self.padding:
            return group_size(value, self.sizes)
        columns = product_columns(self.kernel, value, self.sizes)
        return int(self.padding.taken(columns) * self.ratio(grouped_columns(value)))

    def segments_of(self, cols: Dim) -> int:
        """A full-width value has every segment; a half or group value of a walk by halves has one."""
        return self.segments if self.ratio(cols) == 1 else 1

    def width(self, cols: Dim) -> int:
        """Columns of one segment of a value in one slice."""
        ratio = self.ratio(cols)
        wide = self.segment_n * ratio if ratio == 1 else self.slice_n * ratio
        if wide.denominator != 1 or wide < 1:
            least = 1 / ratio
            raise LoweringError(
                f'a slice of {self.slice_n} columns holds {wide} of "{cols}"; use slice_n of at least {least}'
            )
        return int(wide)

    def offsets(self) -> list[tuple[int, ...]]:
        """For each slice the first tile column of each of its segments."""
        if not self.half_group:
            return [(i * self.slice_n,) for i in range(self.slices)]
        half, w = self.half_group // 2, self.segment_n
        starts = [g + c for g in range(0, self.block_n, self.half_group) for c in range(0, half, w)]
        return [(start, start + half) for start in starts]


def geometry(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], schedule: Schedule) -> Geometry:
    """The walk of one kernel's tile; raises LoweringError where a tile cannot hold whole groups."""
    for misfit in misfits(kernel, live, sizes, schedule.block_n):
        raise LoweringError(str(misfit))
    padded = padding(kernel, live, sizes)
    half = padded.taken(halved_group(kernel, live, sizes))
    least = max([16, *(padded.taken(n) for n, v in spans(kernel, live, sizes) if not half or v.word not in HALVES)])
    slice_n = schedule.slice_n or default_slice(kernel, live, schedule)
    slice_n = min(schedule.block_n, max(slice_n, least))
    if half:
        slice_n = min(slice_n, half)
    return Geometry(kernel, sizes, half, slice_n, schedule.block_n, padded)


def default_slice(kernel: Kernel, live: Mapping[str, Value], schedule: Schedule) -> int:
    """Wide slices where no tile is loaded, for fewer and larger stores; narrow ones where loads need registers and
    shared memory too; the whole tile in a pointwise kernel, which has no accumulator."""
    if kernel.gemm is None:
        return schedule.block_n
    loads = any(v.word == "param" and v.rows is not None and v.cols is not None for v in walk(live))
    return min(NARROW_SLICE if loads else WIDE_SLICE, schedule.block_n)


def summed_slice(schedule: Schedule) -> int:
    """Where a slice is summed from pieces of K, some of which are on their way at once: 1024 elements of it."""
    return schedule.slice_n or min(schedule.block_n, max(32, 1024 // schedule.block_m))

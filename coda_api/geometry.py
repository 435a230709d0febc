"""Where the columns of an epilogue's values lie: a kernel's tile is walked in slices, and every value has a width in
proportion to the product's. Two ways to walk: "pairs" (adjacent columns stay together) and "halves" (a slice holds the
same columns of both halves of each group, so that rotate-half needs no data movement).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.program import Kernel, Value, walk
from coda_synth.coda_api.schedule import Schedule

_HALVES = ("low", "high", "join")
_PAIRS = ("even", "odd", "interleave")
_GROUPS = ("group_sum", "group_max", "group_min", "spread")
NARROW_SLICE, WIDE_SLICE = 64, 128


@dataclass(frozen=True, slots=True)
class Geometry:
    """How one kernel's tile is walked. All widths in product columns.

    half_group: in halves mode the group of low/high/join, else 0. slice_n: columns in one slice (both halves counted).
    """

    kernel: Kernel
    sizes: Mapping[str, int]  # of the kernel's local symbols
    half_group: int
    slice_n: int
    block_n: int

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
        """Columns of `cols` for one product column: 1/2 for a half tile, 2 for a double one, 1/128 for group values."""
        value = (cols / self.kernel.cols).scale
        for symbol, power in (cols / self.kernel.cols).powers:
            value *= Fraction(self.sizes[symbol]) ** power
        return value

    def segments_of(self, cols: Dim) -> int:
        """A full-width value has every segment; a half or group value of halves mode has one."""
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


def group_size(value: Value, sizes: Mapping[str, int]) -> int:
    group = value.attrs["group"]
    assert isinstance(group, Dim)
    return group.size(sizes)


def _product_columns(kernel: Kernel, value: Value, sizes: Mapping[str, int]) -> int:
    """Columns of the product that one group of a word spans: more than its own where its tile is a half one."""
    whole = value if value.word in ("spread", "join") else value.args[0]
    assert whole.cols is not None
    size = group_size(value, sizes) / Geometry(kernel, sizes, 0, 1, 1).ratio(whole.cols)
    if size.denominator != 1 or (value.word in _HALVES and whole.cols != kernel.cols):
        place = f"{value.line}:{value.column}"
        raise LoweringError(f'{place}: {value.word} over "{whole.cols}"; it is lowered for tiles over "{kernel.cols}"')
    return int(size)


def geometry(kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], schedule: Schedule) -> Geometry:
    """The walk of one kernel's tile; raises LoweringError where a tile cannot hold whole groups."""
    values = list(walk(live))
    words = {v.word for v in values}
    halves = {_product_columns(kernel, v, sizes) for v in values if v.word in _HALVES}
    groups = {_product_columns(kernel, v, sizes) for v in values if v.word in _GROUPS}
    if len(halves) > 1:
        raise LoweringError(f"low, high and join use groups of {sorted(halves)} columns; a kernel has one such group")
    if halves and words & set(_PAIRS):
        raise LoweringError(
            "a kernel works on adjacent pairs (even, odd, interleave) or on halves (low, high, join), not both"
        )
    half = halves.pop() if halves else 0
    for group in groups | ({half} if half else set()):
        if group & (group - 1) or group > schedule.block_n:
            raise LoweringError(
                f"a group of {group} columns must be a power of two and fit the tile (block_n = {schedule.block_n})"
            )
    least = max([16, *groups])
    if half and groups:
        least = max(half, *groups)
    if half and groups - {half}:
        raise LoweringError(f"groups of {sorted(groups)} beside halves of {half} columns; use one size")
    slice_n = schedule.slice_n or default_slice(kernel, live, schedule)
    slice_n = min(schedule.block_n, max(slice_n, least))
    if half:
        slice_n = min(slice_n, half)
    return Geometry(kernel, sizes, half, slice_n, schedule.block_n)


def default_slice(kernel: Kernel, live: Mapping[str, Value], schedule: Schedule) -> int:
    """Wide slices where no tile is loaded, for fewer and larger stores; narrow ones where loads need registers and
    shared memory too; the whole tile in a pointwise kernel, which has no accumulator."""
    if kernel.gemm is None:
        return schedule.block_n
    loads = any(v.word == "param" and v.rows is not None and v.cols is not None for v in walk(live))
    return min(NARROW_SLICE if loads else WIDE_SLICE, schedule.block_n)

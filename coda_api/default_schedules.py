"""The schedules that a kernel starts from where neither its author nor a tuner has said anything.

For large products it follows what was measured on one H200 (docs/hopper.md): two groups of warps that take tiles by
turns hide an epilogue under the other group's mainloop. One wide tile shared by all warps moves fewer bytes through
shared memory, and is faster where the sum is long, where there is little to hide, or where it is too much for one group
alone. For small products it follows from counts (docs/small.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

from coda_synth.coda_api.arithmetic import CHAINED, instructions
from coda_synth.coda_api.program import Form, Kernel, Value
from coda_synth.coda_api.schedule import ALLOWED, Schedule, ScheduleError

H200_SHARED, H200_PROCESSORS = 232448, 132  # bytes that one block may take; multiprocessors
_WIDE_SHARED = 160 * 1024  # the wide tile's stages and, at most, what its epilogue exchanges
POINTWISE = Schedule(block_m=32, block_n=128, block_k=64, stages=2, warps=4, group_m=1)
_SUMMED = replace(POINTWISE, block_m=128)  # sums down its columns: fewer partials, longer sums in a thread
_SUMMED_TOO = replace(_SUMMED, warps=8)  # beside a matrix that is stored: 128 elements a thread would spill
_SUMMED_ALONE = replace(POINTWISE, block_m=256, block_n=64)  # where nothing else takes registers
_GROUPED = replace(POINTWISE, block_n=256, warps=8)  # holds the widest groups
_RUN = 8  # columns that a thread reads at once, of two bytes each
PASSES = (  # what its hints are, in words
    f"A pass without a gemm takes block_m ({POINTWISE.block_m}; {_SUMMED.block_m} where it also sums columns and"
    f" {_SUMMED_ALONE.block_m} where it does nothing else), block_n ({POINTWISE.block_n}; {_SUMMED_ALONE.block_n} then)"
    f" and warps ({POINTWISE.warps}; {_SUMMED_TOO.warps} where it sums columns and stores a matrix) alone: a thread"
    " block for each tile, several at once on a multiprocessor"
)
_TURNS = tuple(Schedule(block_n=128, stages=stages, mainloop="pingpong") for stages in (5, 4))
_BRIEF = 3e11  # multiplications of a product that ends before a card draws all the power that it may
_LASTING = 2e12  # of one that takes so long that every byte moved through shared memory costs clocks
_WELL = 0.9  # of the smaller tile's share of busy processors, which a larger one may lose a tenth of
_LIGHT = 6.5  # instructions an element: hardly worth hiding under a sum of _SUM
_HEAVY, _HEAVY_SLICE = 25.0, 32  # so many that narrower slices, which wait twice as often, are too slow in turns
_HEAVIEST = 40.0  # too many for one group whatever its slices
_SUM = 4096  # the K that is meant; a shorter sum hides less
_LONG_SUM = 8192  # the least K beside which no epilogue is worth the bytes that hiding it costs

FEW_ROWS = 64  # of which a product reads its weight once, bound by memory
_FILLED = 0.7  # the share of the processors that must have a tile
_WIDTHS = (128, 64, 32)
_DEEPEST = 8
_EPILOGUE_SHARED = 32 * 1024  # what the epilogue of a small tile exchanges, at most
_PIECE, _WORTH_CUTTING = 1024, 4096  # of K: the least piece, and the least that is cut, since a second launch must pay


def wide(shared_bytes: int) -> Schedule:
    """The tile shared by all warps, as wide as the shared memory of one block allows: 64 KiB hold the small one."""
    return Schedule() if shared_bytes >= _WIDE_SHARED else Schedule(block_m=64, block_n=128, stages=2)


def default_schedules(
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    form: str,
    shared_bytes: int = H200_SHARED,
    processors: int = H200_PROCESSORS,
) -> tuple[Schedule, ...]:
    """In the order of preference; the last one is always possible. sizes: of the kernel's local symbols."""
    work = instructions(kernel, live, lambda dim: dim.size(sizes))
    if kernel.gemm is None:
        return (_pass(live, work, kernel.cols.size(sizes)), _SUMMED, _GROUPED)  # hints change no more than they say
    last = wide(shared_bytes)
    rows, cols, inner = (d.size(sizes) for d in (kernel.rows, kernel.cols, kernel.gemm.inner))
    if rows <= FEW_ROWS or 2 * _tiles(rows, cols, last) < processors:
        return (*_small(rows, cols, inner, form, shared_bytes, processors), last)
    if form != "hopper":
        return (last,)
    if rows * cols * inner > _LASTING or any(v.word in CHAINED for v in live.values()):
        return (last,)
    if work > _HEAVY:
        hidden = work < _HEAVIEST and inner < _LONG_SUM
        return (replace(_TURNS[0], slice_n=_HEAVY_SLICE), last) if hidden else (last,)
    light = rows * cols * inner < _BRIEF and work * _SUM / inner < _LIGHT
    busy = _busy(rows, cols, last, processors) > _WELL * _busy(rows, cols, _TURNS[0], processors)
    if busy and (light or inner >= _LONG_SUM):
        return (replace(last, group_m=16, mainloop="hopper"), *_TURNS, last)  # where it has no room, turns may have
    return (*_TURNS, last)


def _pass(live: Mapping[str, Value], work: float, cols: int) -> Schedule:
    if cols % _RUN:  # a tall tile's elements one by one, each with an address and a mask, are too many
        return POINTWISE
    summed = [v.form is Form.PARTIAL and v.attrs.get("axis") == 0 for v in live.values()]
    if all(summed):
        return _SUMMED_ALONE
    if not any(summed) or work >= _HEAVY:
        return POINTWISE
    return _SUMMED_TOO if any(v.form is Form.TILE for v in live.values()) else _SUMMED


def hinted(
    defaults: Iterable[Schedule], hints: Mapping[str, object], shared_bytes: int = H200_SHARED
) -> tuple[Schedule, ...]:
    """The defaults with an author's hints in place: a hint changes nothing else. Those are left out that have another
    mainloop than it names, or a smaller tile; those that have the tile it names come first. The last one takes any
    hint: the wide tile, or for turns the deepest pipeline that has room. Raises ScheduleError.
    """
    if hints.get("mainloop") == "auto":
        hints = {name: value for name, value in hints.items() if name != "mainloop"}
    if hints.get("mainloop") == "pingpong":
        last = _TURNS[-1].with_hints(hints)
        return (last,) if "stages" in hints else tuple(replace(last, stages=n) for n in (5, 4, 3, 2))
    last = wide(shared_bytes).with_hints(hints)
    found: list[tuple[bool, Schedule]] = []
    for one in defaults:
        sides = [(getattr(last, name), getattr(one, name)) for name in ("block_m", "block_n") if name in hints]
        if hints.get("mainloop", one.mainloop) == one.mainloop and all(asked <= own for asked, own in sides):
            with suppress(ScheduleError):
                found.append((any(asked != own for asked, own in sides), one.with_hints(hints)))
    return (*(one for _, one in sorted(found, key=lambda pair: pair[0])), last)


def _small(rows: int, cols: int, inner: int, form: str, shared_bytes: int, processors: int) -> Iterator[Schedule]:
    """The largest tile that gives nearly every processor one, unless it is so narrow that twice its width in pieces of
    K is done in fewer steps. Else narrow tiles in pieces, of the two narrowest the one that takes fewer steps: groups
    of columns may need a wider one."""
    least = next((m for m in (16, 32) if rows <= m), 64)
    heights = (128, least) if rows > FEW_ROWS else (least,)
    tiles = [_small_tile(m, n, form, shared_bytes) for m in heights for n in _WIDTHS if m <= n or m == least]
    lowest = [s for s in reversed(tiles) if s.block_m == least] + [_small_tile(least, 256, form, shared_bytes)]
    pieces = [_cut(s, _tiles(rows, cols, s), inner, processors) for s in lowest]
    filled = [s for s in tiles if _tiles(rows, cols, s) >= _FILLED * processors][:1]
    if filled == lowest[:1] and inner >= (_WORTH_CUTTING if rows <= FEW_ROWS else 2 * _WORTH_CUTTING):
        yield from [s for s in pieces[1:2] if s.split_k > 1]
    yield from filled
    yield from sorted(pieces[:2], key=lambda s: _rounds(_tiles(rows, cols, s) * s.split_k, processors) / s.split_k)
    yield from pieces[2:]


def _small_tile(block_m: int, block_n: int, form: str, shared_bytes: int) -> Schedule:
    """As many stages as fit: a step is short, and only many of them on their way keep the memory busy."""
    depth = 32 if form == "pointer" else 64  # pointers and masks take registers, and so many of them as a step has
    warps = 8 if block_m * block_n > 2 * depth * 64 else 4
    one = Schedule(block_m, block_n, depth, 1, warps, mainloop="auto" if block_m >= 64 else "portable")
    stages = (shared_bytes - _EPILOGUE_SHARED) // one.operand_bytes()
    return replace(one, stages=max(2, min(_DEEPEST, stages)))


def _cut(schedule: Schedule, tiles: int, inner: int, processors: int) -> Schedule:
    """With the least split_k that makes the fewest rounds of the processors, each as long as a piece."""
    if inner < _WORTH_CUTTING or 2 * tiles > processors:
        return schedule
    best, shortest = 1, inf
    for pieces in ALLOWED["split_k"]:
        assert isinstance(pieces, int)
        length = _rounds(tiles * pieces, processors) / pieces
        if inner >= pieces * _PIECE and length < shortest:
            best, shortest = pieces, length
    return replace(schedule, split_k=best)


def _busy(rows: int, cols: int, schedule: Schedule, processors: int) -> float:
    """The share of the processors that have a tile, over all rounds."""
    tiles = _tiles(rows, cols, schedule)
    return tiles / processors / _rounds(tiles, processors)


def _rounds(tiles: int, processors: int) -> int:
    return -(-tiles // processors)


def _tiles(rows: int, cols: int, schedule: Schedule) -> int:
    return -(-rows // schedule.block_m) * -(-cols // schedule.block_n)

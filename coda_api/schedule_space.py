"""The schedules worth a try: which shapes a kernel can have on a device, and what lies one step from a schedule.

Only what can be said without lowering: operands that fit into shared memory, a product that fits into registers, and
what the mainloops of `emit_hopper` ask for. Whether a kernel has a text under a schedule, lowering says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.schedule import ACCUMULATORS, ALLOWED, Schedule, ScheduleError, mainloop_fault

_KEPT_FREE = 24 * 1024  # bytes of shared memory that a shape leaves for its epilogue
_PORTABLE = ((128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (128, 64), (64, 64), (32, 128), (16, 128))
_SHARED_TILE = ((128, 256), (128, 128), (256, 128), (128, 64), (64, 128), (64, 64))
_BY_TURNS = ((128, 128), (64, 256), (64, 128), (128, 64))
_STEPS: dict[str, tuple[int | str, ...]] = {
    "slice_n": (32, 64, 128),
    "group_m": (1, 4, 8, 16, 32),
    "block_k": (32, 64, 128),
    "warps": (4, 8),
    "split_k": (1, 2, 4, 8, 16, 32),
}
_CUTS = ((1, "even"), (4, "even"), (16, "even"), (8, "stream"))  # of the sum along K


def shapes(device: Device, itemsize: int = 2) -> tuple[Schedule, ...]:
    """Mainloop, tile and depth of a kernel with a GEMM, its operands of `itemsize` bytes: with each tile the deepest
    pipeline that leaves room for an epilogue, and the one below it."""
    found = []
    for plain in _mainloops(device):
        deep = [s for n in range(2, 7) if fits(s := replace(plain, stages=n), device, itemsize)]
        roomy = [s for s in deep if s.operand_bytes(itemsize) + _KEPT_FREE <= device.shared_bytes]
        found += (roomy or deep)[-2:]
    return tuple(found)


def _mainloops(device: Device) -> Iterator[Schedule]:
    on_hopper = device.target == "sm_90"
    found = [Schedule(block_m=m, block_n=n, mainloop="pingpong") for m, n in _BY_TURNS if on_hopper]
    found += [
        Schedule(block_m=m, block_n=n, warps=8 if m >= 128 else 4, mainloop="hopper")
        for m, n in _SHARED_TILE
        if on_hopper
    ]
    for m, n in _PORTABLE:
        warps, kind = 8 if m * n >= 128 * 128 else 4, "portable" if on_hopper else "auto"
        found.append(Schedule(block_m=m, block_n=n, warps=warps, mainloop=kind))
    for plain in found:
        yield from (replace(plain, split_k=pieces, cut=cut) for pieces, cut in _CUTS)


def passes() -> tuple[Schedule, ...]:
    """The tiles of a kernel without a GEMM: it has no pipeline and no operands."""
    plain = Schedule(block_k=64, stages=2, group_m=1)
    tiles = [(m, n, w) for m in (16, 32, 64, 128) for n in (128, 256) for w in (4, 8)]
    tiles += [(256, 64, w) for w in (4, 8)]  # sums of columns alone
    return tuple(replace(plain, block_m=m, block_n=n, warps=w) for m, n, w in tiles)


def neighbours(schedule: Schedule, device: Device, itemsize: int = 2) -> tuple[Schedule, ...]:
    """Schedules that differ from this one in depth by one stage, or in slices, order, step, warps, pieces or cut."""
    found: list[dict[str, int | str]] = [{"stages": schedule.stages + step} for step in (1, -1)]
    steps = _STEPS | ({"cut": ("even", "stream")} if schedule.split_k > 1 else {})
    found += [{name: v} for name, values in steps.items() for v in values if v != getattr(schedule, name)]
    made = (_changed(schedule, change) for change in found)
    return tuple(s for s in made if s is not None and fits(s, device, itemsize))


def fits(schedule: Schedule, device: Device, itemsize: int = 2) -> bool:
    """Whether operands and product have room, and a Hopper mainloop its warps and stages."""
    s = schedule
    if s.mainloop in ("hopper", "pingpong") and mainloop_fault(s):
        return False
    return s.operand_bytes(itemsize) <= device.shared_bytes and s.block_m * s.block_n <= ACCUMULATORS * 32 * s.warps


def hints_of(schedule: Schedule) -> dict[str, int | str]:
    """What to write into a text for this schedule: tile and depth always, since a kernel without hints has its
    schedule chosen for it; the rest where it differs from the default."""
    plain = Schedule()
    said = {name: getattr(schedule, name) for name in ALLOWED}
    return {n: v for n, v in said.items() if n in ("block_m", "block_n", "stages") or v != getattr(plain, n)}


def _changed(schedule: Schedule, change: dict[str, int | str]) -> Schedule | None:
    try:
        return replace(schedule, **change)  # type: ignore[arg-type]
    except ScheduleError:
        return None

"""Products of few tiles under a tuner: whether cutting their sum along K is worth a try. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from coda_synth.coda_api.devices import device
from coda_synth.coda_api.dims import DimSizeError
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Call, Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule, mainloop_fault
from coda_synth.evaluator.evaluation import Evaluation

_PIECES = (4, 2, 8, 16, 32)  # of K, in the order in which they are tried
_LEAST = 1024  # of K in one piece: less does not pay for a second launch
_TILE = ("block_m", "block_n", "block_k", "stages", "warps")


def pieces(
    source: str, found: Evaluation, now: Mapping[str, Schedule]
) -> Iterator[tuple[str, dict[str, int | str], str]]:
    """(kernel, its tile with a split_k that gives every SM work, why), for kernels with tiles for fewer than half of
    the SMs of the device that the evaluation is of. now: the schedule of each kernel that may be tuned."""
    figures = found.timings or found.modelled
    if not figures:
        return
    ran = found.timings[0].schedules if found.timings else {}
    try:
        calls, sms = read(source).live_calls(), device(figures[0].device).sms
        gemms = [c for c in calls if isinstance(c.unit, Kernel) and c.unit.gemm and c.unit.name in now]
        counted = [(c, *_counts(c, ran.get(c.name) or now[c.unit.name], figures[0].sizes)) for c in gemms]
    except (ProgramError, LookupError, DimSizeError):  # an unknown device or symbol
        return
    for call, schedule, tiles, inner in counted:
        reason = f"because its {tiles:,} tiles leave most of {sms} SMs without work"
        for split in _PIECES if 2 * tiles <= sms and schedule.split_k == 1 else ():
            if split * _LEAST <= inner and split * tiles < 2 * sms:
                tile = {name: value for name, value in asdict(schedule).items() if name in _TILE}
                yield call.unit.name, {**tile, "mainloop": _mainloop(schedule), "split_k": split}, reason


def _mainloop(schedule: Schedule) -> str:
    """As it is, unless the tile is too small for a Hopper mainloop."""
    return "portable" if mainloop_fault(schedule) else schedule.mainloop


def _counts(call: Call, schedule: Schedule, sizes: Mapping[str, int]) -> tuple[Schedule, int, int]:
    unit = call.unit
    assert isinstance(unit, Kernel) and unit.gemm is not None
    rows, cols, inner = (call.dim(d).size(sizes) for d in (unit.rows, unit.cols, unit.gemm.inner))
    return schedule, -(-rows // schedule.block_m) * -(-cols // schedule.block_n), inner

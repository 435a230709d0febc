"""Whether Hopper's mainloops sum a product of few tiles in pieces where nobody has chosen: where the cost model says
that it pays. The model was not measured there, so what it saves must be more than its error elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from coda_synth.coda_api.cost import call_s
from coda_synth.coda_api.default_schedules import FEW_ROWS
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.program import Call, Kernel, Program, Signature
from coda_synth.coda_api.schedule import Schedule

_LONG, _PIECE = 8192, 1024  # of K: the least that is cut, and the least piece
_WORTH = 0.9  # of the modelled time without
_TILES = ((128, 128, 6), (64, 128, 8), (128, 64, 8), (64, 256, 5))  # and stages: no epilogue needs shared memory
_CUTS = ((2, "even"), (4, "even"), (8, "even"), (4, "stream"))


def cut_by_model(
    program: Program,
    signature: Signature,
    sizes: Mapping[str, int],
    chosen: Mapping[str, Schedule],
    call: Call,
    processors: int,
) -> Schedule | None:
    """A schedule with a cut for this call, modelled as at least a tenth faster than its own in `chosen`, or None.
    Only for products of more rows than a weight's reading hides, of fewer wide tiles than processors, and of a long K.
    """
    unit = call.unit
    if not isinstance(unit, Kernel) or unit.gemm is None:
        return None
    rows, cols, inner = (call.dim(d).size(sizes) for d in (unit.rows, unit.cols, unit.gemm.inner))
    if rows <= FEW_ROWS or inner < _LONG or -(-rows // 128) * -(-cols // 256) >= processors:
        return None
    on = replace(device("H200"), sms=processors)  # an H100 is slower in its memory, for a cut and without

    def seconds(schedule: Schedule) -> float:
        return call_s(program, signature, sizes, {**chosen, call.name: schedule}, on, call)

    turns = Schedule(mainloop="pingpong")
    tried = [
        replace(turns, block_m=m, block_n=n, stages=stages, split_k=pieces, cut=cut)
        for (m, n, stages), (pieces, cut) in product(_TILES, _CUTS)
        if inner >= pieces * _PIECE
    ]
    best = min(tried, key=seconds)
    return best if seconds(best) < _WORTH * seconds(chosen[call.name]) else None

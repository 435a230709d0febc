"""The schedules that a kernel starts from where neither its author nor a tuner has said anything.

The order follows what was measured on one H200 (docs/hopper.md): two groups of warps that take tiles by turns hide a
whole epilogue under the other group's mainloop, unless that epilogue waits for tiles of its own and the mainloop is
short, or keeps running values of its rows; then one wide tile shared by all warps is faster: it moves fewer bytes
through shared memory and leaves half as many partials.
"""

from __future__ import annotations

from collections.abc import Mapping

from coda_synth.coda_api.program import Form, Kernel, Value, walk
from coda_synth.coda_api.schedule import Schedule

POINTWISE = Schedule(block_m=32, block_n=256, block_k=64, stages=2, warps=8, group_m=1)
_TURNS = tuple(Schedule(block_n=128, stages=stages, mainloop="pingpong") for stages in (5, 4))
_LONG = 8192  # a reduction so long that an epilogue which loads tiles hides under it as well


def default_schedules(
    kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], form: str
) -> tuple[Schedule, ...]:
    """In the order of preference; the last one is always possible. sizes: of the kernel's local symbols."""
    if kernel.gemm is None:
        return (POINTWISE,)
    if form != "hopper":
        return (Schedule(),)
    loads = any(v.word == "param" and v.rows is not None and v.cols is not None for v in walk(live))
    long = kernel.gemm.inner.size(sizes) >= _LONG
    running = any(v.form in (Form.PARTIAL, Form.PICK) for v in live.values())
    return (*(_TURNS if not running and (long or not loads) else ()), Schedule())

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

H200_SHARED = 232448  # bytes that one block may take
_WIDE_SHARED = 160 * 1024  # the wide tile's stages and, at most, what its epilogue exchanges
POINTWISE = Schedule(block_m=32, block_n=256, block_k=64, stages=2, warps=8, group_m=1)
_TURNS = tuple(Schedule(block_n=128, stages=stages, mainloop="pingpong") for stages in (5, 4))
_LONG = 8192  # a reduction so long that an epilogue which loads tiles hides under it as well


def wide(shared_bytes: int) -> Schedule:
    """The tile shared by all warps, as wide as the shared memory of one block allows: 64 KiB hold the small one."""
    return Schedule() if shared_bytes >= _WIDE_SHARED else Schedule(block_m=64, block_n=128, stages=2)


def default_schedules(
    kernel: Kernel, live: Mapping[str, Value], sizes: Mapping[str, int], form: str, shared_bytes: int = H200_SHARED
) -> tuple[Schedule, ...]:
    """In the order of preference; the last one is always possible. sizes: of the kernel's local symbols."""
    if kernel.gemm is None:
        return (POINTWISE,)
    if form != "hopper":
        return (wide(shared_bytes),)
    loads = any(v.word == "param" and v.rows is not None and v.cols is not None for v in walk(live))
    long = kernel.gemm.inner.size(sizes) >= _LONG
    running = any(v.form in (Form.PARTIAL, Form.PICK) for v in live.values())
    return (*(_TURNS if not running and (long or not loads) else ()), wide(shared_bytes))

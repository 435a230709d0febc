"""Whether the triton at hand builds what the Hopper backend writes, found by building a small kernel.

Gluon is experimental: it moves between releases of triton, and may be missing. Whoever lowers for sm_90 asks here
first, and where the answer is a fault takes the portable kernels and says so.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib.metadata import version

from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import InputSpec, OutputSpec, Signature
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.toolchain import BuildError, build

# Every part of Gluon that the backend writes: rings that are loaded, stored and added to memory, barriers, wgmma, warps
# with roles, and in the second of three launches what lets launches overlap.
_PROBE = """
@kernel
def add(x: Tensor["M", "K"], w: Tensor["N", "K"], r: Tensor["M", "N"]):
    return {"y": gemm(x, w) + r}


@kernel
def accumulate_too(x: Tensor["M", "K"], w: Tensor["N", "K"], r: Tensor["M", "N"], s: Tensor["M", "N"]):
    z = gemm(x, w)
    return {"y": z + r, "s": accumulate(s, z)}


@program
def probe(x: Tensor["M", "K"], w: Tensor["N", "K"], r: Tensor["M", "N"], s: Tensor["M", "N"]):
    a = add(x, w, r)
    b = accumulate_too(x, w, a.y, s)
    c = add(x, w, b.y)
    return {"y": c.y, "s": b.s}
"""
_TILE = Schedule(block_m=64, block_n=64, block_k=32, stages=2, warps=4, mainloop="hopper")


@functools.cache
def hopper_fault() -> str:
    """Why Hopper kernels cannot be built here, a sentence; "" where they can.

    Raises OSError where this machine can build nothing. The first call of a process builds: a second or two, and
    milliseconds once triton's cache holds the kernel.
    """
    try:
        build(_probe())
    except BuildError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"triton {version('triton')} cannot build Gluon kernels: {lines[-1]}"
    return ""


def _probe() -> Generated:
    program = read(_PROBE)
    *read_only, added_to = (InputSpec(p.name, p.type, "bfloat16", "activation") for p in program.params)
    inputs = (*read_only, replace(added_to, dtype="float32", role="in_place"))
    outputs = tuple(OutputSpec(n, added_to.type.dims, dtype) for n, dtype in (("y", "bfloat16"), ("s", "float32")))
    signature, sizes = Signature(program.name, inputs, outputs, "bfloat16"), dict.fromkeys("MNK", 256)
    made = lower(program, signature, sizes, form="hopper", schedules=dict.fromkeys("abc", _TILE))
    return replace(made, launches=made.launches[1:2])

"""What no program of a run has tried yet, found by reading them: general moves, none of them about one operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Kernel, Preparation, Program, Signature, TypeKind, walk
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.runs.record import Attempt

_MERGING = ("interleave", "concat", "join")
_FOLDING = ("mul", "div", "add", "sub", "matvec")
_TILES = ((128, 256), (128, 128), (256, 128), (64, 256), (64, 128))
_SHOWN = 6


def untried(signature: Signature, history: Sequence[Attempt]) -> list[str]:
    """One line for each; empty where no program could be read."""
    programs = [p for a in history if a.candidate and a.evaluation and (p := _read(a.candidate.source, signature))]
    if not programs:
        return []
    return [line for look in _LOOKS if (line := look(signature, programs))][:_SHOWN]


@functools.lru_cache(maxsize=256)  # every step of a run reads all of its programs
def _read(source: str, signature: Signature) -> Program | None:
    try:
        return read(source, signature)
    except ProgramError:
        return None


def _merged(signature: Signature, programs: Sequence[Program]) -> str:
    """Applies where two weight matrices share their inner dim, the last one."""
    inner = [i.type.dims[-1] for i in signature.inputs if i.role == "weight" and len(i.type.dims) == 2]
    if len(inner) == len(set(inner)) or any(_prepares(p, _MERGING) for p in programs):
        return ""
    return "one GEMM for weights that read the same input (interleave, concat or join them in a @prepare)"


def _folded(signature: Signature, programs: Sequence[Program]) -> str:
    vectors = [i for i in signature.inputs if i.role == "weight" and len(i.type.dims) == 1]
    if not vectors or any(_prepares(p, _FOLDING) for p in programs):
        return ""
    return f"folding a vector of weights ({', '.join(i.name for i in vectors)}) into a matrix in a @prepare"


def _fewer(signature: Signature, programs: Sequence[Program]) -> str:
    least = min(sum(not isinstance(c.unit, Preparation) for c in p.live_calls()) for p in programs)
    gemms = min(len(_kernels(p)) for p in programs)
    return "" if least <= 1 or least <= gemms else f"fewer than {least} launches"


def _partials(signature: Signature, programs: Sequence[Program]) -> str:
    """Applies where there is a second kernel to use what the first one left."""
    several = any(len(_kernels(p)) > 1 for p in programs)
    return "" if not several or any(_has_partials(p) for p in programs) else "statistics as partials and a finisher"


def _stored(signature: Signature, programs: Sequence[Program]) -> str:
    outputs = sum(len(o.dims) == 2 for o in signature.outputs)
    least = min(_tiles_stored(p) for p in programs)
    return f"fewer than {least} stored matrices" if least > max(outputs, 1) else ""


def _tiles(signature: Signature, programs: Sequence[Program]) -> str:
    tried = {_tile(k) for p in programs for k in _kernels(p)}
    left = [f"{m} x {n}" for m, n in _TILES if (m, n) not in tried]
    return f"tiles (block_m x block_n) of {', '.join(left)}" if left else ""


_LOOKS: tuple[Callable[[Signature, Sequence[Program]], str], ...] = (
    _merged,
    _folded,
    _fewer,
    _partials,
    _stored,
    _tiles,
)


def _prepares(program: Program, words: tuple[str, ...]) -> bool:
    units = [c.unit for c in program.live_calls() if isinstance(c.unit, Preparation)]
    return any(v.word in words for u in units for v in walk(u.outputs))


def _kernels(program: Program) -> list[Kernel]:
    return [c.unit for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm]


def _has_partials(program: Program) -> bool:
    return any(p.type.kind is TypeKind.PARTIAL for u in program.units.values() for p in u.params)


def _tiles_stored(program: Program) -> int:
    calls = [c for c in program.live_calls() if isinstance(c.unit, Kernel)]
    values = [c.unit.outputs[name] for c in calls for name in program.live_outputs(c)]
    return sum(v.rows is not None and v.cols is not None and v.form == "tile" for v in values)


def _tile(kernel: Kernel) -> tuple[int, int]:
    default = Schedule()
    names = (("block_m", default.block_m), ("block_n", default.block_n))
    m, n = (kernel.hints.get(name, value) for name, value in names)
    return int(str(m)), int(str(n))

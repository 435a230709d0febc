"""What no program of a run has tried yet, found by reading them: general moves, none of them about one operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Kernel, Preparation, Program, Signature, TypeKind, walk
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.schedule_space import shapes
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline

_MERGING = ("interleave", "concat", "join")
_FOLDING = ("mul", "div", "add", "sub", "matvec")
_HOPPER = ("hopper", "pingpong")


def untried(signature: Signature, history: Sequence[Attempt], on: Device) -> list[str]:
    """One line for each; empty where no program could be read. on: the device that is written for."""
    programs = [p for a in history if a.candidate and a.evaluation and (p := _read(a.candidate.source, signature))]
    if not programs:
        return []
    return [line for line in (*(look(signature, programs) for look in _LOOKS), _shapes(history, on)) if line]


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
    """Applies to a vector along which some weight is multiplied, unless its own gradient is asked for."""
    inner = {str(i.type.dims[-1]) for i in signature.inputs if i.role == "weight" and len(i.type.dims) == 2}
    kept = {str(o.dims[0]) for o in signature.outputs if len(o.dims) == 1}
    vectors = [i for i in signature.inputs if i.role == "weight" and len(i.type.dims) == 1]
    folding = [i.name for i in vectors if str(i.type.dims[0]) in inner - kept]
    if not folding or any(_prepares(p, _FOLDING) for p in programs):
        return ""
    return f"folding a vector of weights ({', '.join(folding)}) into a matrix in a @prepare"


def _fewer(signature: Signature, programs: Sequence[Program]) -> str:
    """A product is a launch, and so is what finishes its partials; a pass without a product may be spared."""
    least = min(programs, key=_launches)
    passes = [c.name for c in least.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm is None]
    return f"fewer than {_launches(least)} launches: {', '.join(passes)} without a gemm" if passes else ""


def _launches(program: Program) -> int:
    return sum(not isinstance(c.unit, Preparation) for c in program.live_calls())


def _partials(signature: Signature, programs: Sequence[Program]) -> str:
    """Applies where there is a second kernel to use what the first one left."""
    several = any(len(_kernels(p)) > 1 for p in programs)
    return "" if not several or any(_has_partials(p) for p in programs) else "statistics as partials and a finisher"


def _stored(signature: Signature, programs: Sequence[Program]) -> str:
    outputs = sum(len(o.dims) == 2 for o in signature.outputs)
    least = min(_tiles_stored(p) for p in programs)
    return f"fewer than {least} stored matrices" if least > max(outputs, 1) else ""


_LOOKS: tuple[Callable[[Signature, Sequence[Program]], str], ...] = (
    _merged,
    _folded,
    _fewer,
    _partials,
    _stored,
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


def _shapes(history: Sequence[Attempt], on: Device) -> str:
    """Mainloops and tiles that the best program's longest kernel call has not run under, if it runs one of Hopper's."""
    leader = best(history)
    found = leader.evaluation if leader else None
    figure = headline(found) if found else None
    if found is None or figure is None or not found.schedules:
        return ""
    call = max(found.schedules, key=lambda name: figure.calls_ms.get(name, 0.0))
    if found.schedules[call].mainloop not in _HOPPER:
        return ""
    tried = {_shape(s) for a in history if a.evaluation and (s := a.evaluation.schedules.get(call))}
    possible = dict.fromkeys(_shape(s) for s in shapes(on) if s.mainloop in _HOPPER)
    left = [f"{kind} {m} x {n}" for kind, m, n in possible if (kind, m, n) not in tried]
    return f"in the call {call}: mainloop with tile (block_m x block_n) {', '.join(left)}" if left else ""


def _shape(schedule: Schedule) -> tuple[str, int, int]:
    return schedule.mainloop, schedule.block_m, schedule.block_n

"""What no program of a run has tried yet, found by reading them: general moves, none of them about one operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from coda_synth.agent.planner_tune import read_hints
from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Kernel, Preparation, Program, Signature, TypeKind, walk
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.schedule_space import passes, shapes
from coda_synth.coda_api.shape_check import Sizes, tile_holds
from coda_synth.evaluator.evaluation import Evaluation, Verdict
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline

_MERGING = ("interleave", "concat", "join")
_FOLDING = ("mul", "div", "add", "sub", "matvec")
_HOPPER = ("hopper", "pingpong")
_OF_SCHEDULES = {"TileFit", "ScheduleHint"}  # rules that a tile breaks, and not what is computed
_MUCH, _SOME = 0.25, 0.05  # of the time: that of a product, of a pass, which could be much faster
_Shape = tuple[str, int, int]  # mainloop, block_m, block_n


def untried(signature: Signature, history: Sequence[Attempt], on: Device, sizes: Sequence[Sizes]) -> list[str]:
    """One line for each; empty where no program could be read. on: the device that is written for; sizes: all shapes
    that a program is judged at."""
    programs = [p for a in history if a.candidate and a.evaluation and (p := _read(a.candidate.source, signature))]
    if not programs:
        return []
    moves = (look(signature, programs) for look in _LOOKS)
    return [*filter(None, moves), *_shapes(history, signature, on, sizes)]


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


def _partials(signature: Signature, programs: Sequence[Program]) -> str:
    """Applies where there is a second kernel to use what the first one left."""
    several = any(len(_kernels(p)) > 1 for p in programs)
    return "" if not several or any(_has_partials(p) for p in programs) else "statistics as partials and a finisher"


_LOOKS: tuple[Callable[[Signature, Sequence[Program]], str], ...] = (
    _merged,
    _folded,
    _partials,
)


def _prepares(program: Program, words: tuple[str, ...]) -> bool:
    units = [c.unit for c in program.live_calls() if isinstance(c.unit, Preparation)]
    return any(v.word in words for u in units for v in walk(u.outputs))


def _kernels(program: Program) -> list[Kernel]:
    return [c.unit for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm]


def _has_partials(program: Program) -> bool:
    return any(p.type.kind is TypeKind.PARTIAL for u in program.units.values() for p in u.params)


def _shapes(history: Sequence[Attempt], signature: Signature, on: Device, sizes: Sequence[Sizes]) -> Iterator[str]:
    """A line for each call that takes much of the best program's time and runs one of Hopper's mainloops, or a pass:
    mainloops and tiles that it was not written for yet, those left out that the language would refuse for it."""
    leader = best(history)
    if leader is None or leader.evaluation is None or leader.candidate is None:
        return
    program = _read(leader.candidate.source, signature)
    if program is None:
        return
    for call in program.live_calls():
        schedule = leader.evaluation.schedules.get(call.name)
        is_pass = isinstance(call.unit, Kernel) and not call.unit.gemm
        if schedule is None or not (is_pass or schedule.mainloop in _HOPPER):
            continue
        if not _long(call.name, leader.evaluation, _SOME if is_pass else _MUCH):
            continue
        found = passes() if is_pass else [s for s in shapes(on) if s.mainloop in _HOPPER]
        possible = dict.fromkeys(map(_shape, found))
        tried = {_shape(s) for a in history if a.evaluation and (s := a.evaluation.schedules.get(call.name))}
        tried |= {shape for shape in possible if any(_refused(a, call.unit.name, shape) for a in history)}
        frozen = tuple(tuple(each.items()) for each in sizes)
        wide = _widths(leader.candidate.source, signature, call.name, tuple({n for _, _, n in possible}), frozen)
        left = [f"{kind} {m} x {n}".strip() for kind, m, n in possible if n in wide and (kind, m, n) not in tried]
        if left:
            what = "the pass over tiles of" if is_pass else "mainloop with tile"
            yield f"in the call {call.name}: {what} (block_m x block_n) {', '.join(left)}"


@functools.lru_cache(maxsize=256)  # the best of a run stays it for some steps
def _widths(
    source: str,
    signature: Signature,
    call: str,
    widths: tuple[int, ...],
    sizes: tuple[tuple[tuple[str, int], ...], ...],
) -> frozenset[int]:
    """Those of some widths of a tile in which a call's values have room at all of the task's sizes."""
    program = _read(source, signature)
    assert program is not None  # it was read before
    unit = next(c for c in program.calls if c.name == call)
    return frozenset(n for n in widths if tile_holds(program, unit, [dict(each) for each in sizes], n))


def _long(call: str, found: Evaluation, share: float) -> bool:
    """Whether a call takes so much of the time that its tile matters; of an unknown time it may."""
    figure = headline(found)
    times = figure.calls_ms if figure else {}
    return not times or times.get(call, 0.0) > share * sum(times.values())


def _refused(attempt: Attempt, kernel: str, shape: _Shape) -> bool:
    """Whether a program was refused that asked for this shape in the kernel, for its schedule."""
    found = attempt.evaluation
    if found is None or attempt.candidate is None or found.schedules:
        return False
    rules = {d.rule for d in found.diagnostics if d.severity == "error"}
    hints = read_hints(attempt.candidate.source).get(kernel, {})
    if not ({"block_m", "block_n"} & hints.keys() and (rules & _OF_SCHEDULES or found.verdict is Verdict.BUILD_ERROR)):
        return False
    kind = hints.get("mainloop", "auto")
    plain = Schedule(block_n=128) if kind == "pingpong" else Schedule()
    asked = [hints.get(name, getattr(plain, name)) for name in ("block_m", "block_n")]
    return asked == [*shape[1:]] and kind in ("auto", shape[0])


def _shape(schedule: Schedule) -> _Shape:
    """A pass has no mainloop."""
    kind = schedule.mainloop if schedule.mainloop in _HOPPER else ""
    return kind, schedule.block_m, schedule.block_n

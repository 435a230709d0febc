"""What to do about a program that passed and is no faster than the best: a cure that its report names and nobody tried,
which of its calls are worth keeping, or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.schedule import ALLOWED, Schedule
from coda_synth.coda_api.schedule_space import fits
from coda_synth.evaluator.evaluation import Evaluation
from coda_synth.runs.ranking import NOTICEABLE
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline

_DEEPER = re.compile(r"\((\d+) would\)")  # in a profile's line: the stages that would hide the latency
_LEAVE = "This brought no gain: leave it, and improve the best instead."


def no_gain(attempt: Attempt, best: Attempt, history: Sequence[Attempt], on: Device) -> str:
    """A remark for the author of `attempt`; best: what it was measured against."""
    assert attempt.evaluation and best.evaluation
    cures = list(_cures(attempt.evaluation, history, on))
    faster, slower = _beside(attempt.evaluation, best.evaluation)
    said = []
    if faster and slower:
        said.append(f"By call: {', '.join(faster)}, which is worth keeping; {', '.join(slower)}, as the best has it.")
    if cures:
        said.append(f"What its report names as a cure was not tried: {'; '.join(cures)}.")
    return " ".join(["As it is, this brought no gain.", *said]) if said else _LEAVE


def _cures(found: Evaluation, history: Sequence[Attempt], on: Device) -> Iterator[str]:
    """Changes of a call's schedule, against latency and against spills, that no program has run under."""
    for call, schedule in found.schedules.items():
        tried = {s for a in history if a.evaluation and (s := a.evaluation.schedules.get(call))}
        needed = _stages(found, call)
        deeper = replace(schedule, stages=needed) if needed in ALLOWED["stages"] else None
        if deeper and _has_room(deeper, schedule, found, call, on) and not any(_as_deep(s, deeper) for s in tried):
            yield f"stages={needed} in the call {call}"
        spilt = any(r.call == call and r.spill_bytes for r in found.resources)
        narrower = schedule.slice_n // 2
        if spilt and narrower in ALLOWED["slice_n"] and replace(schedule, slice_n=narrower) not in tried:
            yield f"slice_n={narrower} in the call {call}, which spills"


def _stages(found: Evaluation, call: str) -> int:
    """How many would hide the latency of a call's loads at the shape that ranks; 0 where they are hidden."""
    figure = headline(found)
    start = f"{figure.shape}: {call}: " if figure else ""
    said = next((_DEEPER.search(line) for line in found.profile if start and line.startswith(start)), None)
    return int(said[1]) if said else 0


def _has_room(deeper: Schedule, schedule: Schedule, found: Evaluation, call: str, on: Device) -> bool:
    """Whether so many stages fit beside what the built kernel takes for its epilogue."""
    taken = max((r.shared_bytes for r in found.resources if r.call == call), default=0)
    beside = max(0, taken - schedule.operand_bytes())
    return fits(deeper, on) and deeper.operand_bytes() + beside <= on.shared_bytes


def _as_deep(tried: Schedule, deeper: Schedule) -> bool:
    """Whether it has the tile of the other, and as many stages."""
    return tried.stages >= deeper.stages and replace(deeper, stages=tried.stages, slice_n=tried.slice_n) == tried


def _beside(found: Evaluation, best: Evaluation) -> tuple[list[str], list[str]]:
    """The calls of both programs that became faster, and those that became slower, with their times."""
    figures = headline(found), headline(best)
    now, was = (figure.calls_ms if figure else {} for figure in figures)
    both = [(call, ms, was[call]) for call, ms in now.items() if call in was]
    faster = [f"{call} takes {ms:.4g} ms, not {old:.4g}" for call, ms, old in both if ms < old * (1 - NOTICEABLE)]
    slower = [f"{call} {ms:.4g} ms, not {old:.4g}" for call, ms, old in both if ms * (1 - NOTICEABLE) > old]
    return faster, slower

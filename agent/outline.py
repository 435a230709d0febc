"""An earlier attempt in one line for its author: what changed in which call, the times by call, spills, and causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from coda_synth.agent.lessons import reworked
from coda_synth.coda_api.schedule import HINTS, Schedule
from coda_synth.evaluator.evaluation import Evaluation
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import attempt_row, headline

_CAUSE = " leaves "  # in the part of a profile's line that says what costs a call its speed


def line(attempt: Attempt, history: Iterable[Attempt] = ()) -> str:
    """history: where its parent may be found."""
    row, evaluation = attempt_row(attempt), attempt.evaluation
    if evaluation is None or row.time_ms is None:
        return f"step {row.step}: {row.result}{': ' + row.why if row.why else ''}"
    kind = "measured" if row.measured else "modelled"
    parent = next((a for a in history if a.candidate and a.candidate.id == row.parent), None)
    calls = tuple(_altered(parent.evaluation, evaluation)) if parent and parent.evaluation else ()
    said = [f"step {row.step}: {row.result}, {row.time_ms:.4g} ms {kind}{_by_call(evaluation)}"]
    said += [_change(parent, attempt)] if parent else []
    said += [f"{r.call} ({r.kernel}) spills {r.spill_bytes} B" for r in evaluation.resources if r.spill_bytes]
    return "; ".join(filter(None, [*said, *_causes(evaluation, calls)]))


def _by_call(evaluation: Evaluation) -> str:
    figure = headline(evaluation)
    times = figure.calls_ms if figure else {}
    return f" ({', '.join(f'{call} {ms:.4g}' for call, ms in times.items())})" if len(times) > 1 else ""


def _change(parent: Attempt, attempt: Attempt) -> str:
    """Against its parent: the algebra, and the schedules that came out differently."""
    assert parent.candidate and attempt.candidate and attempt.evaluation and parent.evaluation
    words = reworked(parent.candidate.source, attempt.candidate.source)
    said = [words, *(f"{call}: {how}" for call, how in _altered(parent.evaluation, attempt.evaluation).items())]
    return f"against step {parent.step} {'; '.join(filter(None, said))}" if any(said) else ""


def _altered(before: Evaluation, after: Evaluation) -> Mapping[str, str]:
    """By call of both: the hints that differ in what was carried out."""
    pairs = {call: (before.schedules[call], s) for call, s in after.schedules.items() if call in before.schedules}
    return {call: _difference(old, new) for call, (old, new) in pairs.items() if old != new}


def _difference(old: Schedule, new: Schedule) -> str:
    names = [name for name in HINTS if getattr(old, name) != getattr(new, name)]
    return ", ".join(f"{name}={getattr(new, name)} instead of {getattr(old, name)}" for name in names)


def _causes(evaluation: Evaluation, calls: tuple[str, ...]) -> Iterator[str]:
    """What slows the calls that changed, and the one that takes the longest, at the headline shape."""
    figure = headline(evaluation)
    times = figure.calls_ms if figure else {}
    wanted = {*calls, *([max(times, key=lambda call: times[call])] if times else [])}
    for said in evaluation.profile:
        shape, _, rest = said.partition(": ")
        call = rest.partition(":")[0]
        if figure and shape == figure.shape and call in wanted:
            yield from (f"{call}: {part}" for part in rest.split("; ") if _CAUSE in part)

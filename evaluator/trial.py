"""One candidate on its way through the stages: what has been found so far, and how that becomes an Evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.child import ChildCrashed, ChildFailure, ChildRaised, ChildTimeout, JudgeError, cannot
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Modelled, Timing, Verdict
from coda_synth.evaluator.facts import Place, TaskFacts


class StageFailed(Exception):
    """A stage found the candidate wanting."""

    def __init__(self, verdict: Verdict, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"{verdict}: {diagnostics[0]}")
        self.verdict, self.diagnostics = verdict, diagnostics


@dataclass
class Trial:
    """The findings, stage by stage."""

    candidate: Candidate
    facts: TaskFacts
    seed: int
    on_stage: Callable[[str], None]
    stage: str = "read"
    checks: list[Check] = field(default_factory=list)
    resources: tuple[Resources, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    effective: Mapping[str, Schedule] = field(default_factory=dict)  # with what they left to choose
    modelled: tuple[Modelled, ...] = ()
    timings: list[Timing] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    output_places: Mapping[str, Place] = field(default_factory=dict)
    call_places: Mapping[str, Place] = field(default_factory=dict)
    device_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # "even" and "odd"

    @contextmanager
    def entering(self, stage: str) -> Iterator[None]:
        """Names the stage that runs, tells the caller, and keeps its wall time."""
        self.stage = stage
        self.on_stage(stage)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 3)

    def passed(self) -> Evaluation:
        return self._evaluation(Verdict.PASSED, tuple(self.diagnostics))

    def failed(self, error: Exception) -> Evaluation:
        """The one place where what a stage raised becomes a verdict; raises JudgeError where it is the machine's."""
        verdict, diagnostics = _verdict_of(error, self.stage)
        call = error.call if isinstance(error, (ChildRaised, ChildFailure)) else None
        if call and (place := self.call_places.get(call)):
            place = self._unit_of(place) if verdict is Verdict.BUILD_ERROR else place
            diagnostics = (located(diagnostics[0], place, f"it is of {self.call_places[call]}"),)
        return self._evaluation(verdict, (*diagnostics, *self.diagnostics))

    def _unit_of(self, place: Place) -> Place:
        """The same at the unit's decorator, which holds what a build depends on, or at its def line."""
        lines = self.candidate.source.splitlines()
        above = place.def_line - 1
        marked = 1 <= above <= len(lines) and lines[above - 1].startswith("@")
        return replace(place, line=above if marked else place.def_line, column=1)

    def _evaluation(self, verdict: Verdict, diagnostics: tuple[Diagnostic, ...]) -> Evaluation:
        """What did not pass has no time, measured or modelled: there is nothing that could be as fast."""
        passed = verdict is Verdict.PASSED
        return Evaluation(
            candidate=self.candidate.id,
            task=self.candidate.task,
            verdict=verdict,
            stage=self.stage,
            seed=self.seed,
            diagnostics=diagnostics,
            checks=tuple(self.checks),
            resources=self.resources,
            schedules=self.effective,
            modelled=self.modelled if passed else (),
            timings=tuple(self.timings) if passed else (),
            profile=tuple(self.profile) if passed else (),
            environment=self.environment,
            seconds=self.seconds,
            stages=self.stages,
        )


def located(said: Diagnostic, place: Place, words: str) -> Diagnostic:
    """The same with a place in the candidate's text, in figures and in words."""
    return replace(said, message=f"{said.message}\n{words}", line=place.line, column=place.column)


def _verdict_of(error: Exception, stage: str) -> tuple[Verdict, tuple[Diagnostic, ...]]:
    if isinstance(error, StageFailed):
        return error.verdict, error.diagnostics
    if isinstance(error, ChildTimeout):
        return Verdict.TIMEOUT, (Diagnostic("Timeout", f"stage {stage}: {error}"),)
    if isinstance(error, ChildCrashed):
        return Verdict.CRASHED, (Diagnostic("Crashed", f"stage {stage}: {_with_tail(error)}"),)
    if isinstance(error, ChildRaised):
        if error.raised.machine:  # were it a lie, a candidate would go without a verdict, and none would pass
            raise JudgeError(cannot("build" if stage in _BUILDER else "run", error)) from error
        return _RAISED_IN[stage], (Diagnostic(error.raised.kind, error.raised.message or "(no message)"),)
    raise error


_BUILDER = ("read", "build")
_RAISED_IN = {
    "read": Verdict.REJECTED,
    "build": Verdict.BUILD_ERROR,
    "check": Verdict.RUNTIME_ERROR,
    "device": Verdict.RUNTIME_ERROR,
    "measure": Verdict.RUNTIME_ERROR,
}


def _with_tail(error: ChildFailure) -> str:
    last = " | ".join(error.tail.splitlines()[-3:])
    return f"{error}; its last words: {last}" if last else str(error)

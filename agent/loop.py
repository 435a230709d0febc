"""The loop: ask the author, judge what it proposes, write it down, tell it what came out; until a budget is used."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from coda_synth.agent.events import Event, StageReached, StepEnded, StepStarted
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Provider, Reply, Request
from coda_synth.agent.reply import NoProgram, clean, extract
from coda_synth.agent.strategy import choose
from coda_synth.evaluator.evaluation import Candidate, Evaluation
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.store import RunWriter

if TYPE_CHECKING:
    from coda_synth.tasks.spec import TaskSpec

REFUSALS = 2  # in a row; the same question again will not be answered
_TRUNCATED = "the reply ended before it was complete; answer with the program alone, and think in fewer words"


class Judge(Protocol):
    """What the loop needs of the judge."""

    def evaluate(
        self, candidate: Candidate, *, measure: bool = True, on_stage: Callable[[str], None] | None = None
    ) -> Evaluation: ...

    def trace(self, task: str) -> Graph: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The budgets of one run. minutes: wall clock; the step in hand is finished. target: what the author writes for."""

    attempts: int = 6
    minutes: float = 8.0
    measure: bool = True
    target: str = "sm_90"


class Stop(StrEnum):
    ATTEMPTS = "attempts used"
    MINUTES = "minutes used"
    DONE = "the author has nothing better"
    REFUSED = "the author refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. detail: the author's words, where it had some, on why it has nothing better or refused."""

    attempts: tuple[Attempt, ...]
    best: Attempt | None
    stop: Stop
    detail: str = ""

    @property
    def reason(self) -> str:
        return f"{self.stop}: {self.detail}" if self.detail else str(self.stop)


def synthesize(
    task: TaskSpec,
    provider: Provider,
    judge: Judge,
    writer: RunWriter,
    settings: Settings,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Runs until a budget is used, the author is done, or Ctrl-C; every attempt is on the disk before the next step.

    Raises ProviderError, StoreError or the judge's own error where the run cannot go on; the record is then whole up to
    that step, and `writer.attempts` holds it.
    """
    run = _Run(task, provider, judge, writer, settings, on_event)
    try:
        stop, detail = run.until_stopped()
    except KeyboardInterrupt:
        stop, detail = Stop.INTERRUPTED, ""
    return Outcome(writer.attempts, best(writer.attempts), stop, detail)


@dataclass
class _Run:
    """The parties of one run. Its only state is the writer's: what has been written down."""

    task: TaskSpec
    provider: Provider
    judge: Judge
    writer: RunWriter
    settings: Settings
    on_event: Callable[[Event], None]

    def until_stopped(self) -> tuple[Stop, str]:
        deadline = time.monotonic() + 60 * self.settings.minutes
        graph = functools.cache(lambda: self.judge.trace(self.task.name))
        while True:
            history = self.writer.attempts
            if _refused(history):
                return Stop.REFUSED, history[-1].note
            if len(history) >= self.settings.attempts:
                return Stop.ATTEMPTS, ""
            if time.monotonic() >= deadline:
                return Stop.MINUTES, ""
            self.on_event(StepStarted(len(history) + 1, self.settings.attempts))
            choice = choose(history)
            request = Request(self.task.name, prompt(self.task, history, choice, self.settings.target), history, graph)
            reply = self.provider.propose(request)
            if reply.outcome == "done":
                return Stop.DONE, clean(reply.text).strip()
            self._take(reply, choice.parent)

    def _take(self, reply: Reply, parent: str | None) -> None:
        """From the reply to an attempt on the disk."""
        step = len(self.writer.attempts) + 1
        read = self._read(step, reply, parent)
        attempt = read if isinstance(read, Attempt) else self._judge(step, read, reply)
        self.writer.append(attempt)
        self.on_event(StepEnded(attempt, best(self.writer.attempts) is attempt))

    def _read(self, step: int, reply: Reply, parent: str | None) -> Candidate | Attempt:
        """A candidate to judge, or else the attempt that there is without judging."""
        if reply.outcome == "refused":
            return Attempt(step, "refused", usage=reply.usage, note=clean(reply.text))
        if reply.outcome == "truncated":
            return Attempt(step, "truncated", usage=reply.usage, note=_TRUNCATED, reply=clean(reply.text))
        try:
            source = extract(reply.text)
        except NoProgram as correction:
            return Attempt(step, "no_program", usage=reply.usage, note=str(correction), reply=clean(reply.text))
        candidate = Candidate(self.task.name, source, self._author(reply), parent)
        for earlier in self.writer.attempts:
            if earlier.evaluation is not None and earlier.evaluation.candidate == candidate.id:
                note = f"the same program as in step {earlier.step}, which was judged already"
                return Attempt(step, "duplicate", candidate, usage=reply.usage, note=note)
        return candidate

    def _author(self, reply: Reply) -> str:
        model = reply.model or self.provider.model
        return f"{self.provider.name}/{model}" if model else self.provider.name

    def _judge(self, step: int, candidate: Candidate, reply: Reply) -> Attempt:
        """Whatever breaks the judging off, the candidate has been paid for and is kept."""
        try:
            evaluation = self.judge.evaluate(
                candidate,
                measure=self.settings.measure,
                on_stage=lambda stage: self.on_event(StageReached(step, candidate.id, stage)),
            )
        except BaseException:
            note = "its judging was broken off"
            self.writer.append(Attempt(step, "interrupted", candidate, usage=reply.usage, note=note))
            raise
        return Attempt(step, "evaluated", candidate, evaluation, reply.usage)


def _refused(history: tuple[Attempt, ...]) -> bool:
    return len(history) >= REFUSALS and all(a.outcome == "refused" for a in history[-REFUSALS:])

"""The loop: ask the author, judge what it proposes, write it down, tell it what came out; until a budget is used."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coda_synth.agent.ahead import Ahead
from coda_synth.agent.asking import REPLY, SYSTEM, Ask, Asking, Question, TooDear, here
from coda_synth.agent.budget import Budget, Stop, used_up
from coda_synth.agent.confirm import confirmed
from coda_synth.agent.events import Event, StageReached, StepEnded, StepStarted
from coda_synth.agent.exchange import Awaited
from coda_synth.agent.fallback import every, serving
from coda_synth.agent.feedback import feedback
from coda_synth.agent.judging import Judge, waited
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Prompt, Provider, ProviderError, Reply, by_prompt
from coda_synth.agent.reply import NoProgram, clean, extract, nothing_left
from coda_synth.agent.sameness import Sameness
from coda_synth.agent.strategy import Choice, Turn, turn, turn_ahead
from coda_synth.agent.tuner import Exhausted
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.ranking import best, ranked
from coda_synth.runs.record import Attempt, Usage
from coda_synth.runs.report import slight_lead
from coda_synth.runs.store import RunWriter, place_after, step_name

if TYPE_CHECKING:
    from coda_synth.tasks.spec import TaskSpec

__all__ = ["Budget", "Judge", "Outcome", "Settings", "Stop", "synthesize"]

REFUSALS = 2  # in a row; the same question again will not be answered
REPORT = "report.md"
_TRUNCATED = "the reply ended before it was complete; answer with the program alone, and think in fewer words"
_NOT_DONE = "`done` ends a run once a program has passed, and none has; send one program in one ``` block"
_TOO_LONG = "the prompt did not fit into the model's window; the next one is shorter"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run goes. strategy: of STRATEGIES; tune: tries of the tuner at each new best; target: what is written for.

    lessons: measured before, told to the author at the run's start.
    """

    budget: Budget = field(default_factory=Budget)
    measure: bool = True
    target: str = "sm_90"
    strategy: str = "refine"
    tune: int = 0
    lessons: tuple[str, ...] = ()


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
    ask: Ask = here,
) -> Outcome:
    """Runs until a budget is used, the author is done, or Ctrl-C; every attempt is on the disk before the next step.

    Goes on where the writer's run was left: all that it knows of earlier steps it reads from the record. Raises
    ProviderError, StoreError or the judge's own error where the run cannot go on; the record is then whole up to that
    step, and `writer.attempts` holds it. ask: how the author is called, as in a thread of its own.
    """
    run = _Run(task, provider, judge, writer, settings, on_event, ask)
    try:
        stop, detail = run.until_stopped()
    except KeyboardInterrupt:
        stop, detail = Stop.INTERRUPTED, ""
    finally:
        run.leave()
    writer.end(stop.value, detail)
    return Outcome(writer.attempts, best(writer.attempts), stop, detail)


@dataclass
class _Run:
    """The parties of one run. Its only state is the writer's, what has been written down, and what is being asked."""

    task: TaskSpec
    provider: Provider
    judge: Judge
    writer: RunWriter
    settings: Settings
    on_event: Callable[[Event], None]
    ask: Ask

    def __post_init__(self) -> None:
        self.asking = Asking(self.provider, self.writer, self.settings.budget, self.ask)
        self.sameness = Sameness(signature(self.task, self.task.dtypes[0]))
        self.judging = threading.Lock()  # the judge answers one question at a time
        self.graph: Callable[[], Graph] = functools.cache(self._trace)
        self.ahead: Ahead | None = None  # the next step's reply, if it is being asked for already
        self.early: Question | None = None  # what is being asked there

    def _trace(self) -> Graph:
        with self.judging:
            return self.judge.trace(self.task.name)

    def until_stopped(self) -> tuple[Stop, str]:
        """What has been paid for is judged, whatever budget was used meanwhile."""
        while True:
            place = place_after(self.writer.attempts)
            kept = None if self.ahead else self.asking.kept(place)
            if self.ahead is None and (over := self._over()) and (kept is None or over[0] is Stop.ATTEMPTS):
                return over
            try:
                now = self._turn()
                reply, hidden = self._reply(now, place, kept)
            except (Exhausted, TooDear, Awaited) as end:
                return _why(end)
            if reply.outcome in ("done", "stuck"):
                return Stop.DONE if reply.outcome == "done" else Stop.STUCK, clean(reply.text).strip()
            if why := self._done(reply, now.choice):
                return Stop.DONE, why
            self._take(reply, now.choice, hidden)

    def _done(self, reply: Reply, choice: Choice) -> str:
        """Why the author ends the run, which it may once a program has passed; what its reply took is in the record."""
        why = nothing_left(reply.text) if reply.outcome == "text" and choice.candidate is None else None
        if not why or best(self.writer.attempts) is None:
            return ""
        step = len(self.writer.attempts) + 1
        attempt = Attempt(
            step, "done", usage=reply.usage, note=why, reply=clean(reply.text), seconds=reply.usage.seconds
        )
        self.writer.append(attempt)
        self.on_event(StepEnded(attempt, False))
        return why

    def leave(self) -> None:
        """What is still being asked for is given up; what it has taken until now counts."""
        if self.ahead is not None and self.early is not None:
            self.asking.given_up(self.early)

    def _turn(self) -> Turn:
        name, tune = self.settings.strategy, self.settings.tune
        return turn(name, self.writer.attempts, tune, ahead=by_prompt(self.provider))

    def _over(self) -> tuple[Stop, str] | None:
        history = self.writer.attempts
        if history and history[-1].outcome == "done" and self.provider.name == self.writer.run.provider:
            return Stop.DONE, history[-1].note  # another author may see more
        patience = max(REFUSALS, len(every(self.provider)))
        if len(history) >= patience and all(a.outcome == "refused" for a in history[-patience:]):
            return Stop.REFUSED, history[-1].note
        if len(history) > 1 and all(a.outcome == "too_long" for a in history[-2:]):
            raise ProviderError(
                f"{history[-1].reply} (this was the shortest prompt; name a model with a larger window)"
            )
        return used_up(self.settings.budget, history)

    def _reply(self, now: Turn, place: int, kept: Reply | None) -> tuple[Reply, float]:
        """A reply that was paid for earlier, the tuner's, or the author's; and for how many seconds of asking nobody
        waited."""
        coming, self.ahead = self.ahead, None
        if coming is not None:
            return coming.wait()
        self._started(len(self.writer.attempts) + 1)
        if kept is not None:
            return kept, 0.0
        if now.choice.candidate is not None:
            return Reply(now.choice.note), 0.0
        before = waited(self.judge)
        reply = self.asking.answer(self._question(now, place, self.writer.attempts))
        return reply, waited(self.judge) - before

    def _started(self, step: int) -> None:
        self.on_event(StepStarted(step, self.settings.budget.attempts))

    def _question(self, now: Turn, place: int, paid: tuple[Attempt, ...]) -> Question:
        return self.asking.question(place, self.task.name, self._prompt(now), self.graph, now.known, paid)

    def _ask_ahead(self, step: int, usage: Usage) -> None:
        """Asks for the next step's program while this one is judged, where its request does not depend on that and the
        budget is sure to bear both."""
        history = self.writer.attempts
        next_one = turn_ahead(self.settings.strategy, history, self.settings.tune) if by_prompt(self.provider) else None
        paid = (*history, Attempt(step, "no_program", usage=usage))  # it counts, whatever the judge will say
        place = place_after(paid)
        if next_one is None or used_up(self.settings.budget, paid) or self.writer.kept(f"{step_name(place)}/{REPLY}"):
            return
        try:
            question = self._question(next_one, place, paid)
        except TooDear:
            return
        self._started(step + 1)
        self.early = question
        self.ahead = Ahead(lambda: self.asking.answer(question))

    def _prompt(self, now: Turn) -> Prompt:
        """The system text of a run is written once and then read, so that it stays the same to the byte."""
        told = prompt(self.task, now.known, now.choice, self.settings)
        system = self.writer.kept(SYSTEM)
        if system is None:
            self.writer.keep(SYSTEM, told.system)
        return told if system is None else replace(told, system=system)

    def _take(self, reply: Reply, choice: Choice, hidden: float) -> None:
        """From the reply to an attempt on the disk. hidden: seconds of its asking that count for the step before."""
        started, asked = time.monotonic() - waited(self.judge), max(0.0, reply.usage.seconds - hidden)
        step, place = len(self.writer.attempts) + 1, place_after(self.writer.attempts)
        read = self._read(step, reply, choice)
        attempt = read if isinstance(read, Attempt) else self._judge(step, read, reply, choice.note)
        attempt = replace(attempt, seconds=round(asked + time.monotonic() - waited(self.judge) - started, 3))
        self.writer.keep(f"{step_name(place)}/{REPORT}", _report(attempt), durable=False)
        self.writer.append(attempt)
        order = ranked(self.writer.attempts)
        self.on_event(StepEnded(attempt, order[:1] == (attempt,), slight_lead(order)))

    def _read(self, step: int, reply: Reply, choice: Choice) -> Candidate | Attempt:
        """A candidate to judge, or else the attempt that there is without judging."""
        if reply.outcome == "refused":
            return Attempt(step, "refused", usage=reply.usage, note=clean(reply.text))
        if reply.outcome in ("truncated", "too_long"):
            note = _TRUNCATED if reply.outcome == "truncated" else _TOO_LONG
            return Attempt(step, reply.outcome, usage=reply.usage, note=note, reply=clean(reply.text))
        if choice.candidate is None and nothing_left(reply.text):
            return Attempt(step, "no_program", usage=reply.usage, note=_NOT_DONE, reply=clean(reply.text))
        try:
            candidate = self._candidate(reply, choice)
        except NoProgram as correction:
            return Attempt(step, "no_program", usage=reply.usage, note=str(correction), reply=clean(reply.text))
        if found := self.sameness.earlier(candidate, self.writer.attempts):
            earlier, how = found
            note = f"{how} step {earlier.step}, which was judged already"
            return Attempt(step, "duplicate", candidate, usage=reply.usage, note=note)
        return candidate

    def _candidate(self, reply: Reply, choice: Choice) -> Candidate:
        history = self.writer.attempts
        last = history[-1] if history else None
        if last is not None and last.outcome == "interrupted" and last.candidate is not None:
            return last.candidate
        if choice.candidate is not None:
            return choice.candidate
        return Candidate(self.task.name, extract(reply.text), self._author(reply), choice.parent)

    def _author(self, reply: Reply) -> str:
        author = serving(self.provider, self.writer.attempts)
        model = reply.model or author.model
        return f"{author.name}/{model}" if model else author.name

    def _judge(self, step: int, candidate: Candidate, reply: Reply, note: str) -> Attempt:
        """Whatever breaks the judging off, the candidate has been paid for and is kept."""
        try:
            self._ask_ahead(step, reply.usage)
            with self.judging:
                evaluation = self.judge.evaluate(
                    candidate,
                    measure=self.settings.measure,
                    on_stage=lambda stage: self.on_event(StageReached(step, candidate.id, stage)),
                )
                evaluation = confirmed(self.judge, candidate, evaluation, self.writer.attempts)
        except BaseException:
            note = "its judging was broken off"
            self.writer.append(Attempt(step, "interrupted", candidate, usage=reply.usage, note=note))
            raise
        return Attempt(step, "evaluated", candidate, evaluation, reply.usage, note)


def _why(end: Exhausted | TooDear | Awaited) -> tuple[Stop, str]:
    if isinstance(end, TooDear):
        return end.stop, str(end)
    return Stop.WAITING if isinstance(end, Awaited) else Stop.DONE, str(end)


def _report(attempt: Attempt) -> str:
    """What the author is told of an attempt, for a person who looks into the folder."""
    where = f"Program: candidates/{attempt.candidate.id}.coda\n\n" if attempt.candidate else ""
    return f"{where}{feedback(attempt)}\n"

"""The tuner's search: one kernel after the other, the cost model proposes, builds on every core prune, a race decides.

For each kernel, the longest first, two rounds: shapes (mainloop, tile, depth), then the neighbours of the best shape.
The order of tries, and of turns in a race, follows from the seed; the budget decides only how far the search gets.
Without a GPU the model ranks what the builds have left, and every time is marked so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.schedule_space import hints_of
from coda_synth.evaluator.measured import Sample
from coda_synth.evaluator.proposed import Built, Proposal, TunedKernel

Schedules = Mapping[str, Schedule]
SHAPES, NEIGHBOURS, FINALISTS = 8, 8, 2  # of a kernel: tried in the rounds; of the first round, raced in the second too
RACE_S = 4.0  # at most, for one race
_MODEL_ERROR = 0.02  # of the model between two schedules: what it calls faster by less is not written into a text
_WORSE = 1.15  # modelled over the best modelled, beyond which a shape is not worth a build


@dataclass(frozen=True, slots=True)
class Try:
    """A kernel under one schedule. round: 0 for the schedule as written, else of the search; sample: of the whole
    program in its last race, None where nothing was measured."""

    kernel: str
    schedule: Schedule
    round: int
    built: Built
    sample: Sample | None = None

    @property
    def ms(self) -> float:
        """Measured where it was, else modelled; the two are never compared."""
        return self.sample.median_ms if self.sample else self.built.modelled_ms


@dataclass(frozen=True, slots=True)
class KernelResult:
    """tries: in order. best: the fastest, or the schedule as written where none is faster beyond doubt. pick:
    what the cost model alone would take of the last race. gap: how much longer the pick takes than the measured best of
    that race, as a part of it; None where nothing was measured."""

    kernel: str
    tries: tuple[Try, ...]
    best: Try
    pick: Try
    gap: float | None

    @property
    def hints(self) -> dict[str, int | str]:
        """Of the best schedule; {} where it is the one that was written."""
        return hints_of(self.best.schedule) if self.best.round else {}


class Bench(Protocol):
    """Who builds and measures."""

    def propose(
        self, kernel: str, now: Schedules, around: Schedule | None, known: Sequence[Schedule], count: int, seed: int
    ) -> list[Proposal]: ...

    def build(self, kernel: str, asked: Sequence[Schedules], deadline: float) -> list[Built | None]:
        """One result for each, in order; None for what the deadline left undone."""
        ...

    def race(self, contestants: Mapping[str, Schedules], seconds: float) -> dict[str, Sample]:
        """Milliseconds of the whole program, by name; without those that do not launch. {} where there is no GPU."""
        ...


@dataclass
class Search:
    """deadline: by the monotonic clock. say: told what is being done. complete: whether nothing was left out for want
    of time."""

    bench: Bench
    seed: int
    deadline: float
    say: Callable[[str], None] = lambda text: None
    complete: bool = True

    def run(self, kernels: Sequence[TunedKernel]) -> tuple[KernelResult, ...]:
        """Each kernel gets the part of the time left that its part of the modelled time asks for, and the best of the
        kernels before it."""
        now = {call: schedule for kernel in kernels for call, schedule in kernel.schedules.items()}
        found, left = [], sum(kernel.share for kernel in kernels)
        for kernel in kernels:
            start = time.monotonic()
            until = start + max(0.0, self.deadline - start) * kernel.share / left
            one = _KernelSearch(self.bench, kernel, now, self.seed, until, self.say)
            found.append(one.run())
            left -= kernel.share
            self.complete = self.complete and one.complete
            if found[-1].best.round:
                now |= dict.fromkeys(kernel.calls, found[-1].best.schedule)
        return tuple(found)


@dataclass
class _KernelSearch:
    bench: Bench
    kernel: TunedKernel
    now: Schedules  # of every call of the program
    seed: int
    until: float
    say: Callable[[str], None]
    tries: dict[Schedule, Try] = field(default_factory=dict)
    complete: bool = True

    def run(self) -> KernelResult:
        written = self.kernel.schedules[self.kernel.calls[0]]
        self._build(0, [written])
        proposed = self._proposed(None, SHAPES)
        least = min((p.modelled_ms for p in proposed), default=0.0)
        self._build(1, [p.schedule for p in proposed if p.modelled_ms <= _WORSE * least])
        self._race(list(self.tries), (self.until - time.monotonic()) / 2)
        leaders = sorted(self._runnable(), key=lambda t: t.ms)[:FINALISTS]
        finals = {written: None}
        if leaders:
            pick = min(self._runnable(), key=_by_the_model)
            finals |= dict.fromkeys(t.schedule for t in (pick, *leaders))
            near = [p.schedule for p in self._proposed(leaders[0].schedule, NEIGHBOURS)]
            finals |= dict.fromkeys(self._build(2, near))
            self._race(list(finals), self.until - time.monotonic())
        return self._result(written, list(finals))

    def _proposed(self, around: Schedule | None, count: int) -> list[Proposal]:
        return self.bench.propose(self.kernel.name, self.now, around, list(self.tries), count, self.seed)

    def _build(self, number: int, schedules: list[Schedule]) -> list[Schedule]:
        """Builds what the time allows; gives those that were built."""
        self.say(f"{self.kernel.name}: building {len(schedules)} schedules")
        built = self.bench.build(
            self.kernel.name, [self._with(s) for s in schedules], self.until if number else math.inf
        )
        done = {s: b for s, b in zip(schedules, built, strict=True) if b is not None}
        self.tries |= {s: Try(self.kernel.name, s, number, b) for s, b in done.items()}
        self.complete = self.complete and len(done) == len(schedules)
        return list(done)

    def _race(self, schedules: list[Schedule], seconds: float) -> None:
        """Measures those that were built and fit; what then does not launch is no longer runnable."""
        racing = [s for s in schedules if not self.tries[s].built.problem]
        random.Random(self.seed).shuffle(racing)
        if seconds <= 0:
            self.complete = False
        if seconds <= 0 or len(racing) < 2:
            return
        self.say(f"{self.kernel.name}: measuring {len(racing)} schedules")
        samples = self.bench.race({str(s): self._with(s) for s in racing}, min(RACE_S, seconds))
        for s in racing if samples else ():
            seen = replace(self.tries[s], sample=samples.get(str(s)))
            lost = replace(seen.built, problem="built, and does not run on this GPU")
            self.tries[s] = seen if seen.sample else replace(seen, built=lost)

    def _result(self, written: Schedule, finals: list[Schedule]) -> KernelResult:
        """The best of the last race, unless the schedule as written may be as fast."""
        last, own = [t for s in finals if not (t := self.tries[s]).built.problem], self.tries[written]
        best = min([t for t in last if t.sample] or last, key=lambda t: t.ms, default=own)
        pick = min(last, key=_by_the_model, default=own)
        gap = pick.ms / best.ms - 1 if pick.sample and best.sample else None
        if not own.built.problem and not _faster(best, own):
            best = own
        return KernelResult(self.kernel.name, tuple(self.tries.values()), best, pick, gap)

    def _runnable(self) -> list[Try]:
        return [t for t in self.tries.values() if not t.built.problem]

    def _with(self, schedule: Schedule) -> dict[str, Schedule]:
        """Of every call of the program; as written, the calls of one kernel may differ."""
        own = self.kernel.schedules
        here = own if schedule == own[self.kernel.calls[0]] else dict.fromkeys(self.kernel.calls, schedule)
        return {**self.now, **here}


def _by_the_model(tried: Try) -> float:
    return tried.built.modelled_ms


def _faster(new: Try, old: Try) -> bool:
    """Beyond both intervals; where nothing was measured, beyond the model's own error."""
    if new.sample and old.sample:
        return new.sample.high_ms < old.sample.low_ms
    return new.sample is not None or new.built.modelled_ms < (1 - _MODEL_ERROR) * old.built.modelled_ms

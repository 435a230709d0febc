"""The tuner's hands: compile workers, one for every core, and the device worker that races what they have built."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.channel import Message
from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, JudgeError, cannot
from coda_synth.evaluator.compilers import cores
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.evaluator.gpu import gpu_lock
from coda_synth.evaluator.measured import Sample
from coda_synth.evaluator.proposed import Built, Described, Proposal
from coda_synth.evaluator.serial import from_data, to_data

Schedules = Mapping[str, Schedule]
READ_S, BUILD_S, ENTER_S, RACE_S = 60.0, 120.0, 180.0, 120.0  # seconds at most, of one question
_HARMLESS = ("OutOfResources", "LoweringError", "ScheduleError")  # raised before anything ran on the device


@dataclass
class Workbench:
    """One candidate at one shape. device: by the cost model's name; runner: the device worker, None without a GPU;
    case: what it is given, but for the schedules. Use as a context manager."""

    source: str
    facts: TaskFacts
    sizes: Mapping[str, int]
    device: str
    case: Case
    runner: Child | None = None
    notes: list[str] = field(default_factory=list)

    def __enter__(self) -> Workbench:
        self._workers = [_compile_worker()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in (*self._workers, *([self.runner] if self.runner else [])):
            child.close()

    # ---- what the search asks ----------------------------------------------------------------------------------------

    def describe(self) -> Described:
        """Raises JudgeError where the text breaks the reader itself."""
        try:
            found: Described = from_data(Described, self._ask(self._workers[0], "describe", READ_S).data)
        except (ChildFailure, ChildRaised) as error:
            raise JudgeError(f"the candidate cannot be read: {error}") from error
        return found

    def propose(
        self, kernel: str, now: Schedules, around: Schedule | None, known: Sequence[Schedule], count: int, seed: int
    ) -> list[Proposal]:
        asked = {"kernel": kernel, "schedules": now, "around": around, "known": known, "count": count, "seed": seed}
        reply = self._ask(self._workers[0], "propose", READ_S, **asked)
        found: list[Proposal] = from_data(list[Proposal], reply.data["proposals"])
        return found

    def build(self, kernel: str, asked: Sequence[Schedules], deadline: float) -> list[Built | None]:
        """Every core compiles; a worker that dies or takes too long loses that schedule alone."""
        self._start(min(len(asked), cores()))
        idle: SimpleQueue[Child] = SimpleQueue()
        for child in self._workers:
            idle.put(child)

        def one(schedules: Schedules) -> Built | None:
            if time.monotonic() > deadline:
                return None
            child = idle.get()
            try:
                reply = self._ask(child, "build", BUILD_S, kernel=kernel, schedules=schedules)
                found: Built = from_data(Built, reply.data["built"])
                return found
            except (ChildFailure, ChildRaised) as error:
                if isinstance(error, ChildRaised) and error.raised.machine:
                    raise JudgeError(cannot("build", error)) from error
                return Built(0.0, problem=f"the build ended: {error}")
            finally:
                idle.put(child)

        with ThreadPoolExecutor(max(1, len(self._workers))) as threads:
            try:
                return list(threads.map(one, asked))
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise

    def race(self, contestants: Mapping[str, Schedules], seconds: float) -> dict[str, Sample]:
        """Without those that do not launch. One that takes the worker with it is left out; the others enter anew."""
        left = dict(contestants) if self.runner else {}
        while left:
            try:
                return self._raced(self._entered(left), seconds)
            except _Lost as error:
                left.pop(error.name)
        return {}

    def _entered(self, contestants: Mapping[str, Schedules]) -> list[str]:
        """Binds and runs each once; gives the names of those that did. Raises _Lost for one after which the worker is
        not to be trusted."""
        assert self.runner is not None
        self.runner.request("leave", ENTER_S)
        entered, facts = [], to_data(self.facts)
        for name, schedules in contestants.items():
            case = to_data(replace(self.case, schedules=schedules))
            try:
                self.runner.request(
                    "enter", ENTER_S, {"name": name, "source": self.source, "facts": facts, "case": case}
                )
                entered.append(name)
            except (ChildFailure, ChildRaised) as error:
                self.notes.append(f"{name} does not run: {(str(error).splitlines() or [''])[0][:200]}")
                if not (isinstance(error, ChildRaised) and error.raised.kind in _HARMLESS):
                    self.runner.close()
                    raise _Lost(name) from error
        return entered

    def _raced(self, names: Sequence[str], seconds: float) -> dict[str, Sample]:
        assert self.runner is not None
        if not names:
            return {}
        try:
            with gpu_lock(str(self.runner.ready().get("gpu", "none"))):
                reply = self.runner.request("race", RACE_S + seconds, {"names": list(names), "seconds": seconds})
        except (ChildFailure, ChildRaised) as error:
            raise JudgeError(f"the measurement ended: {error}") from error
        found: dict[str, Sample] = from_data(dict[str, Sample], reply.data["samples"])
        return found

    # ---- the workers -------------------------------------------------------------------------------------------------

    def _start(self, count: int) -> None:
        self._workers += [_compile_worker() for _ in range(count - len(self._workers))]
        for child in self._workers:
            child.start()

    def _ask(self, child: Child, op: str, seconds: float, **data: Any) -> Message:
        head = {"source": self.source, "signature": self.facts.signature, "sizes": self.sizes, "device": self.device}
        return child.request(op, seconds, to_data({**head, **data}))


class _Lost(Exception):
    """A contestant after which the device worker was ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _compile_worker() -> Child:
    return Child("coda_synth.evaluator.tuning", environment={"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"})


def device_worker() -> Child:
    """On the first GPU that is visible."""
    compiled = {"TRITON_INTERPRET": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return Child("coda_synth.evaluator.worker", environment=compiled, memory=64 << 30)

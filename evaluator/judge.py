"""The judge: takes a candidate through the stages, cheapest first, and says what it is worth.

The parent of the children. It runs neither a task's code nor a candidate's, imports neither torch nor triton, and
survives whatever happens to a child. See docs/evaluation.md.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from coda_synth.coda_api.devices import Device, UnknownDevice, device
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.channel import Message
from coda_synth.evaluator.checking import Checker, long_cases, meaning_cases
from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, JudgeError, out_of_memory
from coda_synth.evaluator.compilers import Compilers
from coda_synth.evaluator.evaluation import Candidate, Evaluation, Modelled, Verdict
from coda_synth.evaluator.facts import Case, Finding, Place, TaskFacts
from coda_synth.evaluator.gpu import memory_in_use
from coda_synth.evaluator.on_device import OnDevice
from coda_synth.evaluator.references import References
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.stream import Stream
from coda_synth.evaluator.trace import Graph
from coda_synth.evaluator.trial import StageFailed, Trial
from coda_synth.tasks.catalog import task_names

from coda_synth import __version__

__all__ = ["SEEDS", "Judge", "JudgeError", "Limits"]

SEEDS = 1 << 62  # of which each case of an evaluation takes one a little further on
_IN_MIB = {"M": 1, "G": 1 << 10, "T": 1 << 20}
_OTHERS_MIB = 2048  # that a desktop, or a driver, may hold of a GPU


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall-clock seconds of one request, and bytes of memory of one child."""

    read_s: float = 20.0
    build_s: float = 180.0
    check_s: float = 60.0
    device_s: float = 180.0
    measure_s: float = 420.0
    race_s: float = 0.6  # of timing at one shape
    counters_s: float = 180.0  # of a profiler, where counters are asked for
    memory: int = 12 << 30
    device_memory: int = 64 << 30


class Judge:
    """Judges candidates, one at a time, with children that stay warm in between. Use as a context manager.

    device: "cpu" checks and models only; "cuda" needs a GPU (JudgeError without one); "auto" takes a GPU if there is
    one. target: what the ahead-of-time build is for. seed: of every evaluation; a fresh secret one each time where
    None. counters: whether the profile of the headline shape has hardware counters, which take many seconds more.
    """

    def __init__(
        self,
        device: str = "auto",
        target: str = "sm_90",
        seed: int | None = None,
        *,
        counters: bool = False,
        limits: Limits = Limits(),
    ) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise JudgeError(f"the judge knows no device {device!r}; choose auto, cpu or cuda")
        self.device, self.target, self.seed, self.counters, self.limits = device, target, seed, counters, limits
        self.model_device = _known_device(target)
        gpu = {} if device != "cpu" else {"CUDA_VISIBLE_DEVICES": ""}
        package = "coda_synth.evaluator"
        compiles = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}  # whatever the user's own shell says
        self.builder = Child(f"{package}.build", environment=compiles, memory=limits.memory)
        oracle = functools.partial(Child, f"{package}.oracle", environment=gpu, memory=limits.device_memory)
        self.references = References.made(oracle)
        interpreted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.interpreter, self.second_interpreter = (
            Child(f"{package}.worker", environment=interpreted, memory=limits.memory) for _ in range(2)
        )
        compiled = {"TRITON_INTERPRET": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self.gpu = Child(f"{package}.worker", environment=compiled, memory=limits.device_memory)
        compiler = functools.partial(Child, f"{package}.build", environment=compiles, memory=limits.memory)
        self.compilers = Compilers(compiler)
        self._facts: dict[tuple[str, str], TaskFacts] = {}

    # ---- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Judge:
        atexit.register(self.close)
        more = [self.second_interpreter] if len(list(self.references)) > 2 else []
        for child in (*self.references, self.interpreter, *more, self.builder):
            child.start()  # they import side by side, and each is waited for on its first question
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every child; harmless twice."""
        atexit.unregister(self.close)
        for child in self._children():
            child.close()
        self.compilers.close()

    def _children(self) -> tuple[Child, ...]:
        return (self.builder, *self.references, self.interpreter, self.second_interpreter, self.gpu)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def trace(self, task: str) -> Graph:
        """The task's reference as a graph of operations, made in the reference child."""
        graph: Graph = from_data(Graph, self.ask_reference("trace", task=task).data["graph"])
        return graph

    def lint(self, task: str, dtype: str = "bfloat16") -> tuple[Finding, ...]:
        """What makes the task degenerate, with the evidence; () for a sound task."""
        reply = self.ask_reference("lint", task=task, dtype=dtype)
        found: tuple[Finding, ...] = from_data(tuple[Finding, ...], reply.data["findings"])
        return found

    def has_gpu(self) -> bool:
        """Whether candidates are checked and timed on a GPU; raises JudgeError where one was asked for and is not."""
        if self.device == "cpu":
            return False
        found = bool(self.references.first.ready().get("cuda"))
        if self.device == "cuda" and not found:
            raise JudgeError("a CUDA device was asked for, but torch sees none here; --device cpu checks without one")
        return found

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
        shapes: Sequence[str] = (),
        dtype: str = "bfloat16",
        small: bool = False,
    ) -> Evaluation:
        """Judges one candidate. seed: replays an evaluation exactly. measure: time it where there is a GPU.
        on_stage: told the name of each stage as it begins. shapes: labels of the task's shapes to time, () for the
        headline alone. small: neither check nor time it at those. Raises JudgeError when the judge itself cannot work,
        UnknownTask for a task that is none."""
        on_gpu = self.has_gpu()  # asked first: a GPU that is missing must not be found out after the checks
        facts = self._describe(candidate.task, dtype)
        chosen = next(s for s in (seed, self.seed, secrets.randbits(31)) if s is not None)
        if not 0 <= chosen < SEEDS:
            raise JudgeError(f"the seed {chosen} is out of range: a seed is a whole number from 0 to {SEEDS - 1}")
        if on_gpu:
            self.gpu.start()  # it imports meanwhile
        trial = Trial(candidate, facts, chosen, on_stage or (lambda _: None))
        trial.environment = {**self._environment(), "dtype": dtype, "task_hash": facts.source_hash}
        self._stages()  # whatever was asked before this evaluation
        try:
            self._read(trial)
            cases = self._plan(trial)
            own, second, device = self._shares(on_gpu)
            on_it = OnDevice(trial, self, device, tuple(shapes), small) if on_gpu else None
            interpreter = self.second_interpreter if second else self.interpreter
            beside = Stream(trial, interpreter, second, own, self.limits.check_s)
            with on_it or contextlib.nullcontext(), beside:
                self._build_and_check(trial, cases, own, beside, on_it)
                if on_it:
                    on_it.finish(measure)
        except (StageFailed, ChildFailure, ChildRaised) as error:
            trial.stages = self._stages()
            if out_of_memory(error) and (others := self.others_on_the_gpu(str(error))):
                raise JudgeError(
                    f"the GPU ran out of memory: {others}; wait until they have ended, or name another GPU by"
                    " CUDA_VISIBLE_DEVICES"
                ) from error
            return trial.failed(error)
        trial.stages = self._stages()
        return trial.passed()

    def others_on_the_gpu(self, said: str) -> str:
        """What other processes hold of a GPU's memory that did not suffice, as a clause; "" where they hold little, or
        where more than the whole of it was asked for, as `said` tells. Gives all that the judge holds back first: its
        children start again when they are asked."""
        for child in (self.gpu, *self.references):
            child.close()
        held, whole = memory_in_use() or (0, 0)
        asked = max(
            (float(n) * _IN_MIB[unit] for n, unit in re.findall(r"allocate ([\d.]+) ([MGT])iB", said)), default=0
        )
        if asked > whole or held <= max(_OTHERS_MIB, whole // 20):
            return ""
        return f"other processes hold {held:,} of its {whole:,} MiB"

    def _stages(self) -> dict[str, float]:
        """Seconds of work by child and step since the last call."""
        interpreters = [("interpreter", child) for child in (self.interpreter, self.second_interpreter)]
        named = [("build", self.builder), *interpreters, ("device", self.gpu)]
        found: dict[str, float] = {}
        for name, child in (*named, *(("reference", child) for child in self.references)):
            for step, spent in child.stages.items():
                found[f"{name} {step}"] = round(found.get(f"{name} {step}", 0.0) + spent, 3)
            child.stages.clear()
        return found

    # ---- stages ------------------------------------------------------------------------------------------------------

    def _read(self, trial: Trial) -> None:
        with trial.entering("read"):
            reply = self.builder.request("read", self.limits.read_s, self.asked(trial))
            if diagnostics := from_data(tuple[Diagnostic, ...], reply.data["diagnostics"]):
                raise StageFailed(Verdict.REJECTED, diagnostics)

    def _plan(self, trial: Trial) -> list[Case]:
        with trial.entering("build"):
            reply = self.builder.request("plan", self.limits.read_s, {**self.asked(trial), "seed": trial.seed})
            trial.schedules = from_data(dict[str, Schedule], reply.data["schedules"])
            trial.effective = from_data(dict[str, Schedule], reply.data["effective"])
            trial.output_places = from_data(dict[str, Place], reply.data["output_places"])
            trial.call_places = from_data(dict[str, Place], reply.data["call_places"])
            trial.device_sizes = from_data(dict[str, dict[str, int]], reply.data["device_sizes"])
            trial.environment["generated_hash"] = str(reply.data["generated_hash"])
            cases: list[Case] = from_data(list[Case], reply.data["cases"])
            return cases

    def _shares(self, on_gpu: bool) -> tuple[References, References | None, References | None]:
        """Who decides for those who work side by side: for the interpreter, a second one, and the GPU. The second one
        has fewest, since its cases take longest."""
        shares = self.references.shared(3 if on_gpu else 2)
        device = shares.pop() if on_gpu and len(shares) > 1 else None
        own = shares.pop()
        return own, shares.pop() if shares else None, device

    def _build_and_check(
        self, trial: Trial, cases: list[Case], own: References, beside: Stream, on_it: OnDevice | None
    ) -> None:
        """Compiles and checks side by side, since each takes seconds; a candidate that does not build is a BUILD_ERROR
        whatever the checks say."""
        start, problem = time.monotonic(), None
        self.builder.post("build", self.limits.build_s, self.asked(trial))
        try:
            self._check(trial, cases, own, beside, on_it)
        except (StageFailed, ChildFailure, ChildRaised) as error:
            problem = error
        trial.stage = "build"
        reply = self.builder.collect(max(1.0, self.limits.build_s - (time.monotonic() - start)))
        trial.resources = from_data(tuple[Resources, ...], reply.data["resources"])
        trial.modelled = from_data(tuple[Modelled, ...], reply.data["modelled"])
        trial.profile = list(reply.data["profile"])
        trial.seconds["build"] += round(sum(r.seconds for r in trial.resources), 3)
        trial.diagnostics += from_data(list[Diagnostic], reply.data["warnings"])
        trial.stage = "check"
        if problem:
            raise problem

    def _check(self, trial: Trial, cases: list[Case], own: References, beside: Stream, on_it: OnDevice | None) -> None:
        """The algebra, and then the generated code, pointer cases last; beside them what a second interpreter and a GPU
        make of it, where there are such."""
        checker = Checker(trial, own, self.limits.check_s)
        with trial.entering("check"):
            there = [case for case in cases if case.form == "pointer"]  # they take longest
            beside.begin(there)
            algebra = [*meaning_cases(trial.facts, trial.seed), *long_cases(trial.facts, trial.seed)]
            checker.check_all(self.interpreter, algebra)
            if on_it:
                on_it.begin()
            checker.check_all(self.interpreter, [case for case in cases if case not in there])
            beside.finish()

    # ---- what the stages ask with ------------------------------------------------------------------------------------

    def asked(self, trial: Trial) -> dict[str, object]:
        """What every question to the build child carries."""
        return {
            "source": trial.candidate.source,
            "facts": to_data(trial.facts),
            "schedules": to_data(trial.candidate.schedules),
            "target": self.target,
            "device": self.model_device.name,
        }

    def _describe(self, task: str, dtype: str) -> TaskFacts:
        if task not in task_names():
            from coda_synth.tasks.catalog import UnknownTask

            raise UnknownTask(task)
        if (task, dtype) not in self._facts:
            reply = self.ask_reference("describe", task=task, dtype=dtype)
            self._facts[task, dtype] = from_data(TaskFacts, reply.data["facts"])
        return self._facts[task, dtype]

    def release(self, task: str, dtype: str, case: Case) -> None:
        """Makes every reference child give the GPU's memory back, but for the oracle of one case."""
        for child in self.references:
            self.ask_reference("release", child, task=task, dtype=dtype, case=to_data(case))

    def ask_reference(self, op: str, of: Child | None = None, **data: object) -> Message:
        """Asks a reference child, the first where none is named; whatever befalls it is the judge's failure, not a
        candidate's."""
        try:
            return (of or self.references.first).request(op, 120.0, data)
        except (ChildFailure, ChildRaised) as error:
            raise JudgeError(f"the reference child failed ({op} {data.get('task', '')}): {error}") from error

    def _environment(self) -> dict[str, str]:
        """The receipt's first lines; a GPU adds its own."""
        versions = {**self.builder.ready(), "torch": str(self.references.first.ready()["torch"])}
        return {"target": self.target, "model_device": self.model_device.name, "version": __version__, **versions}


def _known_device(target: str) -> Device:
    try:
        return device(target)
    except UnknownDevice as error:
        raise JudgeError(f"cannot judge for the target {target!r}: {error}") from error

"""The result of judging one candidate, as data. The verdict says which fields exist, and the type enforces it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule


class Verdict(StrEnum):
    REJECTED = "REJECTED"  # the language said no
    BUILD_ERROR = "BUILD_ERROR"  # it does not compile, or cannot fit the target
    RUNTIME_ERROR = "RUNTIME_ERROR"  # it ran and raised
    INCORRECT = "INCORRECT"  # its numbers are outside the bound
    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"  # its process died
    PASSED = "PASSED"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program for a task. schedules: overrides by call name, chosen by a tuner, beside the text's own hints."""

    task: str
    source: str
    author: str = "person"
    parent: str | None = None
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Ten hex digits of the hash of task, source and schedules."""
        tuned = "".join(f"\0{name}={s}" for name, s in sorted(self.schedules.items()))
        return hashlib.sha256(f"{self.task}\0{self.source}{tuned}".encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison with the oracle. error_ratio: the worst actual error over its allowed error; at most 1 passes."""

    stage: str  # "meaning" (float64 algebra), "interpreter", "device"
    sizes: Mapping[str, int]
    style: str
    seed: int
    form: str  # "reference", "descriptor", "pointer"
    error_ratio: float
    worst: str = ""  # the output and element where it is worst, in words
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.error_ratio <= 1.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """A named peer timed in the same process, interleaved. Milliseconds."""

    name: str  # "bare_gemm", "eager", "compile"
    median_ms: float
    low_ms: float  # confidence interval of the median
    high_ms: float


@dataclass(frozen=True, slots=True)
class Timing:
    """A measurement on a device; exists only for a candidate that PASSED. Milliseconds."""

    shape: str  # the task's label of the shape
    sizes: Mapping[str, int]
    device: str
    median_ms: float
    low_ms: float
    high_ms: float
    repeats: int
    bound_ms: float  # the cost model's bound on this device
    prepare_ms: float  # once per weight update, outside the timed path
    baselines: tuple[Baseline, ...]
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    calls_ms: Mapping[str, float] = field(default_factory=dict)  # each call's launches; empty where not seen

    def ratio(self, baseline: str) -> float | None:
        """Time of the named baseline over ours: above 1 we are faster. None where it was not measured."""
        return next((b.median_ms / self.median_ms for b in self.baselines if b.name == baseline), None)


@dataclass(frozen=True, slots=True)
class Modelled:
    """The cost model's words for one shape on a named device. Never ranks beside a Timing."""

    shape: str
    sizes: Mapping[str, int]
    device: str
    bytes: int
    flops: int
    bound_ms: float  # no kernel can be faster: the task's least traffic and flops
    estimate_ms: float  # this candidate, with its own traffic, launches, waves and tiles
    bare_gemm_ms: float
    floor_ms: float = 0.0  # the bare GEMMs, or the least bytes, at sustained rates, without passes that are due
    calls_ms: Mapping[str, float] = field(default_factory=dict)  # the estimate, by call


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One judged candidate."""

    candidate: str  # its id
    task: str
    verdict: Verdict
    stage: str  # the last stage reached: read, build, check, device, measure
    seed: int
    diagnostics: tuple[Diagnostic, ...] = ()
    checks: tuple[Check, ...] = ()
    resources: tuple[Resources, ...] = ()
    modelled: tuple[Modelled, ...] = ()
    timings: tuple[Timing, ...] = ()
    confirmed: tuple[Timing, ...] = ()  # the same shapes measured again, on a fresh seed, before it led
    schedules: Mapping[str, Schedule] = field(default_factory=dict)  # by kernel call, what was left to choose filled in
    profile: tuple[str, ...] = ()  # what bounds it, in words and figures an author can act on
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    stages: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds of work by child and step, "device baseline eager"

    @property
    def figures(self) -> tuple[Timing | Modelled, ...]:
        """Its times, by shape, the headline first: measured ones where there are any, else modelled ones. None for what
        did not pass, whatever a cost model once said of it."""
        if self.verdict is not Verdict.PASSED:
            return ()
        return self.timings or self.modelled

    def __post_init__(self) -> None:
        if (self.timings or self.confirmed) and self.verdict is not Verdict.PASSED:
            raise ValueError(f"a {self.verdict} candidate has no timings")
        if self.verdict is Verdict.REJECTED and (self.checks or self.resources):
            raise ValueError("a rejected candidate was neither built nor checked")
        if self.verdict is not Verdict.PASSED and not self.diagnostics:
            raise ValueError(f"a {self.verdict} evaluation must say why")
        if self.verdict is Verdict.PASSED and not (self.checks and all(c.passed for c in self.checks)):
            raise ValueError("a passed candidate has checks, and all of them passed")

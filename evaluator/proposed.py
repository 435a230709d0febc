"""What a compile worker of the tuner says of a candidate and its kernels, as data. Needs no triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel of a candidate. calls: those that are live; id: its first call's canonical name, the same in every
    program of one canonical form; share: its part of the program's modelled time; schedules: by call, as written."""

    name: str
    calls: tuple[str, ...]
    id: str
    share: float
    schedules: Mapping[str, Schedule]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schedule for every call of one kernel, and the program's modelled milliseconds with it."""

    schedule: Schedule
    modelled_ms: float


@dataclass(frozen=True, slots=True)
class Built:
    """What a build found. modelled_ms: with its spills; problem: why it cannot run, or ""."""

    modelled_ms: float
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """What a compile worker says of a text: what is wrong with it, or its canonical form's hash and its kernels.
    lowers: false for a program that the language allows and that has no text under the schedules as written."""

    diagnostics: tuple[Diagnostic, ...]
    form: str = ""
    kernels: tuple[TunedKernel, ...] = ()
    lowers: bool = True

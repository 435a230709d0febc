"""What the loop says while it runs, as data, for whoever shows it. Nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass

from coda_synth.runs.record import Attempt


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The author is being asked."""

    step: int
    attempts: int  # the budget


@dataclass(frozen=True, slots=True)
class StageReached:
    """The judge is at work on step's candidate."""

    step: int
    candidate: str
    stage: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The attempt is on the disk. leads: it is the best so far; slightly: by less than counts, in words, or ""."""

    attempt: Attempt
    leads: bool
    slightly: str = ""


Event = StepStarted | StageReached | StepEnded

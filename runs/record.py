"""The record's types: a Run is one task given to one author; an Attempt is one candidate of it and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.evaluator.evaluation import Candidate, Evaluation

OUTCOMES = ("evaluated", "duplicate", "no_program", "refused", "truncated", "too_long", "interrupted", "done")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one model call took. usd is None where the model has no known price, never 0 for an unknown one."""

    input_tokens: int = 0  # all of them: read from a cache, written to it, or neither
    cached_tokens: int = 0  # of these, read from a cache
    cache_write_tokens: int = 0  # of these, written to it
    output_tokens: int = 0  # thinking included
    usd: float | None = None
    seconds: float = 0.0  # wall clock, with the waits between tries
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One step of a run. outcome is one of OUTCOMES; an evaluation exists for "evaluated" alone.

    candidate is there for "evaluated", "duplicate" and "interrupted" (its judging was broken off); reply keeps the
    author's text where it holds no candidate. note: what the author is told about it, or why it was made.
    """

    step: int  # from 1
    outcome: str
    candidate: Candidate | None = None
    evaluation: Evaluation | None = None
    usage: Usage = field(default_factory=Usage)
    note: str = ""
    reply: str = ""
    seconds: float = 0.0  # wall clock of author and judge; waiting for a person left out

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"{self.outcome!r} is no outcome of an attempt; there are {', '.join(OUTCOMES)}")
        if (self.evaluation is not None) != (self.outcome == "evaluated"):
            raise ValueError(f"an evaluation belongs to evaluated attempts and to no others, not to {self.outcome!r}")
        if self.evaluation is not None and self.candidate is None:
            raise ValueError("an evaluated attempt has its candidate")


@dataclass(frozen=True, slots=True)
class Run:
    """The head of a run, written before its first attempt. settings hold no keys: only what the run depends on."""

    id: str
    task: str
    provider: str
    model: str
    settings: Mapping[str, str]
    started: str  # ISO 8601, UTC
    version: str
    commit: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How the latest session of a run ended. stop: the loop's word for it ("waiting" where it only pauses)."""

    stop: str
    detail: str
    at: str  # ISO 8601, UTC

    @property
    def reason(self) -> str:
        return f"{self.stop}: {self.detail}" if self.detail else self.stop

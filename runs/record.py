"""The record's types: a Run is one task given to one author; an Attempt is one candidate of it and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.evaluator.evaluation import Candidate, Evaluation


@dataclass(frozen=True, slots=True)
class Usage:
    """What one model call took. usd is None where the model has no known price, never 0 for an unknown one."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None
    seconds: float = 0.0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One step of a run. evaluation is None only for a reply without a program (`outcome` says what it was)."""

    step: int
    outcome: str  # "evaluated", "refused", "truncated", "no_program", "duplicate"
    candidate: Candidate | None = None
    evaluation: Evaluation | None = None
    usage: Usage = field(default_factory=Usage)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The head of a run, written before its first attempt."""

    id: str
    task: str
    provider: str
    model: str
    settings: Mapping[str, str]
    started: str  # ISO 8601, UTC
    version: str
    commit: str = ""

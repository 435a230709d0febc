"""What every author of candidates looks like to the loop: one request in, one reply out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt, Usage


class ProviderError(Exception):
    """The author cannot be reached or used at all (no key, wrong key, no such model, nothing left to replay).

    Never a verdict: it stops the run with the record intact. The message says what to do.
    """


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is told. system is stable across a run (and cached); user changes with every attempt."""

    system: str
    user: str


@dataclass(frozen=True, slots=True)
class Request:
    """One turn. A model reads the prompt; the planner reads the task's traced graph and the attempts instead."""

    task: str
    prompt: Prompt
    attempts: tuple[Attempt, ...]
    graph: Callable[[], Graph]  # traces the task in the reference child, on first use


@dataclass(frozen=True, slots=True)
class Reply:
    """The author's answer. outcome: "text", "refused", "truncated" or "done" (nothing better to propose)."""

    text: str
    outcome: str = "text"
    usage: Usage = field(default_factory=Usage)
    model: str = ""  # the id that the service reports


class Provider(Protocol):
    """An author. `name` and `model` go into the run's head."""

    name: str
    model: str

    def propose(self, request: Request) -> Reply:
        """One reply; raises ProviderError."""
        ...

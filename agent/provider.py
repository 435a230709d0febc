"""What every author of candidates looks like to the loop: one request in, one reply out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt, Usage


class ProviderError(Exception):
    """The author cannot be reached or used at all (no key, wrong key, no such model, nothing left to replay).

    Never a verdict: it stops the run with the record intact. The message says what to do.
    """


class BadOption(ProviderError):
    """An option of the author is missing or cannot be: an address that is none, no model, nothing to replay."""


class PromptTooLong(ProviderError):
    """The prompt does not fit into the model's window; a shorter one may."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a provider may be told; each takes what it needs. Keys are never here: providers read the environment."""

    model: str = ""  # "": the provider's default in models.toml
    base_url: str = ""  # "": the service's own address
    replies: Path | None = None  # what the scripted provider replays
    max_output_tokens: int = 64_000  # thinking included
    bounded: bool = False  # a server of one's own is told max_output_tokens too, because a budget counts on it
    wait: bool = True  # the exchange waits for a reply; else a missing one ends the session
    effort: str = "high"  # "" leaves it to the service
    seconds: float = 900.0  # wall clock of one call; the SDKs only limit the pause between two reads


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
    folder: Path | None = None  # of this step in the run's record; the prompt lies there as prompt.md
    number: int = 1  # of the author's replies in this run, the one asked for; from 1
    tries: int | None = None  # at most so many that begin an answer: the budget bears no more; None: the provider's own
    spoilt: list[Usage] = field(
        default_factory=list
    )  # by the provider: what tries took at most that broke in mid-answer
    running: list[Callable[[], Usage | None]] = field(
        default_factory=list
    )  # by the provider: what the try in hand has taken until now; None before its answer begins

    def broken(self) -> list[Usage]:
        """What was paid for and brought no answer, if none comes now."""
        return [*self.spoilt, *(usage for taken in tuple(self.running) if (usage := taken()))]


@dataclass(frozen=True, slots=True)
class Reply:
    """The author's answer. outcome: "text", "refused", "truncated", "too_long" (the prompt does not fit the model),
    "done" (nothing better to propose) or "stuck" (it cannot make a program for this task at all).

    text: of a refusal, what the service says about it, if anything; of "done" and "stuck", why.
    """

    text: str
    outcome: str = "text"
    usage: Usage = field(default_factory=Usage)
    model: str = ""  # the id that the service reports
    idle: float = 0.0  # seconds of waiting for a person, which count for nothing


class Provider(Protocol):
    """An author. `name` and `model` go into the run's head."""

    name: str
    model: str

    def propose(self, request: Request) -> Reply:
        """One reply; raises ProviderError."""
        ...


def by_prompt(provider: Provider) -> bool:
    """Whether it reads the prompt alone, so that it can be asked while an earlier candidate is judged; a provider says
    so by its attribute `by_prompt`."""
    return bool(getattr(provider, "by_prompt", False))


@runtime_checkable
class Paid(Provider, Protocol):
    """An author whose calls go to a model service."""

    max_output_tokens: int

    def check(self) -> None:
        """Asks the service, at no cost, whether the key is valid and the model there; raises ProviderError."""
        ...

    def count(self, prompt: Prompt) -> int | None:
        """The service's own count of the prompt's tokens; None where it has no such call. Raises ProviderError."""
        ...


def required_key(variable: str, provider: str) -> str:
    """The key in the environment; raises ProviderError at once, before an SDK is loaded or an attempt made."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ProviderError(
            f"the provider {provider} needs an API key and {variable} is not set: `export {variable}=...`, "
            "or use --provider planner, which needs none"
        )
    return key


def checked_url(url: str) -> str:
    """The address without a trailing slash; raises BadOption where it is none, or holds a secret."""
    if url and not url.startswith(("http://", "https://")):
        raise BadOption(f"{url!r} is no address of a service: it must start with http:// or https://")
    if "@" in url.partition("://")[2].partition("/")[0]:  # the address goes into the record, a key must not
        raise BadOption("the service's address must not hold a name or a key; put the key into its variable")
    return url.rstrip("/")

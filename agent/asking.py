"""One step's reply: the one that lies on the disk already, or one asked for now. No finished call is paid for twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from coda_synth.agent.budget import Budget, Stop, bearable_tries, by_tuner, cannot_afford
from coda_synth.agent.fallback import serving
from coda_synth.agent.models import default_model
from coda_synth.agent.prompting import as_text, later_text
from coda_synth.agent.provider import Paid, Prompt, PromptTooLong, Provider, Reply, Request
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt, Usage
from coda_synth.runs.store import RunWriter, StoreError, step_name

PROMPT, REPLY, WORDS, SPOILT, SYSTEM = "prompt.md", "reply.json", "reply.md", "spoilt.json", "system.md"
T = TypeVar("T")
Ask = Callable[[Callable[[], Reply]], Reply]  # calls an author
_UNKEPT = ("done", "stuck")  # says nothing that a later session must not ask again


def here(call: Callable[[], Reply]) -> Reply:
    """Calls the author in the caller's own thread."""
    return call()


class TooDear(Exception):
    """The next call might cost more than the budget holds."""

    def __init__(self, stop: Stop, why: str) -> None:
        super().__init__(why)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class Question:
    """What is ready to be sent. place: the number of the step's folder; spoilt: what broken tries took before."""

    author: Provider
    request: Request
    place: int
    spoilt: Usage


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks one author on behalf of one run."""

    provider: Provider
    writer: RunWriter
    budget: Budget
    ask: Ask = here

    def kept(self, place: int) -> Reply | None:
        """The reply in this step's folder, which an earlier session got and did not live to write down."""
        if again := _broken_off(self.writer.attempts):
            return again
        text = self.writer.kept(f"{step_name(place)}/{REPLY}")
        if text is None:
            return None
        reply = self._parsed(Reply, text, place, REPLY)
        self._say(place, reply)
        return reply

    def _parsed(self, kind: type[T], text: str, place: int, name: str) -> T:
        try:
            found: T = from_data(kind, json.loads(text))
        except ValueError as error:
            path = self.writer.step(place) / name
            raise StoreError(f"{path} is damaged ({error}); remove it to ask the author again") from None
        return found

    def question(
        self,
        place: int,
        task: str,
        prompt: Prompt,
        graph: Callable[[], Graph],
        known: tuple[Attempt, ...],
        paid: tuple[Attempt, ...],
    ) -> Question:
        """Everything up to the call: the prompt kept, the budget asked, room taken for the reply. Raises TooDear.

        known: the attempts that the prompt tells of. paid: all that took something, for the budget.
        """
        author, folder = serving(self.provider, known), step_name(place)
        text = later_text(prompt, SYSTEM) if place > 1 and getattr(author, "by_file", False) else as_text(prompt)
        self.writer.keep(f"{folder}/{PROMPT}", text, durable=False)
        broken = self.writer.kept(f"{folder}/{SPOILT}")
        spoilt = Usage() if broken is None else self._parsed(Usage, broken, place, SPOILT)
        tries = None
        if isinstance(author, Paid):
            tries = self._afford(author, prompt, (*paid, Attempt(0, "interrupted", usage=spoilt)))
        self.writer.reserve(f"{folder}/{REPLY}")
        number = 1 + sum(a.outcome != "interrupted" and not by_tuner(a) for a in paid)
        return Question(
            author, Request(task, prompt, known, graph, self.writer.step(place), number, tries), place, spoilt
        )

    def answer(self, question: Question) -> Reply:
        """The author's reply, on the disk before this returns; what tries took that broke off counts as its own."""
        folder, request = step_name(question.place), question.request
        started = time.monotonic()
        try:
            reply = self.ask(lambda: question.author.propose(request))
        except PromptTooLong as error:
            reply = Reply(str(error), "too_long")
        except BaseException:
            self.writer.release(f"{folder}/{REPLY}")
            self._note_broken(question)
            raise
        usage = _together(reply.usage, question.spoilt, *request.spoilt)
        took = max(usage.seconds, round(time.monotonic() - started - reply.idle, 3))
        reply = replace(reply, usage=replace(usage, seconds=took))
        if reply.outcome not in _UNKEPT:
            self.writer.keep(f"{folder}/{REPLY}", json.dumps(to_data(reply), indent=2) + "\n")
            self._say(question.place, reply)
        else:
            self.writer.release(f"{folder}/{REPLY}")
        return reply

    def given_up(self, question: Question) -> None:
        """Nobody waits for the answer any more: if it has not come, what it has taken is noted."""
        if self.writer.kept(f"{step_name(question.place)}/{REPLY}") is None:
            self._note_broken(question)

    def _note_broken(self, question: Question) -> None:
        if broken := question.request.broken():
            text = json.dumps(to_data(_together(question.spoilt, *broken)), indent=2) + "\n"
            self.writer.keep(f"{step_name(question.place)}/{SPOILT}", text)

    def _say(self, place: int, reply: Reply) -> None:
        """The reply as a person reads it; one that a person wrote lies there already."""
        name = f"{step_name(place)}/{WORDS}"
        if self.writer.kept(name) is None:
            self.writer.keep(name, reply.text, durable=False)

    def _afford(self, author: Paid, prompt: Prompt, paid: tuple[Attempt, ...]) -> int:
        """How many tries that begin an answer the budget bears, at worst."""
        model = author.model or default_model(author.name)
        why = cannot_afford(self.budget, paid, model, prompt, author.max_output_tokens)
        if why:
            raise TooDear(Stop.USD if "$" in why else Stop.TOKENS, why)
        return bearable_tries(self.budget, paid, model, prompt, author.max_output_tokens)


def _together(first: Usage, *more: Usage) -> Usage:
    """The sum; what a broken try took is an upper bound. Dollars are unknown where those of one part are."""
    parts = [usage for usage in (first, *more) if usage.input_tokens or usage.output_tokens]
    if parts in ([], [first]):
        return first
    usd = None if any(p.usd is None for p in parts) else sum(p.usd or 0.0 for p in parts)
    return replace(
        first,
        input_tokens=sum(p.input_tokens for p in parts),
        output_tokens=sum(p.output_tokens for p in parts),
        usd=usd,
    )


def _broken_off(history: tuple[Attempt, ...]) -> Reply | None:
    """A candidate whose judging was broken off is judged again, not asked for again."""
    last = history[-1] if history else None
    if last is None or last.outcome != "interrupted" or last.candidate is None:
        return None
    model = last.candidate.author.partition("/")[2]
    return Reply(f"~~~~\n{last.candidate.source.rstrip()}\n~~~~\n", usage=Usage(), model=model)

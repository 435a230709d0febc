"""One step's reply: the one that lies on the disk already, or one asked for now. No finished call is paid for twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from coda_synth.agent.budget import Budget, Stop, cannot_afford
from coda_synth.agent.fallback import serving
from coda_synth.agent.models import default_model
from coda_synth.agent.prompting import as_text
from coda_synth.agent.provider import Paid, Prompt, PromptTooLong, Provider, Reply, Request
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt, Usage
from coda_synth.runs.store import RunWriter, StoreError, step_name

PROMPT, REPLY, WORDS, SYSTEM = "prompt.md", "reply.json", "reply.md", "system.md"
_UNKEPT = ("done", "stuck")  # says nothing that a later session must not ask again


class TooDear(Exception):
    """The next call might cost more than the budget holds."""

    def __init__(self, stop: Stop, why: str) -> None:
        super().__init__(why)
        self.stop = stop


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks one author on behalf of one run."""

    provider: Provider
    writer: RunWriter
    budget: Budget

    def kept(self, step: int) -> Reply | None:
        """The reply to this step that an earlier session got and did not live to write down as an attempt."""
        text = self.writer.kept(f"{step_name(step)}/{REPLY}")
        if text is not None:
            try:
                reply: Reply = from_data(Reply, json.loads(text))
            except ValueError as error:
                place = self.writer.step(step) / REPLY
                raise StoreError(f"{place} is damaged ({error}); remove it to ask the author again") from None
            self._say(step, reply)
            return reply
        return _broken_off(self.writer.attempts)

    def ask(self, step: int, task: str, prompt: Prompt, graph: Callable[[], Graph]) -> Reply:
        """A new reply, on the disk before this returns; raises TooDear before a call that the budget may not bear."""
        place, history = step_name(step), self.writer.attempts
        author = serving(self.provider, history)
        self.writer.keep(f"{place}/{PROMPT}", as_text(prompt), durable=False)
        if isinstance(author, Paid):
            self._afford(author, prompt)
        self.writer.reserve(f"{place}/{REPLY}")
        started = time.monotonic()
        try:
            reply = author.propose(Request(task, prompt, history, graph, self.writer.step(step)))
        except PromptTooLong as error:
            reply = Reply(str(error), "too_long")
        except BaseException:
            self.writer.release(f"{place}/{REPLY}")
            raise
        took = max(reply.usage.seconds, round(time.monotonic() - started - reply.idle, 3))
        reply = replace(reply, usage=replace(reply.usage, seconds=took))
        if reply.outcome not in _UNKEPT:
            self.writer.keep(f"{place}/{REPLY}", json.dumps(to_data(reply), indent=2) + "\n")
            self._say(step, reply)
        else:
            self.writer.release(f"{place}/{REPLY}")
        return reply

    def _say(self, step: int, reply: Reply) -> None:
        """The reply as a person reads it; one that a person wrote lies there already."""
        place = f"{step_name(step)}/{WORDS}"
        if self.writer.kept(place) is None:
            self.writer.keep(place, reply.text, durable=False)

    def _afford(self, author: Paid, prompt: Prompt) -> None:
        model = author.model or default_model(author.name)
        why = cannot_afford(self.budget, self.writer.attempts, model, prompt, author.max_output_tokens)
        if why:
            raise TooDear(Stop.TOKENS if "tokens" in why else Stop.USD, why)


def _broken_off(history: tuple[Attempt, ...]) -> Reply | None:
    """A candidate whose judging was broken off is judged again, not asked for again."""
    last = history[-1] if history else None
    if last is None or last.outcome != "interrupted" or last.candidate is None:
        return None
    model = last.candidate.author.partition("/")[2]
    return Reply(f"~~~~\n{last.candidate.source.rstrip()}\n~~~~\n", usage=Usage(), model=model)

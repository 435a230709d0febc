"""The provider for the Chat Completions protocol at any address: vLLM, Ollama, llama.cpp and their like."""

from __future__ import annotations

import functools
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coda_synth.agent import models, retry
from coda_synth.agent.openai_provider import load_sdk
from coda_synth.agent.provider import BadOption, Options, Prompt, ProviderError, Reply, Request, checked_url
from coda_synth.runs.record import Usage

KEY = "CODA_SYNTH_API_KEY"
_OUTCOMES = {"length": "truncated", "content_filter": "refused"}
_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)  # some servers leave them in the answer, drafts and all


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    finish: str
    model: str
    usage: Any
    request_id: str


class OpenAICompatible:
    """One model of one server, both named by the user. Its key is CODA_SYNTH_API_KEY, if the server wants one."""

    name = "openai-compatible"
    by_prompt = True

    def __init__(self, options: Options) -> None:
        """Raises BadOption without an address or a model; loads no SDK yet."""
        self._base_url = checked_url(options.base_url)
        if not self._base_url:
            raise BadOption("openai-compatible needs the server's address: --base-url http://localhost:8000/v1")
        if not options.model:
            raise BadOption("openai-compatible needs --model: the name under which the server offers its model")
        self._key = os.environ.get(KEY, "").strip() or "none"  # the SDK wants one even where the server does not
        self._options = options
        self.model = options.model
        self._listed = True

    @property
    def max_output_tokens(self) -> int:
        return self._options.max_output_tokens

    def check(self) -> None:
        """Servers may lack the list of models; only one that has it can say that the model is missing."""
        try:
            listed = retry.call(self._service, lambda: [m.id for m in self._client.models.list()])
        except ProviderError as error:
            if "has no model" in str(error) or "refuses the request" in str(error):
                self._listed = False
                return
            raise
        if listed and self.model not in listed:
            shown = ", ".join(listed[:8])
            raise ProviderError(f"the server at {self._base_url} has no model {self.model!r}; it has {shown}")

    def count(self, prompt: Prompt) -> int | None:
        return None

    def propose(self, request: Request) -> Reply:
        started = time.monotonic()
        try:
            answer = retry.call(self._service, lambda: self._once(request), request)
        except ProviderError as error:
            if self._listed or "has no model" not in str(error):
                raise
            said = f"{error}; it knows no list of models either: is {self._base_url} right? Most end in /v1"
            raise ProviderError(said) from error
        return Reply(
            text=_THOUGHTS.sub("", answer.text).lstrip("\n"),
            outcome=_OUTCOMES.get(answer.finish, "text"),
            usage=_usage(answer, time.monotonic() - started),
            model=answer.model or self.model,
        )

    def _once(self, request: Request) -> _Answer:
        """Unless a budget counts on it, no limit on the answer's length is sent: each server knows its own."""
        limit: Any = {"max_tokens": self._options.max_output_tokens} if self._options.bounded else {}
        prompt = request.prompt
        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
        text, finish, model, usage = "", "", "", None
        asked = functools.partial(
            self._client.chat.completions.create,
            model=self.model,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **limit,
        )
        with retry.metered(request, self.model) as meter, asked() as stream:
            for chunk in retry.within(stream, self._options.seconds):
                model, usage = chunk.model or model, chunk.usage or usage
                meter.add()
                for choice in chunk.choices:
                    meter.add(choice.delta.content)
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
            if not finish:
                raise retry.BrokenStream("the connection closed in mid-answer")
            return _Answer(text, finish, model, usage, stream.response.headers.get("x-request-id", ""))

    @cached_property
    def _client(self) -> Any:
        return load_sdk().OpenAI(api_key=self._key, base_url=self._base_url, max_retries=0)

    @cached_property
    def _service(self) -> retry.Service:
        return retry.Service("the server", self._key, KEY, self.model, self._base_url, load_sdk())


def _usage(answer: _Answer, seconds: float) -> Usage:
    """Servers may leave out any of it."""
    used = answer.usage
    if used is None:
        return Usage(seconds=seconds, request_id=answer.request_id)
    read = getattr(used.prompt_tokens_details, "cached_tokens", 0) or 0
    tokens = models.Tokens(fresh=used.prompt_tokens - read, cache_read=read, output=used.completion_tokens)
    return Usage(
        input_tokens=used.prompt_tokens,
        cached_tokens=read,
        output_tokens=used.completion_tokens,
        usd=models.usd(answer.model, tokens),
        seconds=seconds,
        request_id=answer.request_id,
    )

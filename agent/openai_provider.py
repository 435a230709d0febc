"""The provider for OpenAI's Responses protocol: one streamed request a round, nothing stored at the service."""

from __future__ import annotations

import functools
import time
from functools import cached_property
from typing import Any

from coda_synth.agent import models, retry
from coda_synth.agent.provider import Options, Prompt, ProviderError, Reply, Request, checked_url, required_key
from coda_synth.runs.record import Usage

KEY = "OPENAI_API_KEY"
_FINAL = ("response.completed", "response.incomplete", "response.failed")
_PASSING = ("server_error", "rate_limit_exceeded", "overloaded", None, "")  # failures that another try may not meet


class OpenAI:
    """GPT models, or any server with the Responses protocol at base_url (which ends in /v1)."""

    name = "openai"
    by_prompt = True

    def __init__(self, options: Options) -> None:
        """Raises ProviderError without a key; loads no SDK yet."""
        self._key = required_key(KEY, self.name)
        self._options = options
        self._base_url = checked_url(options.base_url)
        self.model = options.model or models.default_model(self.name)

    @property
    def max_output_tokens(self) -> int:
        return self._options.max_output_tokens

    def check(self) -> None:
        retry.call(self._service, lambda: self._client.models.retrieve(self.model))

    def count(self, prompt: Prompt) -> int | None:
        found = retry.call(
            self._service,
            lambda: self._client.responses.input_tokens.count(
                model=self.model, instructions=prompt.system, input=[{"role": "user", "content": prompt.user}]
            ),
        )
        return int(found.input_tokens)

    def propose(self, request: Request) -> Reply:
        started = time.monotonic()
        response, request_id = retry.call(self._service, lambda: self._once(request), request)
        refusal = _refusal(response)
        return Reply(
            text=response.output_text if refusal is None else refusal,
            outcome=_outcome(response, refusal),
            usage=_usage(response, request_id, time.monotonic() - started),
            model=response.model,
        )

    def _once(self, request: Request) -> tuple[Any, str]:
        """The final response and its request id."""
        effort: Any = {"reasoning": {"effort": self._options.effort}} if self._options.effort else {}
        asked = functools.partial(
            self._client.responses.create,
            model=self.model,
            instructions=request.prompt.system,
            input=[{"role": "user", "content": request.prompt.user}],
            max_output_tokens=self._options.max_output_tokens,
            store=False,
            prompt_cache_key=f"coda-synth:{request.task}",
            stream=True,
            **effort,
        )
        with retry.metered(request, self.model) as meter, asked() as stream:
            for event in retry.within(stream, self._options.seconds):
                if event.type == "error":
                    raise _failure(event)
                meter.add(event.delta if event.type.endswith("_text.delta") else "")
                if event.type == "response.failed":
                    raise _failure(event.response.error)
                if event.type in _FINAL:
                    return event.response, stream.response.headers.get("x-request-id", "")
            raise retry.BrokenStream("the connection closed in mid-answer")

    @cached_property
    def _client(self) -> Any:
        return load_sdk().OpenAI(api_key=self._key, base_url=self._base_url or None, max_retries=0)

    @cached_property
    def _service(self) -> retry.Service:
        return retry.Service("OpenAI", self._key, KEY, self.model, str(self._client.base_url), load_sdk())


def load_sdk() -> Any:
    """The openai package; raises ProviderError where it is not installed."""
    try:
        import openai
    except ImportError:
        raise ProviderError("the package openai is not installed: `pip install 'openai>=3,<4'`") from None
    return openai


def _failure(error: Any) -> Exception:
    """An error that arrives inside a stream."""
    said = str(getattr(error, "message", None) or "the service failed in mid-answer")
    return retry.BrokenStream(said) if getattr(error, "code", None) in _PASSING else ProviderError(f"OpenAI: {said}")


def _refusal(response: Any) -> str | None:
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    return next((part.refusal for part in parts if part.type == "refusal"), None)


def _outcome(response: Any, refusal: str | None) -> str:
    reason = response.incomplete_details.reason if response.incomplete_details else None
    if refusal is not None or reason == "content_filter":
        return "refused"
    return "truncated" if response.status == "incomplete" else "text"


def _usage(response: Any, request_id: str, seconds: float) -> Usage:
    used = response.usage
    if used is None:
        return Usage(seconds=seconds, request_id=request_id)
    details = used.input_tokens_details
    read, written = (getattr(details, name, 0) or 0 for name in ("cached_tokens", "cache_write_tokens"))
    tokens = models.Tokens(used.input_tokens - read - written, read, written, 0, used.output_tokens)
    return Usage(
        input_tokens=used.input_tokens,
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=used.output_tokens,
        usd=models.usd(response.model, tokens),
        seconds=seconds,
        request_id=request_id,
    )

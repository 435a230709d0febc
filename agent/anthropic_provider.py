"""The provider for Anthropic's Messages protocol: one streamed request a round, the stable part of it cached."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

from coda_synth.agent import models, retry
from coda_synth.agent.provider import Options, Prompt, ProviderError, Reply, Request, checked_url, required_key
from coda_synth.runs.record import Usage

KEY = "ANTHROPIC_API_KEY"
_OUTCOMES = {"max_tokens": "truncated", "model_context_window_exceeded": "truncated", "refusal": "refused"}


class Anthropic:
    """Claude models, or any server that speaks the protocol at base_url (which ends before /v1)."""

    name = "anthropic"
    by_prompt = True

    def __init__(self, options: Options) -> None:
        """Raises ProviderError without a key; loads no SDK yet, which takes seconds."""
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
        messages = [{"role": "user", "content": prompt.user}]
        found = retry.call(
            self._service,
            lambda: self._client.messages.count_tokens(model=self.model, system=prompt.system, messages=messages),
        )
        return int(found.input_tokens)

    def propose(self, request: Request) -> Reply:
        started = time.monotonic()
        message, request_id = retry.call(self._service, lambda: self._once(request), request)
        outcome = _OUTCOMES.get(message.stop_reason, "text")
        text = "".join(block.text for block in message.content if block.type == "text")
        return Reply(
            text=_refusal(message) if outcome == "refused" else text,
            outcome=outcome,
            usage=_usage(message, request_id, time.monotonic() - started),
            model=message.model,
        )

    def _once(self, request: Request) -> tuple[Any, str]:
        """The whole message and its request id. Streamed, because the SDK refuses long answers otherwise."""
        effort: Any = {"output_config": {"effort": self._options.effort}} if self._options.effort else {}
        system = {"type": "text", "text": request.prompt.system, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        asked = self._client.messages.stream(
            model=self.model,
            max_tokens=self._options.max_output_tokens,
            system=[system],
            messages=[{"role": "user", "content": request.prompt.user}],
            thinking={"type": "adaptive"},
            **effort,
        )
        with retry.metered(request, self.model) as meter, asked as stream:
            for event in retry.within(stream, self._options.seconds):
                meter.add(_came(event))
            message = stream.get_final_message()
            if message.stop_reason is None:
                raise retry.BrokenStream("the connection closed in mid-answer")
            return message, stream.request_id or ""

    @cached_property
    def _client(self) -> Any:
        return self._sdk.Anthropic(api_key=self._key, base_url=self._base_url or None, max_retries=0)

    @cached_property
    def _sdk(self) -> Any:
        try:
            import anthropic
        except ImportError:
            raise ProviderError("the package anthropic is not installed: `pip install 'anthropic>=2,<3'`") from None
        return anthropic

    @cached_property
    def _service(self) -> retry.Service:
        address = str(self._client.base_url)
        return retry.Service("Anthropic", self._key, KEY, self.model, address, self._sdk)


def _came(event: Any) -> str | None:
    """The text that an event brings; the SDK's own events, which repeat it, bring none."""
    delta = getattr(event, "delta", None) if event.type == "content_block_delta" else None
    return getattr(delta, "text", None) or getattr(delta, "thinking", None)


def _refusal(message: Any) -> str:
    details = getattr(message, "stop_details", None)
    said = [str(getattr(details, name, None) or "") for name in ("category", "explanation")]
    return ": ".join(filter(None, said))


def _usage(message: Any, request_id: str, seconds: float) -> Usage:
    used = message.usage
    read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
    hour = getattr(used.cache_creation, "ephemeral_1h_input_tokens", 0) or 0
    tokens = models.Tokens(used.input_tokens, read, written - hour, hour, used.output_tokens)
    return Usage(
        input_tokens=tokens.input,
        cached_tokens=read,
        cache_write_tokens=written,
        output_tokens=used.output_tokens,
        usd=models.usd(message.model, tokens),
        seconds=seconds,
        request_id=request_id,
    )

"""One way to call a model service: what is worth another try, how long to wait, and what to tell the user at the end.

Both SDKs name their errors alike, so that one policy serves both; the SDKs' own retries are off, because they hide time
and cost and cannot see an error inside a stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity
from coda_synth.agent import models
from coda_synth.agent.provider import PromptTooLong, ProviderError, Request
from coda_synth.agent.tokens import at_most
from coda_synth.runs.record import Usage

T = TypeVar("T")
E = TypeVar("E")
FIRST_WAIT = 1.0  # seconds; doubled each time, with jitter, where the service names no time itself
LONGEST_WAIT = 120.0  # seconds; a service that asks for more is asked again by the user, not by us
_NO_CREDIT = ("insufficient_quota", "billing_error", "spend_limit", "SpendLimit")


_TOO_LONG = ("prompt is too long", "context_length_exceeded", "maximum context length", "exceeds the context")


class BrokenStream(Exception):
    """The answer ended before it was complete, though no error was raised; worth another try."""


@dataclass(frozen=True, slots=True)
class Service:
    """A model service as its error messages name it. key is kept out of every message. sdk: its Python module."""

    name: str
    key: str
    key_variable: str
    model: str
    address: str
    sdk: Any
    attempts: int = 4


@dataclass
class Meter:
    """What has come of an answer so far."""

    begun: bool = False
    characters: int = 0

    def add(self, text: str | None = "") -> None:
        self.begun = True
        self.characters += len(text or "")


@contextmanager
def metered(request: Request, model: str) -> Iterator[Meter]:
    """One try. If it breaks off after its answer has begun, whatever for, it will be billed: its whole prompt and what
    had come of the answer are noted, at most so many tokens at the dearest rate."""
    meter = Meter()

    def taken() -> Usage | None:
        asked = at_most(request.prompt.system + request.prompt.user)
        came = at_most(" " * meter.characters)
        worst = models.worst_usd(model, asked, came)
        return Usage(input_tokens=asked, output_tokens=came, usd=worst) if meter.begun else None

    request.running.append(taken)
    try:
        yield meter
    except BaseException:
        request.spoilt.extend(usage for usage in (taken(),) if usage)
        raise
    finally:
        request.running.remove(taken)


def call(service: Service, once: Callable[[], T], request: Request | None = None) -> T:
    """The result of once(), tried again where that can help and the request's budget bears it; raises ProviderError
    with what to do."""
    retrying = tenacity.Retrying(
        stop=lambda state: state.attempt_number >= service.attempts or _dear(request),
        wait=_wait,
        retry=tenacity.retry_if_exception(lambda error: _worth_it(error, service.sdk)),
        sleep=time.sleep,
        reraise=True,
    )
    try:
        return retrying(once)
    except ProviderError:
        raise
    except Exception as error:
        if not _from_service(error, service.sdk):
            raise
        # Not chained: the cause carries the request, and with it the key, into any traceback.
        kind = PromptTooLong if _too_long(error) else ProviderError
        tries = int(retrying.statistics.get("attempt_number", 1))
        raise kind(_scrubbed(_explain(error, service, tries, _dear(request)), service)) from None


def _dear(request: Request | None) -> bool:
    """Whether the budget bears no further try."""
    return request is not None and request.tries is not None and len(request.spoilt) >= request.tries


def within(events: Iterable[E], seconds: float) -> Iterator[E]:
    """The events of a stream; BrokenStream where they go on for longer. A silent stream is the SDK's own time-out."""
    deadline = time.monotonic() + seconds
    for event in events:
        yield event
        if time.monotonic() > deadline:
            raise BrokenStream(f"the answer took more than {seconds:.0f} seconds")


def _from_service(error: BaseException, sdk: Any) -> bool:
    """Anything else is a fault of ours and must not look like theirs."""
    base = getattr(sdk, "AnthropicError", None) or sdk.OpenAIError
    return isinstance(error, (base, BrokenStream)) or _is_transport(error)


def _is_transport(error: BaseException) -> bool:
    """A connection that breaks in mid-stream reaches us as the HTTP library's own error, from either SDK."""
    import httpx2

    return isinstance(error, httpx2.HTTPError)


def _worth_it(error: BaseException, sdk: Any) -> bool:
    if isinstance(error, (sdk.APIConnectionError, BrokenStream)) or _is_transport(error):
        return True
    if not isinstance(error, sdk.APIError) or _no_credit(error):
        return False
    status = getattr(error, "status_code", 200)  # 200, or none at all: an error inside a stream
    return (status in (200, 408, 409, 429) or status >= 500) and (_hint(error) or 0.0) <= LONGEST_WAIT


def _too_long(error: Any) -> bool:
    status, code = getattr(error, "status_code", None), str(getattr(error, "code", "") or "")
    long = any(mark in str(error) for mark in _TOO_LONG)
    return status == 413 or code == "context_length_exceeded" or (status == 400 and long)


def _no_credit(error: Any) -> bool:
    codes = " ".join(str(getattr(error, name, "") or "") for name in ("code", "type", "error_code"))
    names = type(error).__name__
    return getattr(error, "status_code", 0) == 402 or any(mark in codes or mark in names for mark in _NO_CREDIT)


def _hint(error: BaseException | None) -> float | None:
    """The wait that the service asks for, in seconds."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _wait(state: tenacity.RetryCallState) -> float:
    hint = _hint(state.outcome.exception() if state.outcome else None)
    return tenacity.wait_random_exponential(multiplier=FIRST_WAIT, max=30)(state) if hint is None else hint


def _explain(error: Any, service: Service, tries: int, dear: bool) -> str:
    status, said = getattr(error, "status_code", None), _said(error)
    if status in (401, 403):
        variable = service.key_variable
        return f"{service.name} refuses the key in {variable} ({status}): set {variable} to a valid one"
    if status == 404:
        return f"{service.name} has no model {service.model!r} at {service.address}: name another with --model ({said})"
    if _no_credit(error):
        return f"{service.name} says that this account has no credit left, or has met its limit: {said}"
    if isinstance(error, service.sdk.APIConnectionError) or _is_transport(error):
        return f"{service.name} cannot be reached at {service.address}: check the network and the address ({said})"
    if not _worth_it(error, service.sdk) and (_hint(error) or 0.0) > LONGEST_WAIT:
        return f"{service.name} asks to wait {_hint(error):.0f} seconds; try again after that"
    if _worth_it(error, service.sdk):
        often = "once" if tries == 1 else f"{tries} times"
        then = "the budget bears no further try" if dear else "try again later"
        return f"{service.name} failed {often}, last with: {said}; {then}"
    return f"{service.name} refuses the request ({status}): {said}"


def _said(error: Any) -> str:
    """The service's own words in one line, without what surrounds them."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    return " ".join(str(message or error or type(error).__name__).split())[:300]


def _scrubbed(text: str, service: Service) -> str:
    """Services quote the key that they refuse; it must not reach a screen, a log or the record."""
    return text.replace(service.key, "***") if len(service.key) > 4 else text

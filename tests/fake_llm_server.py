"""A model service on the loopback interface that speaks three real protocols: Anthropic's Messages, OpenAI's Responses
and Chat Completions, each streamed. What it does is chosen by the model's name (SCENARIOS); it keeps every request.

Run it to try the command line against it: `python tests/fake_llm_server.py reply.md` prints its address.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "sk-right-0123456789"
SCENARIOS = {
    "ok": "answers",
    "refuses": "declines to answer",
    "truncates": "runs out of tokens in mid-answer",
    "busy-then-ok": "429 with retry-after twice, then answers",
    "breaks-then-ok": "the connection breaks in mid-answer once, then it answers",
    "fails-then-ok": "sends an error inside the stream once, then answers",
    "down-then-ok": "503 (529 for Anthropic) once, then answers",
    "busy": "429, always, at once",
    "busy-for-hours": "429 with a retry-after of two hours",
    "cut": "ends the stream properly, but in mid-answer, always",
    "no-credit": "this account has no credit",
    "pauses": "answers half, and the rest when it is told to go on",
    "too-long": "the prompt does not fit into the model's window",
}
INPUT, CACHED, WRITTEN, OUTPUT = 4520, 3000, 1500, 11  # tokens, of every answer


@dataclass(frozen=True)
class Received:
    """One request as it came in. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeService:
    """`with FakeService(text) as service`: serves on service.url until the block ends.

    delay: seconds before each answer. credit: whether the account without credit has some after all.
    """

    text: str
    key: str = KEY
    delay: float = 0.0
    credit: bool = False
    requests: list[Received] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    _seen: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> FakeService:
        service = self

        class Handler(_Handler):
            fake = service

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def again(self, model: str) -> int:
        """How often this model was asked, this time included."""
        self._seen[model] += 1
        return self._seen[model]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *where: Any) -> None:
        """A client that hangs up in mid-answer is part of the tests; anything else is a fault and is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*where)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeService
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.fake.requests.append(Received(self.path, headers, body))
        model, times = body["model"], self.fake.again(body["model"])
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.fake.key:
            return self._error(401, "authentication_error", f"the key {given} is not valid", "invalid_api_key")
        if model not in SCENARIOS:
            return self._error(404, "not_found_error", f"no model {model}", "model_not_found")
        if model == "busy-then-ok" and times <= 2:
            return self._error(429, "rate_limit_error", "slow down", "rate_limit_exceeded", "0.02")
        if model == "down-then-ok" and times == 1:
            status = 529 if self._is("/v1/messages") else 503
            return self._error(status, "overloaded_error", "overloaded", "server_error", "0.02")
        if model == "busy":
            return self._error(429, "rate_limit_error", "slow down", "rate_limit_exceeded", "0")
        if model == "busy-for-hours":
            return self._error(429, "rate_limit_error", "slow down", "rate_limit_exceeded", "7200")
        if model == "no-credit" and not self.fake.credit:
            status = 402 if self._is("/v1/messages") else 429
            return self._error(status, "billing_error", "buy credit", "insufficient_quota")
        if model == "too-long":
            return self._error(400, "invalid_request_error", "prompt is too long", "context_length_exceeded")
        return self._answer(model, times)

    def do_GET(self) -> None:
        """The list of models, and one of them."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.fake.key:
            return self._error(401, "authentication_error", f"the key {given} is not valid", "invalid_api_key")
        wanted = self.path.partition("?")[0].removeprefix("/v1/models").strip("/")
        if wanted and wanted not in SCENARIOS:
            return self._error(404, "not_found_error", f"no model {wanted}", "model_not_found")
        one = {"object": "model", "type": "model", "display_name": "m", "created": 0, "owned_by": "us"}
        one |= {"created_at": "2026-01-01T00:00:00Z"}
        listed = {"object": "list", "data": [{"id": name, **one} for name in SCENARIOS], "has_more": False}
        self._json({"id": wanted, **one} if wanted else listed)

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, model: str, times: int) -> None:
        if self._is("/v1/messages/count_tokens") or self._is("/v1/responses/input_tokens"):
            return self._json({"object": "response.input_tokens", "input_tokens": INPUT})
        protocol = next((p for p in (Messages, Responses, Chat) if self._is(p.path)), None)
        if protocol is None:
            return self._error(404, "not_found_error", f"nothing at {self.path}", "not_found")
        time.sleep(self.fake.delay)
        events = list(protocol(model, self.fake.text).events())
        half = len(events) // 2
        broken = model == "breaks-then-ok" and times == 1
        if model == "cut" or broken:
            events = events[:half]
        if model == "fails-then-ok" and times == 1:
            events = [*events[:half], protocol.error]
        self._stream(events, broken, half if model == "pauses" else len(events))

    def _is(self, path: str) -> bool:
        return self.path.partition("?")[0] == path

    def _stream(self, events: list[Any], broken: bool, pause: int) -> None:
        self.send_response(200)
        if broken:
            self.send_header("content-length", "1000000")  # of which much less will come
        for name in ("request-id", "x-request-id"):
            self.send_header(name, "req_1")
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number, event in enumerate(events):
            if number == pause:
                self.fake.go_on.wait(60)
            named = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"{named}data: {data}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def _error(self, status: int, kind: str, message: str, code: str, wait: str = "") -> None:
        error = {"type": kind, "message": message, "code": code, "param": None}
        data = json.dumps({"type": "error", "error": error}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if wait:
            self.send_header("retry-after", wait)
        self.end_headers()
        self.wfile.write(data)


def _pieces(text: str) -> list[str]:
    """A stream comes in several parts, and never where one would like it to."""
    size = max(1, len(text) // 5)
    return [text[i : i + size] for i in range(0, len(text), size)]


@dataclass
class Messages:
    """Anthropic's protocol."""

    model: str
    text: str
    path = "/v1/messages"
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}

    def events(self) -> Iterator[dict[str, Any]]:
        stop = {"refuses": "refusal", "truncates": "max_tokens"}.get(self.model, "end_turn")
        details = (
            {"type": "refusal", "category": "frontier_llm", "explanation": "not this"} if stop == "refusal" else None
        )
        usage = {
            "input_tokens": INPUT - CACHED - WRITTEN,
            "cache_creation_input_tokens": WRITTEN,
            "cache_read_input_tokens": CACHED,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": WRITTEN},
            "output_tokens": 1,
        }
        head = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "usage": usage,
        }
        yield {"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None}}
        parts = [] if stop == "refusal" else [("thinking", "thinking", ["hm"]), ("text", "text", _pieces(self.text))]
        for index, (kind, name, pieces) in enumerate(parts):
            yield {"type": "content_block_start", "index": index, "content_block": {"type": kind, name: ""}}
            for piece in pieces:
                delta = {"type": f"{kind}_delta", name: piece}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": stop, "stop_sequence": None, "stop_details": details}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": OUTPUT}}
        yield {"type": "message_stop"}


@dataclass
class Responses:
    """OpenAI's protocol."""

    model: str
    text: str
    path = "/v1/responses"
    error = {"type": "error", "code": "server_error", "message": "boom", "param": None, "sequence_number": 9}

    def events(self) -> Iterator[dict[str, Any]]:
        for number, event in enumerate(self._events()):
            yield {**event, "sequence_number": number}

    def _events(self) -> Iterator[dict[str, Any]]:
        place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
        yield {"type": "response.created", "response": self._response("in_progress", [], None)}
        yield {"type": "response.output_item.added", "output_index": 0, "item": self._item([])}
        empty = {"type": "output_text", "text": "", "annotations": []}
        yield {"type": "response.content_part.added", **place, "part": empty}
        for piece in _pieces(self.text):
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        part = {"type": "output_text", "text": self.text, "annotations": []}
        if self.model == "refuses":
            part = {"type": "refusal", "refusal": "not this"}
        status = "incomplete" if self.model == "truncates" else "completed"
        yield {"type": f"response.{status}", "response": self._response(status, [self._item([part])], self._usage())}

    def _item(self, content: list[Any]) -> dict[str, Any]:
        return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}

    def _usage(self) -> dict[str, Any]:
        details = {"cached_tokens": CACHED, "cache_write_tokens": WRITTEN}
        total = INPUT + OUTPUT
        thinking = {"reasoning_tokens": 4}
        return {
            "input_tokens": INPUT,
            "input_tokens_details": details,
            "output_tokens": OUTPUT,
            "output_tokens_details": thinking,
            "total_tokens": total,
        }

    def _response(self, status: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 0,
            "model": self.model,
            "status": status,
            "output": output,
            "usage": usage,
            "error": None,
            "incomplete_details": reason,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
        }


@dataclass
class Chat:
    """The protocol of local servers."""

    model: str
    text: str
    path = "/v1/chat/completions"
    error = {"error": {"type": "server_error", "message": "boom", "code": 500, "param": None}}

    def events(self) -> Iterator[Any]:
        finish = {"refuses": "content_filter", "truncates": "length"}.get(self.model, "stop")
        base = {"id": "chat_1", "object": "chat.completion.chunk", "created": 0, "model": self.model}
        for piece in _pieces(self.text):
            delta = {"role": "assistant", "content": piece}
            yield {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
        yield {**base, "choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": CACHED}}}
        yield "[DONE]"


if __name__ == "__main__":
    with FakeService(Path(sys.argv[1]).read_text(encoding="utf-8")) as running:
        print(f"{running.url} (key {running.key}; models: {', '.join(SCENARIOS)})", flush=True)
        threading.Event().wait()

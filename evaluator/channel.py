"""How parent and child talk: framed messages on a pipe pair of their own, and the child's loop that answers them.

A frame is `length, nonce, header, blobs`: the nonce is drawn per process and handed over as the first bytes of the
request pipe, so nothing that a child prints, and no exit code, can pass for an answer. The header is JSON, the blobs
are raw bytes (tensors). Each question has a random tag that its answer repeats, so that no answer can be sent ahead,
or twice. This module does not start or end processes; child.py does.
"""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coda_synth.coda_api.errors import machine_fault
from coda_synth.evaluator import stopwatch

NONCE_BYTES = 16
_PREFIX = struct.Struct("<Q16sQ")  # bytes that follow the prefix, nonce, bytes of the header
PREFIX_BYTES = _PREFIX.size
MAX_FRAME = 1 << 32
_MAX_FILE = 64 << 20  # bytes that a child may write to one file, its log included


class BadFrame(Exception):
    """The bytes on the channel are no message of this conversation."""


@dataclass(frozen=True, slots=True)
class Message:
    """data: JSON values. blobs: raw buffers, in an order that `data` describes. tag: of the question."""

    data: Mapping[str, Any]
    blobs: tuple[bytes | bytearray | memoryview, ...] = ()
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a handler raised, as the parent sees it: the exception's class name, its text, where in our code."""

    kind: str
    message: str
    trace: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    machine: bool = False  # the operating system refused something: no fault of what was asked about


def encode(message: Message, nonce: bytes) -> list[bytes | bytearray | memoryview]:
    """The pieces of one frame, in order; blobs are not copied."""
    sizes = [len(memoryview(b).cast("B")) for b in message.blobs]
    header = json.dumps({"data": message.data, "blobs": sizes, "tag": message.tag}).encode()
    return [_PREFIX.pack(len(header) + sum(sizes), nonce, len(header)), header, *message.blobs]


def decode_prefix(prefix: bytes | bytearray, nonce: bytes) -> tuple[int, int]:
    """(bytes that follow, bytes of the header); raises BadFrame on a foreign nonce or an absurd length."""
    total, seen, header = _PREFIX.unpack(prefix)
    if seen != nonce or not header <= total <= MAX_FRAME:
        raise BadFrame("the bytes on the channel do not carry this conversation's nonce")
    return total, header


def decode(body: bytearray, header_bytes: int) -> Message:
    """The message of a frame's bytes after its prefix; raises BadFrame."""
    try:
        head = json.loads(bytes(body[:header_bytes]))
        data, sizes, tag = head["data"], [int(size) for size in head["blobs"]], str(head["tag"])
        if not isinstance(data, dict) or min(sizes, default=0) < 0:
            raise ValueError("the header's fields have other types")
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise BadFrame("the frame's header is not readable") from error
    if header_bytes + sum(sizes) != len(body):
        raise BadFrame("the frame's buffers do not have the sizes that its header says")
    view, start, blobs = memoryview(body), header_bytes, []
    for size in sizes:
        blobs.append(view[start : start + size])
        start += size
    return Message(data, tuple(blobs), tag)


# ---- the child's side ------------------------------------------------------------------------------------------------

Handler = Callable[[Mapping[str, Any], tuple[memoryview, ...]], Message]


class Answerable(Exception):
    """An exception whose `detail` (JSON values) should reach the parent with its text."""

    def __init__(self, text: str, detail: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.detail = detail


def serve(handlers: Mapping[str, Handler], hello: Callable[[], Mapping[str, Any]]) -> None:
    """Answers requests on the descriptors named in argv[1:3] until the parent closes the channel. Never returns an
    error: what a handler raises is an answer too."""
    read_fd, write_fd = int(sys.argv[1]), int(sys.argv[2])
    nonce = _read_exactly(read_fd, NONCE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE, _MAX_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _leave_with_the_parent(read_fd)
    _send(write_fd, Message({"hello": dict(hello())}), nonce)
    while True:
        total, header = decode_prefix(_read_exactly(read_fd, PREFIX_BYTES), nonce)
        request = decode(bytearray(_read_exactly(read_fd, total)), header)
        _send(write_fd, replace(_answer(handlers, request), tag=request.tag), nonce)


def _answer(handlers: Mapping[str, Handler], request: Message) -> Message:
    stopwatch.drained()
    try:
        with stopwatch.stage(op := request.data["op"]):
            answer = handlers[op](request.data, request.blobs)  # type: ignore[arg-type]
        return replace(answer, data={**answer.data, "stages": stopwatch.drained()})
    except (
        Exception
    ) as error:  # the one place: whatever a stage raises becomes data, and the parent makes a verdict of it
        detail = dict(error.detail) if isinstance(error, Answerable) else {}
        kind = type(error.__cause__ or error).__name__ if isinstance(error, Answerable) else type(error).__name__
        trace = "".join(traceback.format_exception(error)[-6:])
        raised = {"kind": kind, "message": str(error), "trace": trace, "detail": detail}
        return Message({"raised": {**raised, "machine": machine_fault(error) is not None}})


def _send(fd: int, message: Message, nonce: bytes) -> None:
    for piece in encode(message, nonce):
        view = memoryview(piece).cast("B")
        while view:
            view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes:
    """`count` bytes; the end of the channel means that the parent is done with us."""
    parts, left = [], count
    while left:
        part = os.read(fd, min(left, 1 << 24))
        if not part:
            os._exit(0)
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _leave_with_the_parent(read_fd: int) -> None:
    """A busy child does not read its channel; this thread sees the parent's end close, and ends the process."""

    def watch() -> None:
        poller = select.poll()
        poller.register(read_fd, 0)  # no events asked for: only a hang-up wakes it
        while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll()):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()

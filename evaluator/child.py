"""The parent's hold on one child process: starts it, asks it, and ends it when it breaks a limit or speaks out of turn.

Each child has a session of its own (so that the whole group can be killed and a Ctrl-C in the terminal does not reach
it), its own pipe pair, and a log file for whatever it prints. A child that failed is replaced on the next request.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from coda_synth.evaluator import stopwatch
from coda_synth.evaluator.channel import (
    NONCE_BYTES,
    PREFIX_BYTES,
    BadFrame,
    Message,
    Raised,
    decode,
    decode_prefix,
    encode,
)
from coda_synth.evaluator.processes import end, family, held_bytes
from coda_synth.evaluator.serial import SerialError, from_data

import coda_synth

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_SLICE_S = 0.05  # how often limits are looked at while waiting
_FAMILY_S = 0.5  # how often everything that the child started is looked for
_LOG_TAIL = 2000
_OWN = {
    "PYTHONUNBUFFERED": "1",  # what one candidate makes it print must not come out while the next one runs
    "PYTHONSAFEPATH": "1",  # a folder with a json.py in it must not replace parts of the judge that is called there
    **_ONE_THREAD,  # the matrices of a check are small: threads would wait for each other for most of the time
}
Blobs = tuple[bytes | bytearray | memoryview, ...]


class JudgeError(Exception):
    """The judge itself cannot work (no GPU where one was asked for, a child that does not start). Never a verdict."""


class ChildFailure(Exception):
    """The child is gone; the message says why, `tail` is the end of what it printed. call: the program's call that was
    found to be at fault, if one was."""

    def __init__(self, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail
        self.call: str | None = None


class ChildTimeout(ChildFailure):
    """It did not answer within its wall-clock limit, and was killed."""


class ChildCrashed(ChildFailure):
    """It died, ran over its memory limit, or sent bytes that are no answer."""


class ChildRaised(Exception):
    """The child lives, and its handler raised: an answer, for the stage to judge. call: whose code it was, if known."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(f"{raised.kind}: {raised.message}")
        self.raised = raised
        self.call: str | None = str(raised.detail.get("call") or "") or None


def out_of_memory(error: Exception) -> bool:
    """Whether a GPU's memory did not suffice, whoever says so: torch, triton, cuBLAS."""
    if not isinstance(error, ChildRaised):
        return False
    said = error.raised.message.lower()
    return error.raised.kind == "OutOfMemoryError" or "out of memory" in said or "cublas_status_alloc_failed" in said


def cannot(what: str, error: ChildRaised) -> str:
    """What to say where the machine, and not what is built or run, is at fault."""
    return f"this machine cannot {what} kernels: {error.raised.message}; TRITON_CACHE_DIR and TMPDIR name other folders"


class Child:
    """One warm process that runs `module`, whose main calls channel.serve. memory: bytes that it and everything that
    it started may hold together. prefix: a command that runs the command that follows it, as a profiler does."""

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        memory: int = 12 << 30,
        start_s: float = 120.0,
        prefix: Sequence[str] = (),
    ) -> None:
        self.module, self.prefix = module, tuple(prefix)
        self.environment = dict(environment or {})
        self.memory = memory
        self.start_s = start_s
        self.hello: Mapping[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._in, self._out = -1, -1
        self._nonce, self._tag = b"", ""
        self._family: list[int] = []
        self._family_seen, self._held_seen = 0.0, 0.0
        self._ready, self._open = False, False
        self.stages: dict[str, float] = {}  # seconds by step, as its answers say; whoever reads it clears it

    # ---- asking ------------------------------------------------------------------------------------------------------

    def request(self, op: str, seconds: float, data: Mapping[str, Any] = {}, blobs: Blobs = ()) -> Message:
        """One question and its answer. Raises ChildRaised, ChildTimeout, ChildCrashed or JudgeError."""
        self.post(op, seconds, data, blobs)
        return self.collect(seconds)

    def post(self, op: str, seconds: float, data: Mapping[str, Any] = {}, blobs: Blobs = ()) -> None:
        """Asks without waiting for the answer, which `collect` fetches; one question may be open at a time."""
        self.ready()
        self.forget(seconds)  # an answer that nobody fetched, since a stage ended early
        self.ready()
        self._open, self._tag = True, secrets.token_hex(8)
        self._forget_what_was_printed()
        with self._whole():
            self._write(encode(Message({"op": op, **data}, blobs, self._tag), self._nonce), time.monotonic() + seconds)

    def collect(self, seconds: float) -> Message:
        """The answer to the question that is open."""
        answer = self._read_message(time.monotonic() + seconds, seconds)
        self._open = False
        if "raised" in answer.data:
            raise ChildRaised(self._raised(answer))
        for step, spent in stopwatch.told(answer.data.get("stages")).items():
            self.stages[step] = self.stages.get(step, 0.0) + spent
        return replace(answer, data={name: value for name, value in answer.data.items() if name != "stages"})

    def _raised(self, answer: Message) -> Raised:
        try:
            found: Raised = from_data(Raised, answer.data["raised"])
        except SerialError as error:
            self._fail(ChildCrashed, f"its process was ended: it gave an answer that is none: {error}")
        return found

    def forget(self, seconds: float) -> None:
        """Waits for an answer that nobody wants any more, so that whoever asks next does not; what becomes of the
        child meanwhile is nobody's fault but the old question's. One that raised is ended: what it left behind, as a
        GPU's context after an illegal address, would be the next question's."""
        if self._open:
            with contextlib.suppress(ChildFailure):
                if "raised" in self._read_message(time.monotonic() + seconds, seconds).data:
                    self.close()
            self._open = False

    @property
    def busy(self) -> bool:
        """Whether a question is open."""
        return self._open

    @property
    def pid(self) -> int | None:
        process = self._process  # another thread may end it meanwhile
        return process.pid if process else None

    # ---- life and death ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the process without waiting for it to be ready, so that several can import at once."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        request_read, self._out = os.pipe()
        self._in, answer_write = os.pipe()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        os.write(self._out, self._nonce)  # before there is a process, which may be gone at once
        self._log = tempfile.TemporaryFile()
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # so that a file that was emptied grows from its start
        try:
            self._process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", self.module, str(request_read), str(answer_write)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(request_read, answer_write),
                start_new_session=True,
                env={**os.environ, **_OWN, **_import_path(), **self.environment},
            )
        except OSError as error:
            self.close()
            raise JudgeError(f"cannot start {self.module}: {error}") from error
        finally:
            os.close(request_read)
            os.close(answer_write)
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def ready(self) -> Mapping[str, Any]:
        """What it says of itself, once it can answer. Raises JudgeError if it does not start."""
        self.start()
        if self._ready:
            return self.hello
        try:
            answer = self._read_message(time.monotonic() + self.start_s, self.start_s)
        except ChildFailure as failure:
            raise JudgeError(f"{self.module} does not start: {failure}\n{failure.tail}".rstrip()) from failure
        self.hello, self._ready = answer.data.get("hello", {}), True
        return self.hello

    def dismiss(self, seconds: float) -> str:
        """Closes the channel, at which it leaves by itself, and waits for that and for what runs it; gives the end of
        what was printed. Raises ChildTimeout or ChildCrashed where it breaks a limit meanwhile."""
        process = self._process
        if process is None:
            return ""
        os.close(self._out)
        self._out = -1
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            time.sleep(_SLICE_S)
            self._enforce(deadline, seconds)
        tail = self._tail()
        self.close()
        return tail

    def close(self) -> None:
        """Ends the process and its group, and gives back the descriptors; harmless when there is none."""
        if self._process is not None:
            end(self._process.pid)
            self._process.wait()
        for fd in (self._in, self._out):
            if fd >= 0:
                os.close(fd)
        if self._log is not None:
            self._log.close()
        self._process, self._log, self._in, self._out = None, None, -1, -1
        self._ready, self._open, self._tag, self._family = False, False, "", []

    def _forget_what_was_printed(self) -> None:
        """What one candidate makes a child print is neither room taken from the next one nor its last words."""
        if self._log is not None:
            os.ftruncate(self._log.fileno(), 0)

    # ---- the wire ----------------------------------------------------------------------------------------------------

    def _write(self, pieces: list[Any], deadline: float) -> None:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            while view:
                _, writable, _ = select.select([], [self._out], [], _SLICE_S)
                self._enforce(deadline, deadline - time.monotonic())
                try:
                    view = view[os.write(self._out, view) :] if writable else view
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    self._died()

    def _read_message(self, deadline: float, seconds: float) -> Message:
        """The answer to the last question; what carries another tag answers none, and is dropped."""
        try:
            with self._whole():
                while True:
                    total, header = decode_prefix(self._read(PREFIX_BYTES, deadline, seconds), self._nonce)
                    message = decode(self._read(total, deadline, seconds), header)
                    if message.tag == self._tag:
                        return message
        except BadFrame as error:
            self._fail(ChildCrashed, f"its process was ended: {error}")

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """A frame, or no child: after Ctrl-C half of one may be on the wire, and what the child is at may hang."""
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            raise

    def _read(self, count: int, deadline: float, seconds: float) -> bytearray:
        buffer = bytearray()
        while len(buffer) < count:
            readable, _, _ = select.select([self._in], [], [], _SLICE_S)
            if readable:
                part = os.read(self._in, min(count - len(buffer), 1 << 24))
                if not part:
                    self._died()
                buffer += part
            self._enforce(deadline, seconds)
        return buffer

    def _enforce(self, deadline: float, seconds: float) -> None:
        if time.monotonic() > deadline:
            self._fail(ChildTimeout, f"no answer within the limit of {max(seconds, 0):.0f} s; its process was killed")
        if (now := time.monotonic()) - self._held_seen < _SLICE_S:
            return
        self._held_seen = now
        if (used := self._held()) > self.memory:
            held, allowed = used / 2**30, self.memory / 2**30
            words = f"its process and what it started held {held:.1f} GiB, more than the {allowed:.1f} GiB allowed"
            self._fail(ChildCrashed, f"memory limit: {words}")

    def _held(self) -> int:
        """Bytes that the child and everything it started hold. Looking for these costs more, and is done less often."""
        if self._process is None:
            return 0
        if (now := time.monotonic()) - self._family_seen > _FAMILY_S:
            self._family_seen, self._family = now, family(self._process.pid)
        return held_bytes([self._process.pid, *(pid for pid in self._family if pid != self._process.pid)])

    def _died(self) -> NoReturn:
        """The channel closed: the process is gone, or will be in a moment."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._fail(ChildCrashed, "its process closed the channel without an answer")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._fail(ChildCrashed, f"its process {how} before it answered")

    def _fail(self, failure: type[ChildFailure], message: str) -> NoReturn:
        tail = self._tail()
        self.close()
        raise failure(message, tail)

    def _tail(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL))
        return self._log.read().decode(errors="replace").strip()


def _import_path() -> dict[str, str]:
    """The child must find the same coda_synth, also from a bare checkout that nobody installed."""
    root = str(Path(coda_synth.__file__).resolve().parent.parent)
    already = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{root}{os.pathsep}{already}" if already else root}

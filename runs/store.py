"""The only writer and reader of runs/<id>/: a head, one line an attempt, and the candidates as files. It ranks nothing.

An attempt is on the disk (flushed and synced) before `append` returns, so that a crash loses at most the step in hand.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coda_synth.evaluator.serial import SerialError, from_data, to_data
from coda_synth.runs.record import Attempt, Run

HEAD, ATTEMPTS, CANDIDATES = "run.json", "attempts.jsonl", "candidates"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class StoreError(Exception):
    """The record cannot be written or read; one sentence that says which file, why, and what to do."""


class UnknownRun(StoreError):
    """No run, or more than one, has this name."""


@dataclass(frozen=True, slots=True)
class Record:
    """A run as it lies on the disk. note: what had to be left out of it ("" where nothing was)."""

    run: Run
    attempts: tuple[Attempt, ...]
    note: str = ""


def default_root(chosen: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where runs lie: the chosen folder, else CODA_SYNTH_RUNS, else ./runs."""
    return Path(chosen or environ.get("CODA_SYNTH_RUNS") or "runs")


def new_run_id(task: str, now: datetime | None = None) -> str:
    """20261129-171501-linear_swiglu-3f2a: UTC, so that names sort by time; four random hex digits."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%d-%H%M%S}-{task}-{secrets.token_hex(2)}"


class RunWriter:
    """Appends to one run. `attempts` are those written so far."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.run = run
        self.attempts: tuple[Attempt, ...] = ()

    def append(self, attempt: Attempt) -> None:
        """Writes the candidate's file and then the attempt's line, whole and synced; raises StoreError.

        Ctrl-C in the middle of it is raised when the attempt is written: it has been paid for.
        """
        try:
            self._write(attempt)
        except KeyboardInterrupt:
            self._write(attempt)
            raise

    def _write(self, attempt: Attempt) -> None:
        """Can be repeated: what is on the disk already is not written again."""
        line = json.dumps(to_data(attempt)).encode() + b"\n"  # ASCII: a stray surrogate of a model cannot break it
        path = self.folder / ATTEMPTS
        try:
            if attempt.candidate is not None:
                _replace(self.folder / CANDIDATES / f"{attempt.candidate.id}.coda", attempt.candidate.source)
            if not _ends_with(path, line):
                _append(path, line)
        except OSError as error:
            raise _cannot("write", self.folder, error) from error
        if self.attempts[-1:] != (attempt,):
            self.attempts += (attempt,)


class Store:
    """The runs under one folder. The folder is made by the first run, never by looking."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, run: Run) -> RunWriter:
        """Makes the run's folder and writes its head; raises StoreError."""
        if not _ID.fullmatch(run.id):
            raise StoreError(f"{run.id!r} cannot name a run's folder: letters, digits, '_', '.' and '-' only")
        wrong = [name for name, value in run.settings.items() if not isinstance(value, str)]
        if wrong:
            raise StoreError(f"the run's setting {wrong[0]!r} must be text, so that every version can read it")
        folder = self.root / run.id
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise StoreError(f"{folder} exists already; a run never writes over another") from None
        except OSError as error:
            raise _cannot("write", self.root, error) from error
        try:
            (folder / CANDIDATES).mkdir()
            _append(folder / ATTEMPTS, b"")
            _replace(folder / HEAD, json.dumps(to_data(run), indent=2) + "\n")
            _sync_folder(self.root)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _cannot("write", folder, error) from error
        return RunWriter(folder, run)

    def ids(self) -> tuple[str, ...]:
        """Every run, oldest first. A folder without a head is no run: in a checkout our own files lie here."""
        try:
            return tuple(sorted(path.parent.name for path in self.root.glob(f"*/{HEAD}")))
        except OSError as error:
            raise _cannot("read", self.root, error) from error

    def load(self, run_id: str) -> tuple[Run, tuple[Attempt, ...]]:
        """A run by its whole id; raises StoreError."""
        record = self.read(run_id)
        return record.run, record.attempts

    def read(self, run_id: str) -> Record:
        """Like load, with a note where the last line was torn by a crash and is left out; raises StoreError."""
        if run_id not in self.ids():
            raise self._unknown(run_id)
        head, path = self.root / run_id / HEAD, self.root / run_id / ATTEMPTS
        run: Run = _parse(Run, _load_json(_read(head), head), head)
        lines = _read(path).splitlines(keepends=True) if path.exists() else []
        note = ""
        if lines and _torn(lines[-1]):
            lines.pop()
            note = f"the last line of {path} was cut off in mid-write and is left out: that attempt is lost"
        attempts = (_attempt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
        return Record(run, tuple(attempts), note)

    def resolve(self, name: str = "latest") -> str:
        """The id that a person means: an id, a part of exactly one, or "latest" (also ""); raises UnknownRun."""
        ids = self.ids()
        if name in ("", "latest"):
            if not ids:
                raise UnknownRun(f"there are no runs under {self.root}; `coda-synth synth TASK` makes one")
            return max(ids, key=lambda i: (i[:15], (self.root / i / HEAD).stat().st_mtime_ns))  # ids tell seconds only
        matches = [name] if name in ids else [i for i in ids if i.startswith(name)] or [i for i in ids if name in i]
        if len(matches) > 1:
            raise UnknownRun(f"{name!r} names {len(matches)} runs: {', '.join(matches[-5:])}; write more of the id")
        if not matches:
            raise self._unknown(name)
        return matches[0]

    def _unknown(self, name: str) -> UnknownRun:
        near = difflib.get_close_matches(name, self.ids(), n=3, cutoff=0.4) or list(self.ids()[-3:])
        hint = f"; the nearest are {', '.join(near)}" if near else "; there are none yet"
        return UnknownRun(f"there is no run {name!r} under {self.root}{hint}")


def _attempt(line: bytes, where: str) -> Attempt:
    attempt: Attempt = _parse(Attempt, _load_json(line, where), where)
    return attempt


def _torn(line: bytes) -> bool:
    """A line is written with one call and ends in a newline; one that does not was cut, even if what is left parses."""
    return not line.endswith(b"\n") or not line.strip(b"\0\n")


def _load_json(data: bytes, where: object) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise StoreError(f"{where} is not JSON ({error}); the file was changed by hand or damaged") from None


def _parse(kind: type, data: Any, where: object) -> Any:
    try:
        return from_data(kind, data)
    except (SerialError, ValueError) as error:
        raise StoreError(f"{where} is no {kind.__name__.lower()}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _cannot("read", path, error) from error


def _ends_with(path: Path, line: bytes) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(line)))
        return file.read() == line


def _append(path: Path, data: bytes) -> None:
    """One write call, so that a signal or a kill between two bytecodes cannot leave half a line; then to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(28, "no space left for a whole line", str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """The file is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the names in it durable; some systems cannot open a folder, and there the rename itself must do."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot(what: str, path: Path, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StoreError(f"cannot {what} {path}: {reason}; choose another folder with --runs or CODA_SYNTH_RUNS")

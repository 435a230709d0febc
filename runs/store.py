"""The only writer and reader of runs/<id>/: a head, one line an attempt, and the candidates as files. It ranks nothing.

An attempt is on the disk (flushed and synced) before `append` returns, so that a crash loses at most the step in hand.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coda_synth.evaluator.serial import SerialError, from_data, to_data
from coda_synth.runs import files
from coda_synth.runs.record import Attempt, End, Run

HEAD, ATTEMPTS, CANDIDATES, STEPS, END = "run.json", "attempts.jsonl", "candidates", "steps", "end.json"
CLAIMS = ".claims"  # a folder of locks beside the runs, and none of them, as it has no head
RESERVED = 1 << 20  # bytes of disk kept free for a reply while it is being paid for
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class StoreError(Exception):
    """The record cannot be written or read; one sentence that says which file, why, and what to do."""


class RunHeld(StoreError):
    """Another process works on this run."""


class UnknownRun(StoreError):
    """No run, or more than one, has this name."""


@dataclass(frozen=True, slots=True)
class Record:
    """A run as it lies on the disk. note: what had to be left out of it ("" where nothing was)."""

    run: Run
    attempts: tuple[Attempt, ...]
    note: str = ""
    end: End | None = None


def default_root(chosen: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where runs lie: the chosen folder, else CODA_SYNTH_RUNS, else ./runs."""
    return Path(chosen or environ.get("CODA_SYNTH_RUNS") or "runs")


def new_run_id(task: str, now: datetime | None = None) -> str:
    """20261129-171501-linear_swiglu-3f2a: UTC, so that names sort by time; four random hex digits."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%d-%H%M%S}-{task}-{secrets.token_hex(2)}"


def step_name(number: int) -> str:
    """Where the texts of a step lie in its run's folder: what was asked, what was answered, what came of it."""
    return f"{STEPS}/{number:03}"


def place_after(attempts: Sequence[Attempt]) -> int:
    """The number in the name of the next step's folder. A candidate that is judged again after its judging was broken
    off stays in its folder, so that what was asked meanwhile keeps the folder that follows."""
    return 1 + sum(attempt.outcome != "interrupted" for attempt in attempts)


class RunWriter:
    """The only writer of one run: it holds the run's lock until it is closed. `attempts` are those written so far."""

    def __init__(self, folder: Path, run: Run, attempts: tuple[Attempt, ...] = ()) -> None:
        """Raises RunHeld where another process works on the run, StoreError where its folder cannot be written."""
        self.folder = folder
        self.run = run
        self.attempts = attempts
        self._keeping = threading.Lock()  # an author may be asked in a thread of its own
        try:
            self._lock = files.lock(folder)
        except files.Held as holder:
            raise RunHeld(f"run {run.id} is being worked on by {holder}; wait for it, or end that process") from None
        except OSError as error:
            raise _cannot("write", folder, error) from error

    def close(self) -> None:
        """Lets another process work on the run, and gives back what room was taken for replies; harmless twice.

        An answer that comes later is not kept: it might meet the files of another process.
        """
        with self._keeping:
            if not self._lock.closed:
                _clear(self.folder)
            self._lock.close()

    def discarded(self) -> bool:
        """Takes away a run in which nothing has happened but that a question was written down; says whether it did."""
        happened = [p for p in self.folder.glob(f"{STEPS}/*/*") if p.name != "prompt.md" and not p.name.startswith(".")]
        if self.attempts or happened:
            return False
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def step(self, number: int) -> Path:
        """The folder of one step, with what was asked and answered as text."""
        return self.folder / step_name(number)

    def keep(self, name: str, text: str, durable: bool = True) -> None:
        """A file of the run, whole; if durable, on the disk when this returns. Raises StoreError.

        What only helps people to read a run need not be durable: syncing takes longer than all the rest of an attempt.
        """
        path = self.folder / name
        with self._keeping:
            if self._lock.closed:
                raise StoreError(f"{path} is not written: this process has ended its work on the run")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.replace(path, _encodable(text), durable)
            except OSError as error:
                raise _cannot("write", path, error) from error

    def kept(self, name: str) -> str | None:
        """What was kept under this name; None where nothing was."""
        path = self.folder / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _cannot("read", path, error if isinstance(error, OSError) else OSError(str(error))) from error

    def reserve(self, name: str) -> None:
        """Room for a file that must not fail to be written: what it will hold costs money. Raises StoreError."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.reserve(path, RESERVED)
        except OSError as error:
            raise _cannot("write", path, error) from error

    def release(self, name: str) -> None:
        """Gives back the room that was reserved and not needed."""
        files.temporary(self.folder / name).unlink(missing_ok=True)

    def end(self, stop: str, detail: str) -> None:
        """Notes how this session ended."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.keep(END, json.dumps(to_data(End(stop, detail, now)), indent=2) + "\n")

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
                candidate = self.folder / CANDIDATES / f"{attempt.candidate.id}.coda"
                files.replace(candidate, _encodable(attempt.candidate.source), durable=False)  # its text is in the line
            if not files.ends_with(path, line):
                files.append(path, line)
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
        except FileExistsError as error:
            if os.path.lexists(folder):
                raise StoreError(f"{folder} exists already; a run never writes over another") from None
            raise dangling(self.root) or _cannot("write", self.root, error) from None
        except OSError as error:
            raise _cannot("write", self.root, error) from error
        try:
            (folder / CANDIDATES).mkdir()
            files.append(folder / ATTEMPTS, b"")
            files.replace(folder / HEAD, json.dumps(to_data(run), indent=2) + "\n")
            files.sync_folder(self.root)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _cannot("write", folder, error) from error
        return RunWriter(folder, run)

    @contextmanager
    def claimed(self, what: str) -> Iterator[None]:
        """In here one process at a time begins runs for `what`; where there are no locks, all do. Raises RunHeld."""
        held, folder = None, self.root / CLAIMS
        named = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = files.locked(folder / f"{named}.lock")
        except files.Held as holder:
            raise RunHeld(f"{what} is being worked on by {holder}; wait for it, or end that process") from None
        except OSError:  # a record that cannot be written says so itself
            pass
        try:
            yield
        finally:
            if held:
                held.close()

    def open(self, run_id: str) -> RunWriter:
        """Goes on with a run: locks it, and takes off a last line that a crash cut short. Raises StoreError."""
        if run_id not in self.ids():
            raise self._unknown(run_id)
        folder = self.root / run_id
        writer = RunWriter(folder, self.read(run_id).run)
        try:
            files.cut_torn_line(folder / ATTEMPTS)
            (folder / CANDIDATES).mkdir(exist_ok=True)
            (folder / END).unlink(missing_ok=True)
            _clear(folder)
            writer.attempts = self.read(run_id).attempts
        except OSError as error:
            writer.close()
            raise _cannot("write", folder, error) from error
        return writer

    def ids(self) -> tuple[str, ...]:
        """Every run, oldest first. A folder without a head is no run: in a checkout our own files lie here."""
        try:
            return tuple(sorted(path.parent.name for path in self.root.glob(f"*/{HEAD}")))
        except OSError as error:
            raise _cannot("read", self.root, error) from error

    def worked_on(self, run_id: str) -> str:
        """Which process works on it now; "" if none does."""
        return files.holder(self.root / run_id)

    def newest_first(self) -> tuple[str, ...]:
        """Every run; those that began in the same second by the time of their heads, for ids tell seconds only."""
        order = sorted(self.ids(), key=lambda i: (i[:15], (self.root / i / HEAD).stat().st_mtime_ns), reverse=True)
        return tuple(order)

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
        lines = _lines(path)
        note = ""
        if lines and files.torn(lines[-1]):
            lines.pop()
            note = f"the last line of {path} was cut off in mid-write and is left out: that attempt is lost"
        attempts = (_attempt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
        end = self.root / run_id / END
        ended = _parse(End, _load_json(_read(end), end), end) if end.exists() else None
        return Record(run, tuple(attempts), note, ended)

    def resolve(self, name: str = "latest") -> str:
        """The id that a person means: an id, a part of exactly one, or "latest" (also ""); raises UnknownRun."""
        ids = self.ids()
        if name in ("", "latest"):
            if not ids:
                there = "" if self.root == default_root() else f" --runs {shlex.quote(str(self.root))}"
                raise UnknownRun(f"there are no runs under {self.root}; `coda-synth synth TASK{there}` makes one")
            return self.newest_first()[0]
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


def _clear(folder: Path) -> None:
    """Takes away what was never finished."""
    for left in folder.rglob(".*.tmp"):
        left.unlink(missing_ok=True)


def _attempt(line: bytes, where: str) -> Attempt:
    attempt: Attempt = _parse(Attempt, _load_json(line, where), where)
    return attempt


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


def _lines(path: Path) -> list[bytes]:
    """Of the attempts. A run has this file before it has a head, so that one without it has lost it."""
    if not path.exists():
        raise StoreError(f"{path} is missing, and with it what was judged; the run was damaged, so put the file back")
    return _read(path).splitlines(keepends=True)


def dangling(root: Path) -> StoreError | None:
    """What is wrong where the record's folder, or one above it, is a link to nothing: none can be made in its place."""
    link = next((path for path in (root, *root.parents) if path.is_symlink() and not path.exists()), None)
    if link is None:
        return None
    target = f"{link} is a link to {os.readlink(link)}, and nothing is there"
    return StoreError(f"{target}: make that folder, remove the link, or choose another folder with --runs")


def _encodable(text: str) -> str:
    """A stray half character, which JSON can carry, becomes "?" in a file for people."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _cannot(what: str, path: Path, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return StoreError(f"cannot {what} {path}: {reason}; choose another folder with --runs or CODA_SYNTH_RUNS")

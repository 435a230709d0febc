"""How a command ends: the exit codes, the one exception that carries them, and what becomes of every other one."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from unicodedata import category


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    NOT_PASSED = 1  # the candidate, or every candidate of the run, did not pass
    USAGE = 2  # bad usage or bad input
    ENVIRONMENT = 3  # no key, no GPU, an unwritable folder, a judge that does not start, a run whose record is damaged
    WAITING = 4  # a run waits for a reply; its record is whole
    INTERNAL = 70  # a fault of ours
    INTERRUPTED = 130
    READER_GONE = 141  # as a process that the signal SIGPIPE ended


class Failure(Exception):
    """One clear message for the user, and the exit code."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(shown(message))
        self.code = code


def shown(text: str) -> str:
    """A text that may be anybody's, a candidate's or a receipt's, without what moves the cursor or turns the line."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if category(c)[0] == "C" and c not in "\n\t" else c for c in text)


def must_be_writable(name: str, what: str = "") -> None:
    """Raises Failure before work whose result would have no place. Opening is what tells; it changes no file, and one
    that it makes is removed. what: the result in words, as "the receipt "."""
    path = Path(name)
    try:
        if path.is_dir():
            raise Failure(f"cannot write {what}{name}: it is a folder, and a file is asked for")
        if not path.absolute().parent.is_dir():
            raise Failure(f"cannot write {what}{name}: its folder does not exist, there is no folder {path.parent}")
        new = not path.exists()
        path.open("ab").close()
        if new:
            os.unlink(os.path.realpath(path))
    except OSError as error:
        raise Failure(f"cannot write {what}{name}: {error.strerror or error}", Exit.ENVIRONMENT) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean "a" or "b"?', or the list of what there is."""
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are {', '.join(known)}" if known else "; there are none"


def as_failure(error: Exception) -> Failure:
    """The one place where exceptions become messages and exit codes."""
    from coda_synth.agent.config import ConfigError
    from coda_synth.agent.provider import BadOption, ProviderError
    from coda_synth.coda_api.schedule import ScheduleError
    from coda_synth.evaluator.child import JudgeError
    from coda_synth.runs.store import StoreError, UnknownRun

    if isinstance(error, Failure):
        return error
    if isinstance(error, (ConfigError, BadOption, ScheduleError, UnknownRun)):
        return Failure(str(error), Exit.USAGE)
    if isinstance(error, (JudgeError, ProviderError, StoreError)):
        return Failure(str(error), Exit.ENVIRONMENT)
    return _unexpected(error)


def _unexpected(error: Exception) -> Failure:
    said = " ".join(str(error).split())[:200]
    summary = f"unexpected {type(error).__name__}{': ' if said else ''}{said}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="coda-synth-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{sys.argv}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        return Failure(f"{summary} (no place to write the details)", Exit.INTERNAL)
    return Failure(f"{summary}; the details are in {path}, please report it", Exit.INTERNAL)

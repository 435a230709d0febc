"""Files that survive a crash: appended, replaced and reserved so that each is there whole or not at all; and a lock."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

LOCK = "lock"
_NAMELESS = "a process that has not said its name"


class Held(Exception):
    """Another process works on the folder; the message says which."""


def append(path: Path, data: bytes) -> None:
    """One write call, so that a signal or a kill between two bytecodes cannot leave half a line; then to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, "no space left for a whole line", str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, text: str, durable: bool = True) -> None:
    """The file is there whole or not at all; if durable, also after a power loss. Written over its reserved room."""
    data, place = text.encode("utf-8"), temporary(path)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
        os.ftruncate(descriptor, len(data))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(place, path)
    if durable:
        sync_folder(path.parent)


def reserve(path: Path, size: int) -> None:
    """Takes the disk space that `replace` will need, so that what is paid for next cannot fail to be written."""
    descriptor = os.open(temporary(path), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


def temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def ends_with(path: Path, line: bytes) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(line)))
        return file.read() == line


def cut_torn_line(path: Path) -> None:
    """Takes off a last line that a crash cut short, so that the next one starts a line of its own."""
    data = path.read_bytes() if path.exists() else b""
    whole = len(data)
    while whole and torn(data[:whole].splitlines(keepends=True)[-1]):
        whole -= len(data[:whole].splitlines(keepends=True)[-1])
    if whole < len(data):
        os.truncate(path, whole)


def torn(line: bytes) -> bool:
    """A line is written with one call and ends in a newline; one that does not was cut, even if what is left parses."""
    return not line.endswith(b"\n") or not line.strip(b"\0\n")


def sync_folder(folder: Path) -> None:
    """Makes the names in it durable; some systems cannot open a folder, and there the rename itself must do."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Threads and processes that are in here for the same folder take turns; where there are no locks, they do not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def holder(folder: Path) -> str:
    """Who holds the folder's lock now, "" if nobody does; changes nothing."""
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return ""
    except BlockingIOError:
        said = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
        return said or _NAMELESS
    except OSError:  # there is no such file, or there are no locks
        return ""


def lock(folder: Path) -> IO[str]:
    """The folder's lock, held until the file is closed or its process ends, however it ends; raises Held.

    A lock file that was copied with its folder, or left by a crash, holds nothing: only a living process does.
    """
    return locked(folder / LOCK)


def locked(path: Path) -> IO[str]:
    """The same for any file, which is made where it is not there."""
    file = open(path, "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or _NAMELESS
        file.close()
        raise Held(holder) from None
    except OSError:  # a file system without locks: better no lock than no run
        pass
    file.truncate(0)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {platform.node() or 'this machine'}, since {since}\n")
    file.flush()
    return file

"""A child and everything it started: who they are, the memory that they hold together, and how all of them end."""

from __future__ import annotations

import contextlib
import os
import signal

_HELD = ("RssAnon:", "RssShmem:")  # pages of mapped files cost nobody anything


def family(pid: int) -> list[int]:
    """The process, everything in its session, and everything descended from these, also in sessions of their own."""
    parents = {found: _parent_and_session(found) for found in map(int, filter(str.isdigit, os.listdir("/proc")))}
    members = {pid} | {found for found, (_, session) in parents.items() if session == pid}
    grown = True
    while grown:
        more = {found for found, (parent, _) in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return sorted(members)


def held_bytes(pids: list[int]) -> int:
    """Bytes of memory that these processes hold: their own and shared, without pages of files that they only map."""
    return sum(map(_held, pids))


def _parent_and_session(pid: int) -> tuple[int, int]:
    """(0, 0) for a process that is gone or of another user."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[1]), int(fields[3])
    except (OSError, ValueError, IndexError):
        return 0, 0


def _held(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(_HELD))
    except (OSError, ValueError, IndexError):
        return 0


def end(pid: int) -> None:
    """Kills a child and everything it started: the group at once, then who left it."""
    others = family(pid)
    for kill, target in ((os.killpg, pid), *((os.kill, other) for other in others if other != pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(target, signal.SIGKILL)

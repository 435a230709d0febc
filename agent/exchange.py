"""The provider whose author answers by a file: a person, or any coding agent, here or where the folder is copied to.

The prompt lies in the step's folder as prompt.md; the reply is awaited beside it, as reply.md or as a bare program in
reply.coda.
"""

from __future__ import annotations

import time
from pathlib import Path

from coda_synth.agent.provider import ProviderError, Reply, Request
from coda_synth.agent.reply import nothing_left

NAMES = ("reply.md", "reply.coda", "reply.txt")
POLL = 0.25  # seconds between two looks; a file counts when two looks find it the same


class Awaited(Exception):
    """There is no reply yet. place: the file that is waited for."""

    def __init__(self, place: Path) -> None:
        super().__init__(f"the prompt is {place.with_name('prompt.md')}; put the reply into {place}")
        self.place = place


class Exchange:
    """wait: looks until the reply lies there; else a missing one raises Awaited at once."""

    name = "exchange"
    by_prompt = True
    by_file = True  # its prompts are read as files, one after the other: the system text is not repeated
    model = ""

    def __init__(self, wait: bool = True) -> None:
        self._wait = wait

    def propose(self, request: Request) -> Reply:
        """The reply that lies in the step's folder; raises Awaited, and ProviderError where it cannot be read."""
        if request.folder is None:
            raise ProviderError("the provider exchange needs a run's folder to put its prompts into")
        started = time.monotonic()
        while (found := reply_file(request.folder)) is None or (self._wait and not _settled(found)):
            if not self._wait:
                raise Awaited(request.folder / NAMES[0])
            time.sleep(POLL)
        try:
            text = found.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ProviderError(f"the reply {found} cannot be read: {reason}") from None
        bare = found.suffix == ".coda" and nothing_left(text) is None
        fenced = f"~~~~\n{text.rstrip()}\n~~~~\n" if bare else text
        return Reply(fenced, idle=time.monotonic() - started)


def reply_file(folder: Path) -> Path | None:
    """The reply in a step's folder, if one with something in it lies there."""
    return next((p for name in NAMES if (p := folder / name).is_file() and p.stat().st_size), None)


def _settled(path: Path) -> bool:
    """Whether nobody is still writing it."""
    before = path.stat()
    time.sleep(POLL)
    after = path.stat()
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)

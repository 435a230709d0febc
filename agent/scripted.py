"""The provider that replays replies from files: for tests, demonstrations, and running a saved conversation again.

A folder: each *.md file is a reply, each *.coda file a bare program, in the order of their names. A file: replies
separated by lines `=== reply`; a *.coda file is one program.
"""

from __future__ import annotations

from pathlib import Path

from coda_synth.agent.provider import BadOption, Reply, Request

SEPARATOR = "=== reply"


class Scripted:
    """Answers the nth request of every run with reply n, and with "done" when there are no more."""

    name = "scripted"
    by_prompt = True

    def __init__(self, path: Path) -> None:
        """Raises BadOption where there is nothing to replay."""
        self.model = path.name
        self._replies = _replies(path)

    def propose(self, request: Request) -> Reply:
        if request.number > len(self._replies):
            return Reply("", outcome="done")
        return Reply(self._replies[request.number - 1])


def _replies(path: Path) -> tuple[str, ...]:
    try:
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix in (".md", ".coda"))
            replies = tuple(_reply(p) for p in files)
        elif path.suffix == ".coda":
            replies = (_reply(path),)
        else:
            replies = tuple(filter(str.strip, _split(path.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadOption(f"the replies in {path} cannot be read: {reason}") from None
    if not replies:
        raise BadOption(
            f"{path} holds no replies: a folder of *.md and *.coda files, or a file with `{SEPARATOR}` lines"
        )
    return replies


def _reply(path: Path) -> str:
    text = path.read_text(encoding="utf-8-sig")
    return text if path.suffix == ".md" else f"~~~~\n{text.rstrip()}\n~~~~\n"


def _split(text: str) -> list[str]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.strip() == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    return ["".join(part) for part in parts]

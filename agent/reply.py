"""Takes the one program out of an author's reply, or says precisely what is wrong with the reply. Reads no program."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_MARK = "@program"
_DONE = re.compile(r"`?done: *(?P<why>[^\n`].*?)`?", re.IGNORECASE | re.DOTALL)


class NoProgram(Exception):
    """A reply without exactly one program. The message is for its author: what was found, what to send instead."""


@dataclass(frozen=True, slots=True)
class _Block:
    line: int  # of the opening fence, from 1
    text: str
    closed: bool


def extract(text: str) -> str:
    """The text of the one program in the reply; raises NoProgram.

    A program is a fenced block. Blocks that hold no @program are taken for snippets beside it, unless a single block
    is all there is: then the language says what it lacks. A reply that is nothing but a program needs no fence.
    """
    text = clean(text)
    if not text.strip():
        raise NoProgram("the reply was empty; send one program in one ``` block")
    blocks = _blocks(text)
    if not blocks:
        return _bare(text)
    if not blocks[-1].closed and (_MARK in blocks[-1].text or len(blocks) == 1):
        raise NoProgram(f"the block opened in line {blocks[-1].line} is never closed; end the program with a ``` line")
    programs = [b for b in blocks if _has_program(b.text)]
    if not programs and len(blocks) == 1:
        programs = blocks
    if len(programs) != 1:
        raise NoProgram(_count(blocks, programs))
    if not programs[0].text.strip():
        raise NoProgram(f"the block in line {programs[0].line} is empty; put the whole program into it")
    return programs[0].text


def clean(text: str) -> str:
    """Text that can be stored: line ends are \\n, half characters, which JSON can carry, become "?", and a byte order
    mark in front is none of it."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return lines.encode("utf-8", "replace").decode("utf-8")


def _bare(text: str) -> str:
    first = text.lstrip().split("\n", 1)[0]
    if _has_program(text) and first.startswith(("@", '"""', "'''", "#", "from ")):
        return text.strip("\n") + "\n"
    found = "a program stands in it without a fence" if _has_program(text) else "it holds no ``` block"
    raise NoProgram(f"{found}; send exactly one ``` block with the whole program, {_MARK} included")


def _has_program(text: str) -> bool:
    return any(line.startswith(_MARK) for line in text.splitlines())


def _count(blocks: list[_Block], programs: list[_Block]) -> str:
    if programs:
        lines = ", ".join(str(b.line) for b in programs)
        return f"{len(programs)} blocks hold a program (lines {lines}), and only one can be judged; send the best alone"
    return f"none of the {len(blocks)} blocks holds a line {_MARK}; send the whole program in one block, not in parts"


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks as Markdown has them: a fence is closed by one of its kind that is at least as long."""
    blocks: list[_Block] = []
    mark, start, body = "", 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        fence = _FENCE.match(line)
        if mark:
            if fence and fence["mark"].startswith(mark) and not fence["info"].strip():
                blocks.append(_Block(start, "".join(body), True))
                mark = ""
            else:
                body.append(line + "\n")
        elif fence:
            mark, start, body = fence["mark"], number, []
    if mark:
        blocks.append(_Block(start, "".join(body), False))
    return blocks


def nothing_left(text: str) -> str | None:
    """Why the author sees nothing left to win, where the reply is `done: ` and that; None where code follows."""
    said = clean(text).strip()
    found = _DONE.fullmatch(said)
    code = _has_program(text) or any(_FENCE.match(line) for line in said.splitlines())
    return None if found is None or code else found["why"].strip()

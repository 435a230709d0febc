"""A line of a candidate, fit for a terminal: nothing in it moves the cursor, and of a long one the place alone."""

from __future__ import annotations

WIDEST = 120  # characters of a line that are shown


def lines_of(source: str) -> list[str]:
    """The lines as a diagnostic counts them; str.splitlines knows more ends than Python's syntax does."""
    return source.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def excerpt(line: str, column: int, width: int = 1) -> tuple[str, int, int]:
    """What to show of a line, and where `width` characters from `column` (from 1) stand in that: column and width."""
    shown = [_plain(character) for character in line]
    start = max(column, 1) - 1
    before, marked = "".join(shown[:start]), "".join(shown[start : start + width])
    text, at = "".join(shown), len(before)
    if len(text) <= WIDEST:
        return text, at + 1, max(1, len(marked))
    first = max(0, min(at - WIDEST // 2, len(text) - WIDEST))
    last = first + WIDEST
    cut = ("..." if first else "") + text[first:last] + ("..." if last < len(text) else "")
    at = min(at, len(text)) - first + (3 if first else 0)
    return cut, at + 1, max(1, min(len(marked), len(cut) - at))


def _plain(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character == "\t" else character.encode("unicode_escape").decode()

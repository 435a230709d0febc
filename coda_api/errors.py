"""What the language says when a rule is broken: one class a rule, a message, a place and, where possible, an edit."""

from __future__ import annotations

import errno
from dataclasses import dataclass

_OF_THE_TEXT = (errno.EFBIG, errno.ENAMETOOLONG)  # what it makes is too large, or a name in it too long


@dataclass(frozen=True, slots=True)
class Edit:
    """A machine-applicable repair: replace columns [column, end_column) of a line (both from 1) by `text`."""

    line: int
    column: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. rule: the error class's name; line and column count from 1, 0 where there is no place."""

    rule: str
    message: str
    line: int = 0
    column: int = 0
    severity: str = "error"  # or "warning", "note"
    fix: Edit | None = None

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.rule}: {self.message}"


class ProgramError(Exception):
    """A candidate that the language refuses: every diagnostic of the file, in order."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        super().__init__("\n".join(map(str, diagnostics)))


def machine_fault(error: BaseException) -> OSError | None:
    """What the operating system refused, in an error or its causes: a folder not writable, a full disk. No text that
    is being compiled is to blame for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno not in _OF_THE_TEXT:
            return cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None

"""What the language says when a rule is broken: one class a rule, a message, a place and, where possible, an edit."""

from __future__ import annotations

from dataclasses import dataclass


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

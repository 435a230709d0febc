"""Collects what a text breaks: places in characters, machine-applicable edits, everything at once and in order."""

from __future__ import annotations

import ast

from coda_synth.coda_api.errors import Diagnostic, Edit, ProgramError
from coda_synth.coda_api.rules import Broken

_MOST_DIAGNOSTICS = 40


class Report:
    """Every rule that one text breaks, with places in characters counted from 1."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._found: dict[Diagnostic, None] = {}

    def add(self, broken: Broken) -> None:
        line, column = self.place(broken.node)
        self._found[Diagnostic(type(broken).__name__, broken.message, line, column, fix=self._edit(broken))] = None

    def add_at(self, rule: type[Broken], message: str, line: int, column: int, fix: Edit | None = None) -> None:
        self._found[Diagnostic(rule.__name__, message, line, column, fix=fix)] = None

    def place(self, node: ast.AST | None) -> tuple[int, int]:
        line = getattr(node, "lineno", 0)
        return (line, self._column(line, getattr(node, "col_offset", 0))) if line else (0, 0)

    @property
    def empty(self) -> bool:
        return not self._found

    def raise_if_any(self) -> None:
        """Raises ProgramError with all findings in the order of the text."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda d: (d.line, d.column))
        if len(found) > _MOST_DIAGNOSTICS:
            rest = len(found) - _MOST_DIAGNOSTICS
            found = [*found[:_MOST_DIAGNOSTICS], Diagnostic("More", f"{rest} more errors", severity="note")]
        raise ProgramError(tuple(found))

    def _column(self, line: int, offset: int) -> int:
        """ast counts bytes; people and editors count characters."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore")) + 1

    def _edit(self, broken: Broken) -> Edit | None:
        if broken.replace is None:
            return None
        node, text = broken.replace
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not line or line != end:
            return None
        first, last = (self._column(line, offset) for offset in (node.col_offset, node.end_col_offset))  # type: ignore[attr-defined]
        if line <= len(self._lines) and self._lines[line - 1][first - 1 : last - 1] == text:
            return None  # what is there already repairs nothing
        return Edit(line, first, last, text)

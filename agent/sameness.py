"""Recognises a program that was judged before, however it is spelt, so that no evaluation is spent on it twice."""

from __future__ import annotations

from collections.abc import Iterable

from coda_synth.coda_api.canonical import canonical, schedules
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Signature
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.runs.record import Attempt


class Sameness:
    """Remembers what it has read; one for each run."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._keys: dict[str, str] = {}

    def earlier(self, candidate: Candidate, history: Iterable[Attempt]) -> tuple[Attempt, str] | None:
        """The judged attempt whose program this is, and in what sense."""
        for attempt in history:
            if attempt.evaluation is None or attempt.candidate is None:
                continue
            if attempt.candidate.id == candidate.id:
                return attempt, "the same program as in"
            if self._key(attempt.candidate) == self._key(candidate):
                return attempt, "written differently, but with the same launches, arithmetic and schedules as in"
        return None

    def _key(self, candidate: Candidate) -> str:
        if candidate.id not in self._keys:
            self._keys[candidate.id] = self._read(candidate)
        return self._keys[candidate.id]

    def _read(self, candidate: Candidate) -> str:
        """Programs that the language refuses are told apart by their texts."""
        try:
            program = read(candidate.source, self._signature)
        except ProgramError:
            return candidate.id
        return canonical(program) + schedules(program, candidate.schedules)

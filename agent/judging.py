"""What the loop needs of the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coda_synth.evaluator.evaluation import Candidate, Evaluation
from coda_synth.evaluator.trace import Graph


class Judge(Protocol):
    """The questions that the loop asks; evaluator.judge.Judge answers them."""

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation: ...

    def trace(self, task: str) -> Graph: ...


def waited(judge: Judge) -> float:
    """Seconds for which a judge that several runs share has let this one wait; they count for no budget. Such a judge
    says so by its attribute `waited`."""
    return float(getattr(judge, "waited", 0.0))

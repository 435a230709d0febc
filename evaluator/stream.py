"""Some of a trial's cases, run by one worker beside what other workers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coda_synth.evaluator import checking
from coda_synth.evaluator.aside import Aside, Ended
from coda_synth.evaluator.checking import Checker
from coda_synth.evaluator.child import Child
from coda_synth.evaluator.evaluation import Check
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.references import References
from coda_synth.evaluator.trial import Trial


class Stream:
    """A context, whose end is the end of whatever still goes on. worker and references: nobody else asks them from
    `begin` to `finish`; without references of its own (None) it runs where it is waited for, with `shared`.

    ready: called before the first case, where it runs, with what tells it that nobody waits any more. What was found,
    or raised, is the trial's once it is waited for: so a verdict does not depend on who is first.
    """

    def __init__(
        self,
        trial: Trial,
        worker: Child,
        references: References | None,
        shared: References,
        limit_s: float,
        ready: Callable[[Ended], None] = lambda ended: None,
    ) -> None:
        self.trial, self.worker, self.limit_s, self.ready = trial, worker, limit_s, ready
        self.references, self.shared = references, shared
        self._cases: Sequence[Case] = ()
        self._checks: list[Check] = []
        self._aside: Aside | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        if self._aside:
            self._aside.end(0.0 if error[0] is KeyboardInterrupt else checking.PATIENCE_S)

    def expect(self, cases: Sequence[Case]) -> None:
        """Lets the references draw the oracles of cases that will be run, if they have nothing else to do."""
        if self.references:
            self._checker(self.references).expect(cases)

    def begin(self, cases: Sequence[Case]) -> None:
        self._cases, own = cases, self.references
        if own and cases:
            self._aside = Aside(lambda ended: self._run(own, ended), lambda: [self.worker, *own])

    def finish(self) -> None:
        """Until all cases are held against their oracles; raises StageFailed, ChildFailure, ChildRaised, JudgeError."""
        try:
            self._aside.wait() if self._aside else self._run(self.shared, Ended())
        finally:
            self.trial.checks += self._checks

    def _run(self, references: References, ended: Ended) -> None:
        self.ready(ended)
        if not ended.is_set():
            self._checker(references).check_all(self.worker, self._cases, ended)

    def _checker(self, references: References) -> Checker:
        return Checker(self.trial, references, self.limit_s, self._checks)

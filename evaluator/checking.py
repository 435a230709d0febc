"""The checking stages: a case goes to the candidate child, its outputs to the reference child for a judgement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.evaluator.aside import Ended
from coda_synth.evaluator.channel import Message
from coda_synth.evaluator.child import Child, ChildCrashed, ChildFailure, ChildRaised, JudgeError
from coda_synth.evaluator.evaluation import Check, Verdict
from coda_synth.evaluator.facts import Case, Fault, TaskFacts
from coda_synth.evaluator.locating import guilty_call
from coda_synth.evaluator.references import References
from coda_synth.evaluator.serial import SerialError, from_data, to_data
from coda_synth.evaluator.trial import StageFailed, Trial, located

ORACLE_S = 300.0
PATIENCE_S = 5.0  # with a worker that is at a candidate which has failed, before it is killed

_WRONG = {
    "meaning": "with exact arithmetic the program does not compute the task; the algebra is wrong, not the rounding",
    "interpreter": "the algebra is right, the generated code's numbers are not: an overflow, or a rounding too early?",
    "device": "right in the interpreter, wrong on the device: does something overflow or depend on size?",
}


def meaning_cases(facts: TaskFacts, seed: int) -> list[Case]:
    """Every shape that the task checks and every style of input, each at least once."""
    shapes, styles = facts.check_shapes, facts.styles
    count = max(len(shapes), len(styles))
    return [
        Case("meaning", shapes[i % len(shapes)], seed + i, styles[i % len(styles)], "reference") for i in range(count)
    ]


def long_cases(facts: TaskFacts, seed: int) -> list[Case]:
    """Each symbol in turn as long as the task is timed, all others as short as it is checked: what depends on a
    position or on a size shows, though no product is large."""
    short = min(facts.check_shapes, key=lambda sizes: sum(sizes.values()))
    longest = {name: max(sizes[name] for sizes in facts.time_shapes.values()) for name in short}
    longer = [name for name in short if longest[name] > max(sizes[name] for sizes in facts.check_shapes)]
    return [
        Case("meaning", {**short, name: longest[name]}, seed + 200 + i, "normal", "reference")
        for i, name in enumerate(longer)
    ]


def told(kind: Any, answer: Message, name: str) -> Any:
    """A part of what a candidate's process answers; what has another form is no answer."""
    try:
        return from_data(kind, answer.data.get(name), name)
    except (SerialError, TypeError, ValueError) as error:
        raise ChildCrashed(f"its process gave an answer that is none: {error}") from error


class Checker:
    """Runs cases for one trial. worker: the candidate child that runs them; references: the children that decide;
    checks: where what was found goes, the trial's own by default."""

    def __init__(self, trial: Trial, references: References, limit_s: float, checks: list[Check] | None = None) -> None:
        self.trial, self.references, self.limit_s = trial, references, limit_s
        self.checks = trial.checks if checks is None else checks
        self._facts = to_data(trial.facts)

    def expect(self, cases: Sequence[Case]) -> None:
        """Lets the reference children draw oracles while the candidate child works. What befalls them then is seen by
        whoever asks them for a decision."""
        for child in self.references:
            if own := [case for case in cases if self.references.of(case) is child]:
                with contextlib.suppress(ChildFailure):
                    child.post("expect", ORACLE_S, {"cases": to_data(own), **self._task()})

    def check_all(self, worker: Child, cases: Sequence[Case], ended: Ended | None = None) -> None:
        """Case by case, as `check` does; the worker runs each while its reference decides on the one before, and the
        other references draw the oracles of those to come. Stops after the case in hand when it is `ended`."""
        start = time.monotonic()
        if cases:
            self._ask(worker, cases[0])
        try:
            for i, case in enumerate(cases):
                if ended and ended.is_set():
                    break
                answer = self._answer(worker, case)
                answered = time.monotonic()
                if i + 1 < len(cases):
                    self._ask(worker, cases[i + 1])
                self.expect(list(self.references.coming(case, cases[i + 1 :])))
                self._hold(case, answer, start)
                start = answered
        except KeyboardInterrupt:
            worker.close()  # the case that it is at may hang
            raise
        finally:
            worker.forget(PATIENCE_S)

    def check(self, worker: Child, case: Case) -> Message:
        """One case: adds its Check to the trial, raises StageFailed unless it passed, returns the worker's answer."""
        start = time.monotonic()
        self._ask(worker, case)
        answer = self._answer(worker, case)
        self._hold(case, answer, start)
        return answer

    def _hold(self, case: Case, answer: Message, start: float) -> None:
        """Holds an answer against the oracle."""
        judgement = self._decide(case, answer)
        faults: tuple[Fault, ...] = told(tuple[Fault, ...] | None, answer, "faults") or ()
        ratio = float("inf") if faults else float(judgement["error_ratio"])
        worst = str(faults[0]) if faults else str(judgement["worst"])
        seconds = round(time.monotonic() - start, 3)
        form = str(answer.data.get("form", case.form))
        self.checks.append(Check(case.stage, case.sizes, case.style, case.seed, form, ratio, worst, seconds))
        if not ratio <= 1.0:
            said = self._words(case, faults, worst, judgement)
            raise StageFailed(Verdict.INCORRECT, said)

    def _ask(self, worker: Child, case: Case) -> None:
        worker.post("meaning" if case.form == "reference" else "execute", self.limit_s, self.run(case))

    def _answer(self, worker: Child, case: Case) -> Message:
        """The worker's answer; a program that has no meaning at the sizes of a check does not compute the task."""
        try:
            return worker.collect(self.limit_s)
        except ChildFailure as error:
            self._locate(worker, case, error)
            raise
        except ChildRaised as error:
            if error.raised.kind != "DimSizeError":
                self._locate(worker, case, error)
                if case.stage == "device":
                    worker.close()  # an illegal address leaves a context in which everything fails
                raise
            said = f"the program has no meaning at sizes that the task allows: {error.raised.message} ({case})"
            raise StageFailed(Verdict.INCORRECT, (Diagnostic("SizeNeeded", said),)) from error

    def _locate(self, worker: Child, case: Case, error: ChildFailure | ChildRaised) -> None:
        """Looks for the call at fault where the error names none: a device tells of a bad address too late for that,
        and a dead process of nothing."""
        launched = isinstance(error, ChildFailure) or "call" in error.raised.detail
        if launched and error.call is None and case.form != "reference":
            error.call = guilty_call(worker, self.run(case), self.limit_s)

    def run(self, case: Case) -> dict[str, object]:
        """What the candidate child needs to know to run a case."""
        return {"source": self.trial.candidate.source, "facts": self._facts, "case": to_data(case)}

    def peers(self, worker: Child, case: Case) -> list[str]:
        """How the baselines themselves fare under the oracle, in words: a peer that cuts corners is no bar to clear."""
        answer = worker.request("peers", self.limit_s, self.run(case))
        lines, start = list(told(list[str], answer, "notes")), 0
        for name, heads in told(dict[str, list[Any]], answer, "peers").items():
            found = self._decide(case, Message({"tensors": heads}, answer.blobs[start : start + len(heads)]))
            start += len(heads)
            lines.append(f"the baseline {name} has {float(found['error_ratio']):.3g} of the allowed error")
        return lines

    def check_timed(self, case: Case, answer: Message) -> None:
        """The outputs of timed runs on inputs that were never checked: the case's own rows in another order."""
        start = 0
        for heads in told(list[list[Any]], answer, "sets"):
            found = self._decide(case, Message({"tensors": heads}, answer.blobs[start : start + len(heads)]))
            start += len(heads)
            if not float(found["error_ratio"]) <= 1.0:
                said = f"the output of a timed run is wrong, on inputs that were new to it: {found['worst']} ({case})"
                raise StageFailed(Verdict.INCORRECT, (Diagnostic("WrongWhenTimed", said),))

    def _decide(self, case: Case, answer: Message) -> Mapping[str, Any]:
        """The reference child's judgement. Whatever befalls that child is the judge's failure, not the candidate's."""
        try:
            asked = {"tensors": answer.data.get("tensors"), "case": to_data(case), **self._task()}
            reply = self.references.of(case).request("decide", ORACLE_S, asked, answer.blobs)
        except (ChildFailure, ChildRaised) as error:
            raise JudgeError(f"the reference of {self.trial.facts.name} failed ({case}): {error}") from error
        judgement: Mapping[str, Any] = reply.data["judgement"]
        return judgement

    def _words(
        self, case: Case, faults: tuple[Fault, ...], worst: str, judgement: Mapping[str, Any]
    ) -> tuple[Diagnostic, ...]:
        """Numbers that are wrong are told with the expressions that give them; the first is the finding's place."""
        told = tuple(self._fault(fault, case) for fault in faults)
        if not all(fault.rule == "Unwritten" for fault in faults):
            return told
        rule = "WrongMeaning" if case.stage == "meaning" else "WrongNumbers"
        said = "; ".join(judgement["findings"][:4]) or worst
        drawn = f"\n{judgement['picture']}" if judgement["picture"] else ""
        found = Diagnostic(rule, f"{_WRONG[case.stage]}. {said} ({case}){drawn}")
        places = self.trial.output_places
        for output in reversed([name for name in judgement["outputs"] if name in places][:4]):
            found = located(found, places[output], f"{output} is of {places[output]}")
        return (found, *told)

    def _fault(self, fault: Fault, case: Case) -> Diagnostic:
        """With the line of the value that was stored, or else of the call."""
        found = Diagnostic("MemoryFault", f"{fault} ({case})")
        places = self.trial.call_places
        place = places.get(f"{fault.call}.{fault.value}") or places.get(fault.call)
        return located(found, place, f"it is of {place}") if place else found

    def _task(self) -> dict[str, str]:
        return {"task": self.trial.facts.name, "dtype": self.trial.facts.signature.dtype}

"""A SIMULATED author for benchmarks: it makes catalogued mistakes and repairs them from feedback. No model is asked.

What it knows: the feedback that each mistake got once, on inputs from another seed. What it sees: feedback alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from coda_synth.agent.feedback import feedback
from coda_synth.coda_api.errors import Diagnostic, Edit, ProgramError
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator.checking import meaning_cases
from coda_synth.evaluator.correctness import judge_outputs
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Verdict
from coda_synth.evaluator.inputs import exact, make_inputs
from coda_synth.evaluator.oracle import exact_oracle, explained, facts_of, oracle
from coda_synth.evaluator.signature import signature
from coda_synth.runs.record import Attempt
from coda_synth.tasks.catalog import task

from benchmarks.mistakes import Mistake

_NUMBER = re.compile(r"-?\d[\d.,]*(?:e[-+]?\d+)?")
_VALUES = re.compile(r"is (-?[\d.]+(?:e[-+]?\d+)?), exact (-?[\d.]+(?:e[-+]?\d+)?)")
_FACTOR = re.compile(r"it is (-?[\d.e+-]+) times")


def applied(text: str, edit: Edit) -> str:
    """The text after one machine-applicable edit."""
    lines = text.split("\n")
    line = lines[edit.line - 1]
    lines[edit.line - 1] = line[: edit.column - 1] + edit.text + line[edit.end_column - 1 :]
    return "\n".join(lines)


def mended_by_edit(mistake: Mistake) -> bool:
    """Whether the first edit among the diagnostics makes the text a program."""
    typed = signature(task(mistake.task))
    try:
        read(mistake.text, typed)
    except ProgramError as error:
        edits = [d.fix for d in error.diagnostics if d.fix]
        try:
            return bool(edits) and read(applied(mistake.text, edits[0]), typed) is not None
        except ProgramError:
            return False
    raise ValueError(f"{mistake.name}: the language accepts it")


def judged_here(candidate: Candidate, seed: int) -> Evaluation:
    """The judge's read and meaning stages in this process: same cases, same oracle, same words, no build."""
    facts = facts_of(task(candidate.task), "bfloat16")
    try:
        program = read(candidate.source, facts.signature)
    except ProgramError as error:
        return Evaluation(candidate.id, candidate.task, Verdict.REJECTED, "read", seed, error.diagnostics)
    checks: list[Check] = []
    for case in meaning_cases(facts, seed):
        inputs = exact(make_inputs(task(candidate.task), facts.signature, case))
        outputs = evaluate(program, facts.signature, inputs, dtype=torch.float64)
        allowed = exact_oracle(oracle(task(candidate.task), "bfloat16", case, "cpu"))
        outputs = {n: v.double().contiguous() for n, v in outputs.items()}
        found = judge_outputs(allowed, outputs)
        checks.append(Check("meaning", case.sizes, case.style, case.seed, "reference", found.error_ratio, found.worst))
        if not found.passed:
            found = explained(found, task(candidate.task), "bfloat16", case, outputs)
            said = (Diagnostic("WrongMeaning", f"{'; '.join(found.findings[:4]) or found.worst} ({case})"),)
            return Evaluation(candidate.id, candidate.task, Verdict.INCORRECT, "check", seed, said, tuple(checks))
    return Evaluation(candidate.id, candidate.task, Verdict.PASSED, "check", seed, checks=tuple(checks))


def told(mistake: Mistake, evaluation: Evaluation) -> str:
    """What the loop tells the author of a program with this mistake, its text left out."""
    return feedback(Attempt(1, "evaluated", Candidate(mistake.task, mistake.text), evaluation))


def symptoms(text: str) -> Counter[str]:
    """The words of a feedback, with numbers reduced to what another seed would leave of them."""
    found: Counter[str] = Counter()
    for clause in re.split(r"; |\. |, (?=\w+:)|\(|\n", text):
        output = clause.partition(":")[0] if re.match(r"\w+:", clause.strip()) else ""
        for written, exact_value in _VALUES.findall(clause):
            found[f"{output} {_sense(float(written), float(exact_value))}"] += 1
        for factor in _FACTOR.findall(clause):
            found[f"{output} factor {_rounded(float(factor))}"] += 2
        plain = " ".join(_NUMBER.sub("#", clause).split())
        found[plain] += 1
        found.update(plain.split())
    return found


def _sense(written: float, exact_value: float) -> str:
    if not exact_value or not written:
        return "zero" if not written else "not zero"
    sign = "opposite" if written * exact_value < 0 else "same"
    return f"{sign} {'larger' if abs(written) > abs(exact_value) else 'smaller'}"


def _rounded(value: float) -> str:
    return f"{math.copysign(2 ** round(math.log2(abs(value))), value):g}" if value else "0"


@dataclass(frozen=True)
class Simulated:
    """Knows the feedback of each mistake, by its name, and picks by likeness of words, rare words counting most."""

    known: Mapping[str, Sequence[Counter[str]]]

    def repair(self, text: str) -> str:
        """The name of the mistake that it takes this to be."""
        return self.order(text)[0]

    def order(self, text: str) -> list[str]:
        """All mistakes, the likeliest first."""
        seen = symptoms(text)
        alike = {name: max(self._likeness(seen, one) for one in ones) for name, ones in self.known.items()}
        return sorted(alike, key=lambda name: (-alike[name], name))

    def _likeness(self, one: Counter[str], other: Counter[str]) -> float:
        weight = self._weights
        dot = sum(weight(w) ** 2 * min(one[w], 3) * min(other[w], 3) for w in one.keys() & other.keys())
        norms = [math.sqrt(sum((weight(w) * min(c[w], 3)) ** 2 for w in c)) for c in (one, other)]
        return dot / (norms[0] * norms[1] or 1.0)

    def _weights(self, word: str) -> float:
        having = sum(any(word in seen for seen in texts) for texts in self.known.values())
        return math.log((1 + len(self.known)) / (1 + having)) + 0.05

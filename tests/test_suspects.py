"""What the judge tells the author of a wrong result: the relation to the right one, and the fault that explains it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator import suspects
from coda_synth.evaluator.checking import meaning_cases
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.evaluator.inputs import exact, make_inputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.relation import relation
from coda_synth.evaluator.suspects import suspect
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks.mistakes import WRONG, Mistake
from benchmarks.simulated import Simulated, judged_here, symptoms, told

EXACT = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NAMED = {
    "the rescale is missing": "the second factor is left out, in `wide * scale`",
    "the gain is missing": "the second factor is left out, in `(wide * scale).to(x.dtype) * gamma`",
    "gate and up are swapped": "w_gate and w_up are exchanged",
    "the residual has the wrong sign": "the first addend has the other sign, in `x + F.linear(y, w_o)`",
    "a stale statistic": "pow sees a value before an addition",
    "the mean is a sum": "a sum stands for the mean",
    "eps is missing": "the second addend is left out, in `wide.pow(2).mean(-1, keepdim=True) + eps`",
    "no activation": "silu is left out",
    "frequencies in radians, not turns": "a product is 2 pi times too large",
    "the bias is missing": "the bias is left out",
}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (-EXACT, "it is the exact result negated"),
        (2.5 * EXACT, "it is 2.5 times the exact result"),
        (1.004 * EXACT, "it is 1.004 times the exact result"),
        (EXACT + 0.01, "each row is the exact one plus a number of its own, 0.01 to 0.01"),
        (EXACT + 0.01 * EXACT.cumsum(0).roll(1, 1), ""),
        (EXACT * torch.arange(1.0, 7.0)[:, None], "each row is the exact one times a factor of its own, 1 to 6"),
        (EXACT * torch.arange(1.0, 9.0), "each column is the exact one times a factor of its own, 1 to 8"),
        (EXACT + torch.arange(6.0)[:, None], "each row is the exact one plus a number of its own, 0 to 5"),
        (EXACT[:, [1, 0, 3, 2, 5, 4, 7, 6]], "it is the exact result with even and odd columns swapped"),
        (EXACT[:, [4, 5, 6, 7, 0, 1, 2, 3]], "it is the exact result with the two halves of its columns swapped"),
        (EXACT.roll(1, 0), "it is the exact result with its rows one too far down"),
        (torch.zeros_like(EXACT), "it is zero everywhere"),
        (EXACT.cumsum(0), ""),
    ],
)
def test_relations(output: torch.Tensor, said: str) -> None:
    assert relation(EXACT, output) == said


@pytest.mark.parametrize("mistake", [m for m in WRONG if m.name in NAMED], ids=lambda m: m.name)
def test_a_fault_is_named_with_its_line(mistake: Mistake) -> None:
    assert NAMED[mistake.name] in _suspect(mistake.task, mistake.text)


def test_what_no_single_fault_explains_is_left_unsaid() -> None:
    text = worked_candidate("linear_residual").replace("+ x", "+ 0.37 * x")
    assert _suspect("linear_residual", text) == ""


@pytest.mark.parametrize("spoilt", ["({}) / 0", "({}) * 1e400", "sqrt(0 - abs({}))"])
@pytest.mark.parametrize("name", ["linear_residual", "linear_scale_residual"])
def test_infinities_alone_name_no_fault(name: str, spoilt: str) -> None:
    text = worked_candidate(name)
    value = next(line for line in text.splitlines() if "return" in line).partition('"out": ')[2].rstrip("}")
    assert _suspect(name, text.replace(value, spoilt.format(value), 1)) == ""


def test_a_fault_is_named_where_both_have_the_same_infinities() -> None:
    """The reference with that fault divides by zero in the same places."""
    spec = task("linear_residual")
    facts = facts_of(spec, "bfloat16")
    inputs = exact(make_inputs(spec, facts.signature, meaning_cases(facts, 11)[0]))
    inputs["x"][0, 0], inputs["x"][0, 1] = -torch.inf, torch.nan
    negated = {"out": spec.reference(**{**inputs, "x": -inputs["x"]})["out"]}
    assert "the first addend has the other sign" in suspect(spec, inputs, negated)
    negated["out"][1, 1] = torch.inf  # there the fault gives a number
    assert suspect(spec, inputs, negated) == ""


def test_a_machine_with_much_else_to_do_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of the reference waits for its turn on the processor."""
    spec = task("linear_residual")
    facts = facts_of(spec, "bfloat16")
    inputs = exact(make_inputs(spec, facts.signature, meaning_cases(facts, 11)[0]))
    wrong = {"out": spec.reference(**{**inputs, "x": -inputs["x"]})["out"]}

    def waits(**given: torch.Tensor) -> Mapping[str, torch.Tensor]:
        time.sleep(0.1)
        return spec.reference(**given)

    monkeypatch.setattr(suspects, "_SECONDS", 0.05)
    assert "the first addend has the other sign" in suspect(replace(spec, reference=waits), inputs, wrong)


def _suspect(name: str, text: str) -> str:
    facts = facts_of(task(name), "bfloat16")
    case = meaning_cases(facts, 11)[0]
    inputs = exact(make_inputs(task(name), facts.signature, case))
    return suspect(task(name), inputs, evaluate(read(text, facts.signature), facts.signature, inputs))


def test_a_simulated_author_picks_the_repair_from_the_feedback_alone() -> None:
    """A sample of benchmarks/loop.py: taught on one seed, shown another."""
    torch.set_num_threads(1)
    sample = WRONG[::2]
    seen = {m.name: (symptoms(told(m, judged_here(Candidate(m.task, m.text), 1000))),) for m in WRONG}
    author = Simulated(seen)
    right = sum(author.repair(told(m, judged_here(Candidate(m.task, m.text), 3))) == m.name for m in sample)
    assert right >= 0.8 * len(sample)

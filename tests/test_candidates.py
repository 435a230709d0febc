"""The worked candidates: each means what its task means, and their honest roundings pass the judge."""

from __future__ import annotations

import pytest
import torch
from coda_synth.coda_api.program import Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import STYLES

from tests import mutations

BF16 = torch.bfloat16
TASKS = task_names()
# Frequencies are kept as a pair of fp32 numbers, good to 2^-49 turns a position; everything else is plain float64.
TOLERANCE = {"linear_rope": 1e-9}


def program(name: str) -> Program:
    return read(worked_candidate(name), signature(task(name)))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("style", STYLES)
def test_the_meaning_is_the_tasks_at_float64(name: str, style: str) -> None:
    spec, candidate = task(name), program(name)
    for sizes in spec.check_shapes:
        made = spec.make_inputs(sizes, torch.Generator().manual_seed(3), style)
        inputs = declared_inputs(spec, made, BF16)
        exact = mutations.exact(spec, inputs)
        for block in ((16, 16), (32, 64)):
            ours = evaluate(candidate, signature(spec), inputs, dtype=torch.float64, block=block)
            for output, value in exact.items():
                error = (ours[output].double() - value).abs().max()
                assert error <= TOLERANCE.get(name, 1e-12) * value.abs().max(), (output, sizes, block)


@pytest.mark.parametrize("name", TASKS)
def test_honest_roundings_pass_under_every_tiling(name: str) -> None:
    spec, candidate = task(name), program(name)
    for sizes in spec.check_shapes:
        for seed, style in enumerate(STYLES):
            made = spec.make_inputs(sizes, torch.Generator().manual_seed(seed), style)
            inputs = declared_inputs(spec, made, BF16)
            oracle = bounds(spec, inputs, BF16, seed)
            for block in ((16, 16), (32, 32), (64, 16)):
                ours = evaluate(candidate, signature(spec), inputs, dtype=torch.float64, block=block, rounding=True)
                judged = judge_outputs(oracle, ours)
                assert judged.passed, (sizes, style, block, judged)


@pytest.mark.parametrize("name", TASKS)
def test_a_candidate_says_what_its_algebra_is(name: str) -> None:
    candidate = program(name)
    assert candidate.docstring and candidate.name == name
    assert all(not getattr(call.unit, "hints", None) for call in candidate.calls)

"""The worked candidates: each means what its task means, and their honest roundings pass the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from coda_synth.coda_api.program import Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator.checking import meaning_cases
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import STYLES

from tests import mutations

BF16 = torch.bfloat16
torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other

TASKS = task_names()
# Frequencies are kept as a pair of fp32 numbers, good to 2^-49 turns a position; everything else is plain float64.
TOLERANCE = {"linear_rope": 1e-9}


# A plausible slip in each candidate's text: (what stands there, what is written instead).
SLIPS = [
    ("linear_bias_gelu", "gelu(", "gelu_tanh("),
    ("linear_bias_gelu", "gemm(x, w) + b", "gemm(x, w) - b"),
    ("linear_swiglu", "interleave(w_gate, w_up", "interleave(w_up, w_gate"),
    ("linear_swiglu", "interleave(w_gate, w_up", "concat(w_gate, w_up"),
    ("linear_swiglu", "silu(", "gelu("),
    ("linear_residual", "gemm(y, w) + x", 'cast(gemm(y, w), "float8_e4m3") + x'),
    ("residual_rmsnorm_swiglu", "h * gamma", 'cast(h * gamma, "float8_e4m3")'),
    ("residual_rmsnorm_swiglu", "total_sum(ssq)", "total_max(ssq)"),
    ("residual_rmsnorm_swiglu", "+ eps", "+ 2 * eps"),
    ("residual_rmsnorm_swiglu", '"x": h', '"x": h * gamma'),
    ("linear_rope", "a * c - b * s, b * c + a * s", "a * c + b * s, b * c - a * s"),
    ("linear_rope", 'low(z, "H"), high(z, "H")', "even(z), odd(z)"),
    ("linear_rope", "t - hi", "t - t"),
    ("linear_rope", "k = rotary(x, w_k,", "k = rotary(x, w_v,"),
    ("lm_head_cross_entropy", "total - chosen, 0.0", "total - chosen, total"),
    ("lm_head_cross_entropy", "maximum(sum(kept), 1.0)", 'maximum(sum(kept), size("M"))'),
    ("lm_head_cross_entropy", "total_logsumexp(lse)", "total_max(lse)"),
]


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


@pytest.mark.parametrize(("name", "right", "wrong"), SLIPS)
def test_a_slip_in_the_text_fails_with_the_errors_of_real_roundings(name: str, right: str, wrong: str) -> None:
    spec, text = task(name), worked_candidate(name)
    assert right in text
    candidate = read(text.replace(right, wrong), signature(spec))
    for planned in meaning_cases(facts_of(spec, "bfloat16"), seed=0):
        made = spec.make_inputs(planned.sizes, torch.Generator().manual_seed(planned.seed), planned.style)
        inputs = declared_inputs(spec, made, BF16)
        ours = evaluate(candidate, signature(spec), inputs, rounding=True)
        oracle = bounds(spec, inputs, BF16, planned.seed)
        ours = {output: value.to(oracle.outputs[output].dtype) for output, value in ours.items()}
        if not judge_outputs(oracle, ours).passed:
            return
    pytest.fail("the judge accepted it")


@pytest.mark.parametrize("name", TASKS)
def test_the_generated_code_passes_in_the_interpreter(name: str) -> None:
    script = Path(__file__).with_name("interpreted.py")
    paths = {"PYTHONPATH": str(script.parent.parent), "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, script, name], env={**os.environ, **paths}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)[name]
    assert {form.split()[0] for form in found} == {"pointer", "descriptor"}
    for form, (ratio, worst, *faults) in found.items():
        assert ratio <= 1 and not faults, (form, worst, faults)


@pytest.mark.parametrize("name", TASKS)
def test_a_candidate_says_what_its_algebra_is(name: str) -> None:
    candidate = program(name)
    assert candidate.docstring and candidate.name == name
    assert all(not getattr(call.unit, "hints", None) for call in candidate.calls)

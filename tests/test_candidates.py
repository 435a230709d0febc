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
from coda_synth.evaluator.codes import FORMATS, beyond
from coda_synth.evaluator.correctness import bounds, declared_dtypes, declared_inputs, judge_outputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import STYLES

from tests import mutations
from tests.representative import BOTH_WAYS, shapes_and_styles

BF16 = torch.bfloat16
torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other

TASKS = task_names()

# A plausible slip in each candidate's text: (what stands there, what is written instead).
SLIPS = [
    ("linear_bias_gelu", "gelu(gemm", "gelu_tanh(gemm"),
    ("linear_bias_gelu", "gemm(x, w) + b", "gemm(x, w) - b"),
    ("linear_swiglu", "interleave(w_gate, w_up", "interleave(w_up, w_gate"),
    ("linear_swiglu", "interleave(w_gate, w_up", "concat(w_gate, w_up"),
    ("linear_swiglu", "silu(", "gelu("),
    ("linear_residual", "gemm(y, w) + x", 'cast(gemm(y, w), "float8_e4m3") + x'),
    ("residual_rmsnorm_swiglu", "h * gamma", 'cast(h * gamma, "float8_e4m3") * 1'),
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
    ("linear_backward", "accumulate(dw, gemm(dy, x))", "accumulate(dw, 0 * gemm(dy, x))"),
    ("swiglu_backward", "t + a * (1 - t)", "t"),
    ("swiglu_backward", "interleave(h * da, d * a)", "interleave(d * a, h * da)"),
    ("swiglu_backward", "g * da + a", "g * da"),
    ("geglu_backward", "p + g * density", "p"),
    ("gelu_bias_backward", "(z - b) * dz", "z * dz"),
    ("rmsnorm_backward", "d * gamma - xhat * s", "d * gamma"),
    ("rmsnorm_backward", "tile_sum(d * xhat", "tile_sum(d * x"),
    ("layernorm_backward", "- s1 - xhat * s2", "- s1"),
    ("layernorm_backward", "- s1 - xhat * s2", "- xhat * s2"),
    ("qknorm_rope_backward", 'dg - xhat * spread(r * m, "H")', "dg"),
    ("qknorm_rope_backward", 'fold(total_sum(dg), "H")', 'fold(total_sum(dg), "H") / 2'),
    ("lm_head_cross_entropy_backward", "target == -100, inf", "target == -1, inf"),
    ("lm_head_cross_entropy_backward", "alpha * gemm(dz, h)", "gemm(dz, h)"),
    ("lm_head_cross_entropy_backward", "tile_sum(z * dz", "tile_sum(z * p"),
    ("llama_unit_forward", "residual(b.act, w2, a.x, gamma2)", "residual(b.act, w2, x0, gamma2)"),
    ("llama_unit_forward", "rotary(c.h, w_qkv, r2.r", "rotary(c.h, w_qkv, r1.r"),
    (
        "llama_unit_backward",
        "norm(b2.dz, w1, x1, gamma1, r1, s1.s, b1.dx)",
        "norm(b2.dz, w1, x1, gamma1, r1, s1.s, dx2)",
    ),
    ("llama_unit_backward", "gamma2, r2, s2.s, dx2", "gamma2, r2, r2, dx2"),
    ("rope_backward", "a * c + b * s, b * c - a * s", "a * c - b * s, b * c + a * s"),
    ("linear_bias_relu2", "z * z", "z"),
    ("linear_bias_relu2", "relu(gemm(x, w) + b)", "relu(gemm(x, w)) + b"),
    ("linear_gelu", "gelu(gemm", "gelu_tanh(gemm"),
    ("linear_gelu_tanh", "gelu_tanh(gemm", "gelu(gemm"),
    ("linear_geglu", "gelu(", "silu("),
    ("linear_scale_residual", "gamma * (gemm(y, w) + b)", "gamma * gemm(y, w) + b"),
    ("linear_sigmoid_gate", "sigmoid(gemm(y, w) + b)", "sigmoid(gemm(y, w)) + b"),
    ("residual_rmsnorm", '"h": h * gamma', '"h": h'),
    ("residual_rmsnorm", "+ eps", ""),
    ("rmsnorm_linear", '/ size("N")', ""),
    ("rmsnorm_linear", "x * rstd * gamma", "x * rstd"),
    ("rmsnorm_qkv_rope", "x * rstd * gamma", "x * gamma"),
    ("rmsnorm_qkv_rope", "v = project(n.h, w_v", "v = project(n.h, w_k"),
    ("qknorm_rope", '/ size("H")', ""),
    ("qknorm_rope", "normed_rotary(x, w_k, g_k", "normed_rotary(x, w_k, g_q"),
    ("residual_layernorm_linear", "h - mu", "h"),
    ("residual_layernorm_linear", "tile_sum(d * d", "tile_sum(h * h"),
    ("residual_layernorm_linear", "matvec(w, beta) + b", "b + 0 * matvec(w, beta)"),
    ("residual_layernorm_linear", "total_sum(ym) + mean", "mean"),
    ("lm_head_cross_entropy_logits", '"logits": z', '"logits": cast(z, "float8_e4m3") * 1'),
    ("lm_head_softcap_cross_entropy", "cap * tanh(gemm(h, w) / cap)", "cap * tanh(gemm(h, w))"),
    ("linear_quantize_fp8", "group_max(abs(z), 128)", "group_max(z, 128)"),
    ("linear_quantize_fp8", "/ 448", "/ 384"),
    ("linear_quantize_fp8", 'cast(scale, "float32")', 'cast(1 / scale, "float32")'),
    ("linear_quantize_fp8_rowwise", "tile_max(abs(z)", "tile_max(z"),
]


def program(name: str) -> Program:
    return read(worked_candidate(name), signature(task(name)))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("style", STYLES)
def test_the_meaning_is_the_tasks_at_float64(name: str, style: str) -> None:
    spec, candidate = task(name), program(name)
    # Frequencies are kept as two fp32 numbers, good to 2^-49 turns a position; everything else is plain float64.
    tolerance = 1e-9 if "inv_freq" in [i.name for i in spec.inputs] else 1e-12
    if name == "llama_unit_backward":  # where such an error is carried through six more GEMMs
        tolerance = 1e-8
    for sizes in spec.check_shapes:
        made = spec.make_inputs(sizes, torch.Generator().manual_seed(3), style)
        inputs = declared_inputs(spec, made, BF16)
        exact = mutations.exact(spec, inputs)
        for block in ((16, 16), (32, 64)):
            ours = evaluate(candidate, signature(spec), inputs, dtype=torch.float64, block=block)
            for output, dtype in declared_dtypes(spec, BF16).items():
                value = exact[output]
                error = beyond(ours[output], value, dtype) if dtype in FORMATS else ours[output].double() - value
                assert error.abs().max() <= tolerance * value.abs().max(), (output, sizes, block)


@pytest.mark.parametrize(("name", "every_pair"), BOTH_WAYS)
def test_honest_roundings_pass_under_every_tiling(name: str, every_pair: bool) -> None:
    spec, candidate = task(name), program(name)
    for sizes, style in shapes_and_styles(name, every_pair):
        seed = STYLES.index(style)
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


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, list]]:
    """One process for all tasks: triton decides at import whether it interprets."""
    script = Path(__file__).with_name("interpreted.py")
    paths = {"PYTHONPATH": str(script.parent.parent), "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, script, *TASKS], env={**os.environ, **paths}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", TASKS)
def test_the_generated_code_passes_in_the_interpreter(name: str, interpreted: dict[str, dict[str, list]]) -> None:
    found = interpreted[name]
    assert {form.split()[0] for form in found} == {"pointer", "descriptor"}
    for form, (ratio, worst, *faults) in found.items():
        assert ratio <= 1 and not faults, (form, worst, faults)


@pytest.mark.parametrize("name", TASKS)
def test_a_candidate_says_what_its_algebra_is(name: str) -> None:
    candidate = program(name)
    assert candidate.docstring and candidate.name == name
    hints = {hint for call in candidate.calls for hint in getattr(call.unit, "hints", {})}
    assert hints <= {"slice_n"}  # where the epilogue would spill; everything else is left to the tuner

"""fp8 outputs: a code stands for the numbers that round to it; the judge allows what lies in there and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from coda_synth.evaluator.codes import FORMATS, Unrounded, beyond
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.tasks.catalog import task

E4M3 = torch.float8_e4m3fn
torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_number_lies_in_its_own_codes_interval_and_beyond_every_other(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    every = every[every.isfinite()].unique()  # -0 and 0 are one
    largest = float(torch.finfo(dtype).max)
    numbers = torch.linspace(-1.0, 1.0, 20001, dtype=torch.float64).pow(3) * largest
    own = numbers.to(dtype).double()
    assert not beyond(own, numbers, dtype).any()
    for step in (-1, 1):
        other = every[(torch.searchsorted(every, own) + step).clamp(0, len(every) - 1)]
        moved = other != own
        distance = beyond(other, numbers, dtype)[moved]
        tie = (numbers - (own + other) / 2)[moved].abs()  # the two codes' intervals meet in the middle
        torch.testing.assert_close(distance, tie, rtol=1e-12, atol=0)


def test_what_is_too_large_is_stored_as_the_largest_code() -> None:
    held = torch.tensor([448.0, -448.0, 448.0, 416.0], dtype=torch.float64)
    exact = torch.tensor([1e4, -1e4, -448.0, 1e4], dtype=torch.float64)
    assert beyond(held, exact, E4M3).tolist() == [0.0, 0.0, 432.0 + 448.0, 1e4 - 432.0]


def test_the_exact_number_of_a_code_is_known_before_its_rounding() -> None:
    x = torch.tensor([1.03, 300.7], dtype=torch.float64)
    with Unrounded():
        assert torch.equal(x.to(E4M3), x)
    assert not torch.equal(x.to(E4M3).double(), x)


@pytest.mark.parametrize("name", ["linear_quantize_fp8", "linear_quantize_fp8_rowwise"])
def test_codes_one_step_off_fail_and_ties_may_go_either_way(name: str) -> None:
    spec = task(name)
    made = spec.make_inputs(spec.check_shapes[0], torch.Generator().manual_seed(0), "normal")
    inputs = declared_inputs(spec, made, torch.bfloat16)
    oracle = bounds(spec, inputs, torch.bfloat16, 0)
    exact = {output: allowed.exact for output, allowed in oracle.outputs.items()}
    good = {"codes": exact["codes"].to(E4M3), "scale": exact["scale"].float()}
    assert judge_outputs(oracle, good).error_ratio < 0.01
    off = good["codes"].view(torch.uint8).clone()
    off[3, 5] ^= 1
    judged = judge_outputs(oracle, {**good, "codes": off.view(E4M3)})
    assert not judged.passed and "before it is rounded to a code" in judged.findings[0]
    assert not judge_outputs(oracle, {**good, "codes": exact["codes"].mul(1.1).to(E4M3)}).passed
    tie = exact["codes"].clone()
    tie[0, 0] = 17.0  # between 16 and 18
    tied = {**oracle.outputs, "codes": replace(oracle.outputs["codes"], exact=tie)}
    for code in (16.0, 18.0):
        one = good["codes"].clone()
        one[0, 0] = code
        assert judge_outputs(replace(oracle, outputs=tied), {**good, "codes": one}).passed

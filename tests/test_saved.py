"""What a forward keeps for its backward, in bytes: by the unit's program, and by eager autograd."""

from __future__ import annotations

import pytest
import torch
from coda_synth.evaluator.saved import kept_by_autograd, kept_by_program
from coda_synth.tasks.catalog import task

SIZES = {"T": 6, "D": 8, "A": 10, "F": 12, "Q": 14}
BF16 = torch.bfloat16


def test_the_program_keeps_what_the_backward_takes_and_no_operand_that_an_epilogue_makes_anew() -> None:
    kept = kept_by_program(task("llama_unit_forward"), task("llama_unit_backward"), SIZES, BF16)
    per_token = {"y0": 2 * 10, "x1": 2 * 8, "r1": 4, "z1": 2 * 24, "x2": 2 * 8, "r2": 4, "qkv": 2 * 14}
    assert kept == {name: 6 * size for name, size in per_token.items()}


def test_autograd_keeps_every_operand() -> None:
    kept = kept_by_autograd(task("llama_unit_forward"), SIZES, BF16, "cpu")
    d, a, f, q = (SIZES[n] for n in "DAFQ")
    norm = 4 * d + 4 + 4 * d + 2 * d + 2 * d  # fp32: the row (twice, for square and product), 1 / rms; bf16: xhat, y
    mlp = 2 * 2 * f + 2 * f + 2 * f  # z, silu(gate), act
    angles = 2 * 2 * (q // 2)
    found = sum(size for _, size in kept.values())
    assert found == 6 * (2 * a + norm + mlp + norm + angles)


@pytest.mark.parametrize("label", ["llama3-8b", "llama3-1b"])
def test_nothing_is_computed_to_count_a_real_shape(label: str) -> None:
    forward, backward = task("llama_unit_forward"), task("llama_unit_backward")
    sizes = forward.time_shapes[label]
    ours = sum(kept_by_program(forward, backward, sizes, BF16).values())
    eager = sum(size for _, size in kept_by_autograd(forward, sizes, BF16).values())
    assert 2.3 < eager / ours < 2.6


def test_a_small_shape_on_the_cpu_keeps_what_is_counted_without_a_device() -> None:
    forward = task("llama_unit_forward")
    assert kept_by_autograd(forward, SIZES, BF16, "cpu") == kept_by_autograd(forward, SIZES, BF16)

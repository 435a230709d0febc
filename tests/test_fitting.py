"""Sizes that show a program's tiling: several tiles along every dim, no more, and rows as TMA wants them."""

from __future__ import annotations

import pytest
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.fitting import fit_sizes
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate


@pytest.mark.parametrize(
    ("name", "aligned", "sizes"),
    [
        ("linear_swiglu", True, {"T": 40, "D": 40, "F": 72}),
        ("linear_swiglu", False, {"T": 33, "D": 33, "F": 65}),
        ("linear_quantize_fp8", True, {"T": 48, "D": 48, "N": 2048}),
        ("linear_quantize_fp8", False, {"T": 33, "D": 33, "N": 384}),
        ("linear_quantize_fp8_rowwise", True, {"T": 48, "D": 48, "N": 272}),
    ],
)
def test_the_least_sizes_with_two_tiles_and_a_bit(name: str, aligned: bool, sizes: dict[str, int]) -> None:
    spec = task(name)
    program = read(worked_candidate(name), signature(spec))
    width = 128 if "fp8" in name else 64
    small = {c.name: Schedule(16, width, 16) for c in program.calls if isinstance(c.unit, Kernel)}
    assert fit_sizes(program, spec.check_shapes[0], small, 2, aligned=aligned) == sizes

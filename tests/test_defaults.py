"""Which schedule a kernel starts from: by how much work its epilogue is, and how long its sum and its product."""

from collections.abc import Mapping

import pytest
from coda_synth.coda_api.arithmetic import instructions
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate


def chosen(name: str, sizes: Mapping[str, int], call: str = "a") -> Schedule:
    typed = signature(task(name))
    return lower(read(worked_candidate(name), typed), typed, sizes, hopper=True).schedules[call]


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("linear_nt", 0.98),
        ("linear_residual", 3.14),
        ("linear_swiglu", 4.35),
        ("residual_rmsnorm", 7.83),
        ("linear_bias_gelu", 12.39),
        ("swiglu_backward", 21.71),
        ("geglu_backward", 45.82),
    ],
)
def test_instructions_are_estimated_to_a_few_of_what_builds_have(name: str, counted: float) -> None:
    """Counted by benchmarks/epilogue.py; docs/hopper.md has them all."""
    typed = signature(task(name))
    program = read(worked_candidate(name), typed)
    call = next(c for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm)
    live = {output: call.unit.outputs[output] for output in program.live_outputs(call)}
    sizes = task(name).time_shapes["llama3-8b"]
    assert isinstance(call.unit, Kernel)
    assert instructions(call.unit, live, lambda dim: call.dim(dim).size(sizes)) == pytest.approx(
        counted, rel=0.2, abs=1
    )


@pytest.mark.parametrize(
    ("name", "sizes", "mainloop"),
    [
        ("linear_nt", {"T": 8192, "F": 4096, "D": 4096}, "auto"),  # brief, and nothing to hide
        ("linear_nt", {"T": 8192, "F": 28672, "D": 4096}, "pingpong"),
        ("linear_residual", {"T": 8192, "D": 4096, "K": 4096}, "auto"),
        ("linear_residual", {"T": 16384, "D": 2048, "K": 2048}, "pingpong"),  # the sum is too short to ignore it
        ("residual_rmsnorm", {"T": 8192, "D": 4096, "K": 4096}, "pingpong"),
        ("swiglu_backward", {"T": 16384, "D": 2048, "F": 8192}, "pingpong"),
        ("geglu_backward", {"T": 8192, "D": 4096, "F": 14336}, "auto"),  # too much for one group
        ("lm_head_cross_entropy", {"T": 8192, "D": 4096, "V": 128256}, "auto"),  # a chain from column to column
    ],
)
def test_light_and_heavy_epilogues_share_a_tile_and_all_others_take_turns(
    name: str, sizes: Mapping[str, int], mainloop: str
) -> None:
    assert chosen(name, sizes).mainloop == mainloop


def test_turns_have_five_stages_and_slices_that_fit_beside_them() -> None:
    sizes = {"T": 8192, "D": 4096, "F": 14336}
    for name, width in (("linear_bias_gelu", 32), ("swiglu_backward", 16)):
        typed = signature(task(name))
        made = lower(read(worked_candidate(name), typed), typed, sizes, hopper=True)
        assert (made.effective["a"].stages, made.effective["a"].slice_n) == (5, width)

"""Drawn programs as Hopper kernels in the simulator, against the reference meaning.

Run by test_hopper_simulator in a process of its own with TRITON_INTERPRET=1: triton decides at import. With -m slow
there are MANY programs, or as many as DRAWN_PROGRAMS says, and one that fails is shrunk.
"""

from __future__ import annotations

import os

import pytest
import torch
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Kernel, Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator import hopper_simulator
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.interpreted_properties import MANY, MIXED, UNHURRIED, UNSHRUNK, drawn_inputs, programs
from tests.language import signature_of

shared = st.builds(
    Schedule,
    block_m=st.just(64), block_n=st.sampled_from([32, 64]), block_k=st.sampled_from([16, 32]), warps=st.just(4),
    stages=st.sampled_from([2, 3]), group_m=st.sampled_from([1, 2]), slice_n=st.sampled_from([0, 16, 32]),
    mainloop=st.just("hopper"), split_k=st.sampled_from([1, 1, 2, 4]),
    cut=st.sampled_from(["even", "stream"]),
)  # fmt: skip
by_turns = st.builds(
    Schedule,
    block_m=st.just(64), block_n=st.sampled_from([32, 64]), block_k=st.sampled_from([16, 32]), warps=st.just(8),
    stages=st.sampled_from([2, 4]), slice_n=st.sampled_from([0, 16, 32]), mainloop=st.just("pingpong"),
    split_k=st.sampled_from([1, 1, 2, 4]),
    cut=st.sampled_from(["even", "stream"]),
)  # fmt: skip


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Rows of 16 bytes in every layout, as the copy engine wants them; 2*F holds whole groups of H."""
    rows, inner, half = draw(st.integers(1, 25)), draw(st.integers(1, 10)), draw(st.integers(1, 9))
    return {"T": 8 * rows, "D": 8 * inner, "F": 8 * half, "H": draw(st.sampled_from([8, 16]))}


@st.composite
def sizes_for_anything(draw: st.DrawFn) -> dict[str, int]:
    """As above; F holds whole groups of 2*H."""
    rows, inner, columns = draw(st.integers(1, 25)), draw(st.integers(1, 10)), draw(st.integers(1, 5))
    return {"T": 8 * rows, "D": 8 * inner, "F": 16 * columns, "H": draw(st.sampled_from([4, 8]))}


def simulated(
    program: Program, size: dict[str, int], inputs: dict[str, Tensor | float], schedule: Schedule, seed: int
) -> dict[str, Tensor]:
    """The outputs of the generated text; gives up on a program that has no Hopper kernel."""
    chosen = {c.name: schedule for c in program.calls if isinstance(c.unit, Kernel) and c.unit.gemm}
    try:
        signature = signature_of(program, dtype="bfloat16")
        made = lower(program, signature, size, form="hopper", schedules=chosen, processors=2)
    except LoweringError:
        assume(False)
    assert any(launch.gluon for launch in made.launches)
    module = hopper_simulator.load(made.source, seed=seed)
    buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
    pool = {**inputs, **module.prepare(**{n: inputs[n] for n in made.prepare_arguments}), **buffers}
    pool["dw"] = dw = pool["dw"].clone()
    module.launch(**{name: pool[name] for name in made.arguments})
    return {output: buffers[b.name] for b in made.buffers for output in b.outputs} | {"dw": dw}


def agrees(drawn: tuple[str, str], size: dict[str, int], schedule: Schedule, seed: int) -> None:
    """Asserts that the simulated kernels compute the program's meaning."""
    text, layout = drawn
    program = read(text)
    given_inputs = drawn_inputs(size, layout).items()
    floats = {n: v for n, v in given_inputs if isinstance(v, Tensor) and v.is_floating_point()}
    inputs = dict(given_inputs) | {n: v.bfloat16() for n, v in floats.items() if n != "dw"}
    actual = simulated(program, size, inputs, schedule, seed)
    widened = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in inputs.items()}
    exact = evaluate(program, signature_of(program), widened, block=(64, schedule.block_n))
    scale = max(1.0, *(float(exact[name].abs().max()) for name in ("y", "before"))) ** 2 * max(size.values())
    unit = 5e-5 if "gelu(" in text else 2e-6  # off by 3e-6 itself (test_spelling.py), and sums add that up
    for name, expected in exact.items():
        assert actual[name].shape == expected.shape, name
        error = (actual[name].double() - expected).abs().max().item()
        allowed = unit * max(scale, 4 * float(expected.abs().max()))
        assert error <= allowed, f"{name}: {error:.2e} of {allowed:.2e}\n{text}"


ARGUMENTS = {"drawn": programs(), "size": sizes(), "schedule": shared | by_turns, "seed": st.integers(0, 2**16)}
ANYTHING = ARGUMENTS | {"drawn": programs((MIXED,)), "size": sizes_for_anything()}


@settings(UNHURRIED, max_examples=7, phases=UNSHRUNK)
@given(**ARGUMENTS)
def test_simulated_kernels_compute_the_meaning(
    drawn: tuple[str, str], size: dict[str, int], schedule: Schedule, seed: int
) -> None:
    agrees(drawn, size, schedule, seed)


@settings(UNHURRIED, max_examples=6, phases=UNSHRUNK)
@given(**ANYTHING)
def test_anything_may_stand_beside_anything(
    drawn: tuple[str, str], size: dict[str, int], schedule: Schedule, seed: int
) -> None:
    agrees(drawn, size, schedule, seed)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=int(os.environ.get("DRAWN_PROGRAMS", MANY)))
@given(**ARGUMENTS)
def test_many_programs_and_the_least_of_those_that_fail(
    drawn: tuple[str, str], size: dict[str, int], schedule: Schedule, seed: int
) -> None:
    """A program that fails is shrunk, for five minutes at most: hypothesis stops there by itself."""
    agrees(drawn, size, schedule, seed)

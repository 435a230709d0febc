"""Drawn programs as Hopper kernels, built for sm_90: the compiler is who knows whether layouts fit each other."""

from __future__ import annotations

import pytest
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from tests.interpreted_properties import MIXED, UNHURRIED, programs, written
from tests.language import signature_of

SM_90 = toolchain.target_of("sm_90")
schedules = st.builds(
    Schedule,
    block_m=st.just(128), block_n=st.just(128), block_k=st.just(32), stages=st.just(2), warps=st.just(8),
    slice_n=st.sampled_from([0, 32, 64]), mainloop=st.sampled_from(["hopper", "pingpong"]),
    split_k=st.sampled_from([1, 1, 1, 4]), cut=st.sampled_from(["even", "stream"]),
)  # fmt: skip
# Sums, moments and picks over half a tile's columns, and groups beside pairs: three layouts in one epilogue.
HARD = written("NT", 'spread(group_max(z, "H"), "H") * t', "interleave(odd(z), u)", "even(t) * odd(z)")

# Halves of two sizes of groups, of halves and of a double tile, and groups of halves: each layout meets the others.
HALVED = written(
    "NT",
    'join(low(z, "2*H") * spread(group_sum(low(z, "2*H"), "H"), "H"), high(z, "H"), "2*H")',
    'high(join(z, t, "2*H"), "H")',
    'join(low(low(z, "2*H"), "H"), high(u, "H"), "H") + high(t, "H")',
)


def builds(drawn: tuple[str, str], schedule: Schedule, group: int) -> None:
    program = read(drawn[0])
    chosen = {c.name: schedule for c in program.calls if isinstance(c.unit, Kernel) and c.unit.gemm}
    sizes = {"T": 1024, "D": 256, "F": 512, "H": group}
    try:
        made = lower(program, signature_of(program, dtype="bfloat16"), sizes, form="hopper", schedules=chosen)
    except LoweringError:
        assume(False)
    (launch,) = [launch for launch in made.launches if launch.gluon]
    kernel = toolchain.compile_launch(getattr(toolchain.load(made.source), launch.kernel), launch, SM_90)
    assert "wgmma.mma_async" in kernel.asm["ptx"]


@pytest.mark.parametrize("drawn", [HARD, HALVED], ids=["pairs", "halves"])
@pytest.mark.parametrize("mainloop", ["hopper", "pingpong"])
def test_a_program_of_many_layouts_builds(drawn: tuple[str, str], mainloop: str) -> None:
    builds(drawn, Schedule(128, 128, 32, 2, 8, mainloop=mainloop), 32)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=60, phases=[Phase.generate])
@given(programs() | programs((MIXED,)), schedules, st.sampled_from([16, 32, 64]))
def test_drawn_programs_build(drawn: tuple[str, str], schedule: Schedule, group: int) -> None:
    builds(drawn, schedule, group)

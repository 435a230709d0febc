"""Generated Hopper kernels in the simulator: worked candidates on several tiles, and kernels spoilt on purpose.

Run by test_hopper_simulator in a process of its own with TRITON_INTERPRET=1: triton decides at import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton.language as tl
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.gluon_text import library
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator import hopper_simulator
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.fitting import fit_sizes
from coda_synth.evaluator.hopper_memory import HopperFault
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.quick_interpreter import quicken
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from tests.cases import PROGRAMS
from tests.language import randn, signature_of
from tests.representative import REPRESENTATIVE

toolchain.repair_interpreter()
quicken()
TURNS = Schedule(block_m=64, block_n=64, block_k=32, stages=3, warps=8, group_m=2, mainloop="pingpong")
SHARED = Schedule(block_m=128, block_n=64, block_k=32, stages=2, warps=8, group_m=2, slice_n=32, mainloop="hopper")
FULL = Schedule(group_m=2, slice_n=64, mainloop="hopper")  # there residual_rmsnorm has no room for a second slot
HEAD = "from triton.experimental import gluon\nfrom triton.experimental.gluon import language as gl\n"
PROCESSORS = 2  # so that every block walks several tiles


def lowered(name: str, schedule: Schedule) -> tuple[Generated, dict[str, int], int]:
    """A worked candidate with the schedule wherever it is possible, at sizes of more than two tiles each way."""
    spec = task(name)
    program = read(worked_candidate(name), signature(spec))
    calls = [c.name for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm]
    chosen = dict.fromkeys(calls, schedule)
    while True:
        try:
            whole = lower(program, signature(spec), spec.check_shapes[1], form="hopper", schedules=chosen).schedules
            break
        except LoweringError as error:  # says first of which call
            del chosen[str(error).partition(":")[0]]
    sizes = fit_sizes(program, spec.check_shapes[1], {**whole, **chosen}, 2, aligned=True)
    made = lower(program, signature(spec), sizes, form="hopper", schedules=chosen, processors=PROCESSORS)
    return made, sizes, len(chosen)


def error_ratio(name: str, made: Generated, sizes: Mapping[str, int], source: str, seed: int) -> float:
    spec = task(name)
    drawn = spec.make_inputs(sizes, torch.Generator().manual_seed(seed), "normal")
    inputs = declared_inputs(spec, drawn, torch.bfloat16)
    outputs = run(made, inputs, source, seed)
    return judge_outputs(bounds(spec, inputs, torch.bfloat16, seed), outputs).error_ratio


def run(made: Generated, inputs: Mapping[str, Any], source: str, seed: int) -> dict[str, torch.Tensor]:
    """The outputs of a whole program, from poisoned buffers."""
    module = hopper_simulator.load(source, seed=seed)
    buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
    pool = {**inputs, **module.prepare(**{n: inputs[n] for n in made.prepare_arguments}), **buffers}
    pool |= {n: pool[n].clone() for n in made.in_place}
    module.launch(**{name: pool[name] for name in made.arguments})
    outputs = {o: buffers[b.name] for b in made.buffers for o in b.outputs}
    return outputs | {o: pool[n] for n, written in made.in_place.items() for o in written}


# The judge simulates each of them with the schedule that ships wherever a test evaluates it.
SIMULATED: list[Any] = [
    pytest.param(n, marks=[] if n in (*REPRESENTATIVE, "swiglu_backward", "linear_backward") else pytest.mark.slow)
    for n in task_names()
]


@pytest.mark.parametrize("name", SIMULATED)
def test_worked_candidates(name: str) -> None:
    """Both mainloops, each under another drawing of what the hardware leaves open."""
    for seed, schedule in enumerate((TURNS, SHARED)):
        made, sizes, count = lowered(name, schedule)
        assert sum(launch.gluon for launch in made.launches) >= count
        if count:
            assert error_ratio(name, made, sizes, made.source, seed) <= 1.0


@pytest.mark.parametrize("name", ["residual_rmsnorm", "rmsnorm_backward", "lm_head_cross_entropy"])
def test_whole_tiles_need_no_masks(name: str) -> None:
    spec, sizes = task(name), dict.fromkeys(task(name).check_shapes[0], 2 * SHARED.block_m)
    program, sig = read(worked_candidate(name), signature(spec)), signature(spec)
    chosen = {c.name: SHARED for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm}
    made = lower(program, sig, sizes, form="hopper", schedules=chosen, processors=PROCESSORS)
    whole = [a.value for launch in made.launches for a in launch.args if a.name.startswith("WHOLE_")]
    assert whole and all(whole)
    assert error_ratio(name, made, sizes, made.source, 0) <= 1.0


@pytest.mark.parametrize("schedule", [TURNS, SHARED], ids=lambda schedule: schedule.mainloop)
def test_reductions_down_the_rows_of_tiles_of_two_widths(schedule: Schedule) -> None:
    program = read(PROGRAMS["reductions down the rows"])
    sig, sizes = signature_of(program, dtype="bfloat16"), {"T": 200, "D": 64, "F": 104}
    inputs = {p.name: randn(*(d.size(sizes) for d in p.type.dims)).bfloat16() for p in program.params}
    made = lower(program, sig, sizes, form="hopper", schedules={"a": schedule}, processors=PROCESSORS)
    buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
    pool = {**inputs, **buffers}
    hopper_simulator.load(made.source).launch(**{name: pool[name] for name in made.arguments})
    exact = evaluate(program, sig, inputs)
    for b in made.buffers:
        for output in b.outputs:
            torch.testing.assert_close(buffers[b.name].double(), exact[output], rtol=1e-4, atol=1e-3)


ACCUMULATED = {  # what is added to dw, how wide that is, and whether the copy engine adds it
    "beside others": ("z * t", "N", True),
    "of pairs": ("even(z) * odd(t)", "N/2", True),
    "twice as wide": ("interleave(z, t)", "2*N", True),
    "of groups": ("group_sum(z, 4)", "N/4", True),
    "of groups so wide that a slice has too few for a copy": ("group_sum(z, 16)", "N/16", False),
    "rounded": ("cast(z, 'bfloat16')", "N", True),
}


@pytest.mark.parametrize("schedule", [TURNS, SHARED], ids=lambda schedule: schedule.mainloop)
@pytest.mark.parametrize("what", ACCUMULATED)
def test_what_is_accumulated(what: str, schedule: Schedule) -> None:
    """To what is there, ragged tiles and all, beside a stored tile and partials."""
    added, cols, copied = ACCUMULATED[what]
    program = read(f"""
@kernel
def k(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], dw: Tensor["M", "{cols}"]):
    z = gemm(x, w)
    return {{"y": z + t, "dw": accumulate(dw, {added}), "down": tile_sum(z, "M"), "across": tile_sum(z * t, "N")}}


@finisher
def total(p: Partial["A", "B"]):
    return {{"total": total_sum(p)}}


@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F"], dw: Tensor["T", "{cols.replace("N", "F")}"]):
    a = k(x, w, t, dw)
    b = total(a.down)
    c = total(a.across)
    return {{"y": a.y, "dw": a.dw, "down": b.total, "across": c.total}}
""")
    sig, sizes = signature_of(program, dtype="bfloat16"), {"T": 200, "D": 64, "F": 208}
    inputs = {p.name: randn(*(d.size(sizes) for d in p.type.dims)).bfloat16() for p in program.params}
    inputs["dw"] = inputs["dw"].float()
    made = lower(program, sig, sizes, form="hopper", schedules={"a": schedule}, processors=PROCESSORS)
    assert made.launches[0].gluon and ("tma_add(dw" in made.source) == copied
    exact = evaluate(program, sig, inputs)
    for name, found in run(made, inputs, made.source, seed=1).items():
        torch.testing.assert_close(found.double(), exact[name], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("schedule", [TURNS, SHARED], ids=lambda schedule: schedule.mainloop)
@pytest.mark.parametrize("inner", [40, 1000])
@pytest.mark.parametrize("runs", [0, 1, 5, 40])
def test_pieces_of_a_sum(runs: int, inner: int, schedule: Schedule) -> None:
    """Even ones and, of some runs, a stream's; of ragged steps, of fewer steps than pieces, and with rows that end
    inside a tile: the same bits every time."""
    cut = replace(schedule, split_k=4, cut="stream" if runs else "even")
    made, inputs, exact = residual({"T": 200, "D": 104, "K": inner}, cut, runs or PROCESSORS)
    assert [launch.gluon for launch in made.launches] == [True, False]
    assert made.launches[0].tiles == (runs or 4 * made.launches[1].tiles)
    found = [launched(made, inputs, seed) for seed in (0, 1)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-2, atol=1e-2)


BESIDE: list[Any] = [
    "residual_rmsnorm_swiglu",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("linear_backward", "qknorm_rope", "rmsnorm_qkv_rope")),
]


@pytest.mark.parametrize("name", BESIDE)
def test_pieces_beside_other_launches(name: str) -> None:
    """Workspaces, what overlaps with what, operands that lie either way, and epilogues of every kind."""
    for seed, schedule in enumerate((TURNS, SHARED)):
        cut = "even" if schedule is TURNS else "stream"
        made, sizes, count = lowered(name, replace(schedule, split_k=2, cut=cut))
        assert sum(launch.gluon for launch in made.launches) == count
        assert error_ratio(name, made, sizes, made.source, seed) <= 1.0


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"range\(piece \* steps \* BLOCK_K, \(piece \+ 1\)", "range(0, (piece + 1)"),
        (r"range\(piece \* steps \* BLOCK_K, \(piece \+ 1\)", "range((piece + 1) * steps * BLOCK_K, (piece + 2)"),
        (r"gl.cast\(piece, gl.int64\)", "gl.cast(0, gl.int64)"),
        (r"work % tiles, work // tiles", "work % tiles, work // tiles % 2"),
        (r"gl.cdiv\(gl.cdiv\(K, BLOCK_K\), SPLIT_K\)", "gl.cdiv(K, BLOCK_K) // SPLIT_K"),
        (r"\(WHOLE_M \| \(rows\[:, None\] < M\)\)", "(rows[:, None] < M - 1)"),
    ],
)
def test_spoilt_pieces_are_found_out(pattern: str, instead: str) -> None:
    found_out(replace(TURNS, split_k=4), PROCESSORS, pattern, instead)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"max\(begin - tile \* along, 0\)", "0"),
        (r"min\(end - tile \* along, along\)", "along"),
        (r"step, steps = max\(tile \* along - begin, 0\)", "step, steps = 0"),
        (r"begin // along \+ WHICH", "begin // along"),
        (r"piece = gl.program_id\(0\) - tile \* along // length", "piece = 0"),
        (r"for tile in range\(begin // along,", "for tile in range(gl.cdiv(begin, along),"),
        (r"// length - tile \* along // length \+ 1", "// length - tile * along // length"),
    ],
)
def test_a_spoilt_stream_is_found_out(pattern: str, instead: str) -> None:
    found_out(replace(TURNS, split_k=4, cut="stream"), 5, pattern, instead)


def found_out(schedule: Schedule, processors: int, pattern: str, instead: str) -> None:
    """Asserts that a text with a mistake in it faults or gives wrong numbers."""
    made, inputs, exact = residual({"T": 200, "D": 104, "K": 400}, schedule, processors)
    source = re.sub(pattern, instead, made.source)
    assert source != made.source
    try:
        assert not torch.allclose(launched(made, inputs, 0, source).double(), exact, rtol=1e-2, atol=1e-2)
    except HopperFault:
        pass


def residual(
    sizes: Mapping[str, int], schedule: Schedule, processors: int = PROCESSORS
) -> tuple[Generated, dict[str, torch.Tensor], torch.Tensor]:
    """linear_residual as lowered, its inputs and what it means."""
    spec = task("linear_residual")
    program, sig = read(worked_candidate(spec.name), signature(spec)), signature(spec)
    made = lower(program, sig, sizes, form="hopper", schedules={"a": schedule}, processors=processors)
    inputs = {i.name: randn(*(d.size(sizes) for d in i.type.dims)).bfloat16() for i in sig.inputs}
    (exact,) = evaluate(program, sig, {name: value.double() for name, value in inputs.items()}).values()
    return made, inputs, exact


def launched(made: Generated, inputs: Mapping[str, torch.Tensor], seed: int, source: str = "") -> torch.Tensor:
    """Its output, from poisoned buffers."""
    buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
    module = hopper_simulator.load(source or made.source, seed=seed)
    module.launch(**{name: {**inputs, **buffers}[name] for name in made.arguments})
    return next(buffers[b.name] for b in made.buffers if b.outputs)


@pytest.mark.parametrize("name", ["erf", "sigmoid", "tanh"])
def test_functions_of_its_own_are_good_to_a_few_units_in_the_last_place(name: str) -> None:
    source = HEAD + library(f"{name}_g(x)", "_g")
    x = torch.cat([torch.linspace(-9, 9, 8000), torch.logspace(-30, 0, 192)])
    given = hopper_simulator._tensor(x.numpy(), tl.float32)
    found = torch.from_numpy(getattr(hopper_simulator.load(source), f"{name}_g")(given).handle.data).double()
    torch.testing.assert_close(found, getattr(torch, name)(x.double()), rtol=1e-6, atol=0.0)


@pytest.mark.slow
def test_a_statistic_summed_elsewhere_is_not_held_to_a_cancellation_of_the_reference() -> None:
    """One draw of rows that are nearly one element each, in which the reference's own roundings cancel there."""
    name, sizes = "llama_unit_backward", {"T": 264, "D": 520, "A": 520, "F": 264, "Q": 272}
    spec, typed = task(name), signature(task(name))
    inputs = make_inputs(spec, typed, Case("device", sizes, 805474701, "adversarial_rows", "auto"), "cpu")
    made = lower(read(worked_candidate(name), typed), typed, sizes, hopper=True, processors=PROCESSORS)
    outputs = run(made, inputs, made.source, seed=1)
    for spikes in (True, False):
        held = bounds(spec, inputs, torch.bfloat16, 805474701, spikes)
        assert judge_outputs(held, outputs).passed == spikes


@pytest.mark.parametrize("seed", range(8))
def test_every_drawing_gives_the_same_bits(seed: int) -> None:
    made, sizes, _ = lowered("residual_rmsnorm_swiglu", TURNS)
    first, other = (error_ratio("residual_rmsnorm_swiglu", made, sizes, made.source, s) for s in (0, 0))
    assert first == other


@pytest.mark.parametrize("seed", range(3))
def test_an_output_without_a_second_slot_borrows_what_a_tile_has_left(seed: int) -> None:
    made, sizes, _ = lowered("residual_rmsnorm", FULL)
    assert "out_slot = 0 if INDEX < 2 else slot - 2" in made.source
    assert error_ratio("residual_rmsnorm", made, sizes, made.source, seed) <= 1.0


def spoilt() -> Iterator[tuple[str, str, str]]:
    """What a mistake in the emitter would leave: a pattern of the text, and what stands there instead."""
    yield (
        "a product still reads the stage that is given back",
        r"empty.index\(\(step \+ k - 1\)",
        "empty.index((step + k)",
    )
    yield (
        "no stage is ever given back",
        r"mbarrier.arrive\(empty.index\(\(step \+ k - 1\) % STAGES\), count=1\)",
        "pass",
    )
    yield "the loader does not wait for a free stage", r"mbarrier.wait\(empty.*", "pass"
    yield "the products do not wait for their operands", r"mbarrier.wait\(full.*", "pass"
    yield "the wrong phase", r"\(step // STAGES\) & 1\) \^ 1", "(step // STAGES) & 1)"
    yield "too many bytes are expected", r"BLOCK_K \* 2\)", "BLOCK_K * 4)"
    yield "too few bytes are expected", r"\(BLOCK_M \+ BLOCK_N\) \* BLOCK_K", "BLOCK_M * BLOCK_K"
    yield "stores are not fenced", r"fence_async_shared\(\)", "pass"
    yield (
        "slots are given back while threads may still read them",
        r"fence_async_shared\(\)\n +(mbarrier.arrive\(freed)",
        r"\1",
    )
    yield "the epilogue does not wait for its tiles", r"mbarrier.wait\(loaded.*", "pass"
    yield "the loader does not wait for a free slot", r"mbarrier.wait\(freed.*", "pass"
    yield "slots are given back while stores still read them", r"tma.store_wait\(0\)\n( +)for", r"pass\n\1for"
    yield "the kernel ends before its stores have read", r"tma.store_wait\(0\)\n\n", "pass\n\n"
    yield "the accumulator is used before its last product", r"acc = warpgroup_mma_wait\(0, deps=\(acc,\)\)", "pass"
    yield "both groups take the same tiles", r"gl.program_id\(0\) \+ WHICH \* gl.num_programs\(0\)", "gl.program_id(0)"
    yield "one group never hands the turn on", r"mbarrier.arrive\(turn.*", "pass"
    yield "the wrong slot is read", r"ring.index\(slot\).load", "ring.index(slot - 1).load"
    yield "a slot is written to while a store reads it", r"store_wait\((\d) if", r"store_wait(\1 + 1 if"
    yield "a slot is borrowed that a store still reads", r"else slot - 2", "else slot - 1"
    yield "barriers are not initialised", r"mbarrier.init\(full.*", "pass"
    yield (
        "a slot before the first",
        r"empty.index\(\(step \+ steps - 1\) % STAGES\)",
        "empty.index((step + steps) % STAGES - 1)",
    )
    yield "what is accumulated is stored over what was there", "tma_add", "tma_store"
    yield "all blocks take all tiles", r"2 \* gl.num_programs\(0\)", "2"
    yield "tiles are loaded from the wrong rows", r"tma_load\((\w+), \[row, col", r"tma_load(\1, [col, row"


@pytest.mark.parametrize(("what", "pattern", "instead"), [pytest.param(*s, id=s[0]) for s in spoilt()])
def test_a_spoilt_kernel_is_found_out(what: str, pattern: str, instead: str) -> None:
    """By a fault or by wrong numbers, in one of a few drawings."""
    tried = ("linear_residual", TURNS), ("residual_rmsnorm", SHARED), ("residual_rmsnorm", FULL)
    for name, schedule in (*tried, ("swiglu_backward", FULL), ("linear_backward", SHARED)):
        made, sizes, _ = lowered(name, schedule)
        source = re.sub(pattern, instead, made.source)
        if source != made.source:
            break
    assert source != made.source, f"nothing in the text is {pattern}"

    def found(seed: int) -> bool:
        try:
            return not error_ratio(name, made, sizes, source, seed) <= 1.0
        except HopperFault:
            return True
        except (AttributeError, TypeError):  # a product under way is no value
            return "accumulator" in what

    assert any(found(seed) for seed in range(12))


LATE = (r"if WAITS_FIRST:\n +gdc_wait\(\)((?s:.*?))if WAITS_LAST:", r"\1if WAITS_FIRST or WAITS_LAST:")


@pytest.mark.parametrize(
    ("name", "what", "instead", "said"),
    [
        ("rmsnorm_qkv_rope", *LATE, "before it has waited, it reads what normalised works on"),
        ("rmsnorm_qkv_rope", "if WAITS_LAST:", "if False:", "a block waits 0 times"),
        ("rmsnorm_qkv_rope", "    if RELEASES", "    gdc_wait()\n    if RELEASES", "a block waits 2 times"),
        ("qknorm_rope", r"num_stages=(\d),\n", r"num_stages=\1, launch_pdl=True,\n", "is a first launch"),
    ],
)
def test_launches_that_overlap_wrongly_are_found_out(name: str, what: str, instead: str, said: str) -> None:
    made, sizes, _ = lowered(name, SHARED)
    source = re.sub(what, instead, made.source)
    assert source != made.source
    with pytest.raises(HopperFault, match=said):
        error_ratio(name, made, sizes, source, 0)


def test_what_an_ordinary_launch_leaves_must_be_waited_for() -> None:
    """And what that one waited for need not be."""
    made, sizes, _ = lowered("swiglu_backward", SHARED)
    assert [launch.overlap.waits for launch in made.launches] == ["never", "never", "end"]
    assert error_ratio("swiglu_backward", made, sizes, made.source, 0) <= 1.0
    made, sizes, _ = lowered("rmsnorm_linear", SHARED)
    with pytest.raises(HopperFault, match="reads what normalised works on"):
        error_ratio("rmsnorm_linear", made, sizes, re.sub(*LATE, made.source), 0)

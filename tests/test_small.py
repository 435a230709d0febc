"""Products of few tiles: K cut in pieces, two launches of one call, and what is chosen where nobody chose."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from coda_synth.agent.planner_pieces import pieces
from coda_synth.coda_api.cost import LAUNCH_S, program_cost
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.generated import Generated, Resources
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule, ScheduleError
from coda_synth.coda_api.toolchain import build
from coda_synth.evaluator.evaluation import Check, Evaluation, Modelled, Verdict
from coda_synth.evaluator.measured import Measured, Sample
from coda_synth.evaluator.parts import bare
from coda_synth.evaluator.places import call_of, raised_in
from coda_synth.evaluator.profile import measured_lines, modelled_lines
from coda_synth.evaluator.signature import signature
from coda_synth.runs.export_kernels import every_form
from coda_synth.tasks.catalog import task, worked_candidate

from tests.representative import REPRESENTATIVE

GOLDEN = Path(__file__).parent / "golden"
H200 = device("H200")
NAME = "linear_residual"
SPLIT = Schedule(block_m=16, block_n=128, stages=4, warps=4, split_k=4)
HOPPER = Schedule(block_m=64, block_n=128, stages=6, warps=4, split_k=4, mainloop="hopper")
TURNS = Schedule(block_m=128, block_n=128, stages=6, split_k=4, mainloop="pingpong")


def with_rows(name: str, rows: int, **more: object) -> Generated:
    """A worked candidate at the headline shape with so few rows."""
    spec, sig = task(name), signature(task(name))
    sizes = {**next(iter(spec.time_shapes.values())), "T": rows}
    return lower(read(worked_candidate(name), sig), sig, sizes, **{"hopper": True, **more})  # type: ignore[arg-type]


# -- the text


@pytest.mark.parametrize("which", ["linear_rope.small", "linear_residual.pieces"])
def test_golden_text_of_pieces(which: str) -> None:
    name = which.partition(".")[0]
    text = with_rows(name, 16, **({"schedules": {"a": TURNS}} if name == NAME else {})).source
    file = GOLDEN / f"{which}.py"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), "the generated text changed; UPDATE_GOLDEN=1 refreshes the golden file"
    assert "atomic" not in text


def test_the_workspace_is_a_buffer_and_the_epilogue_a_launch_of_its_own() -> None:
    made = with_rows(NAME, 16, schedules={"a": SPLIT})
    assert [b.shape for b in made.buffers if not b.outputs] == [(4, 16, 4096)]
    first, second = made.launches
    assert (first.call, second.call) == ("a", "a") and first.kernel == f"{second.kernel}_pieces"
    assert (first.multiplies, second.multiplies) == (True, False)
    assert (first.tiles, second.tiles, first.programs, second.programs) == (128, 32, 128, 32)
    names = [{a.name for a in launch.args} for launch in made.launches]
    assert {"y", "w", "K"} <= names[0] and not {"y", "w", "K", "BLOCK_K"} & names[1]


@pytest.mark.parametrize("schedule", [HOPPER, TURNS, replace(HOPPER, block_n=256, stages=5), Schedule(split_k=2)])
@pytest.mark.parametrize("rows", [16, 256])
def test_pieces_of_a_hopper_mainloop_build_without_spills(rows: int, schedule: Schedule) -> None:
    made = with_rows(NAME, rows, schedules={"a": schedule})
    assert [launch.gluon for launch in made.launches] == [True, False] and not made.notes
    assert made.effective["a"].mainloop == schedule.mainloop.replace("auto", "hopper")
    for launch, found in zip(made.launches, build(made, "sm_90"), strict=True):
        assert found.spill_bytes == 0 and found.shared_bytes <= H200.shared_bytes, found
        assert not launch.multiplies or found.tensor_core_instructions > 0, found


def test_pieces_of_a_tile_too_small_for_hopper_are_portable() -> None:
    made = with_rows(NAME, 16, schedules={"a": SPLIT})
    assert not any(launch.gluon for launch in made.launches) and made.effective["a"].mainloop == "portable"
    assert made.notes[0].rule == "PortableKernel" and "16 rows or more" in made.notes[0].message
    with pytest.raises(LoweringError, match='mainloop="hopper" is not possible'):
        with_rows(NAME, 16, schedules={"a": replace(SPLIT, mainloop="hopper")})


def test_partials_are_counted_as_without_pieces() -> None:
    whole, split = (
        with_rows("residual_rmsnorm_swiglu", 16, schedules={c: replace(SPLIT, split_k=n) for c in "ab"}) for n in (1, 8)
    )
    shapes = {b.name: b.shape for b in split.buffers}
    assert {b.name: shapes[b.name] for b in whole.buffers} == {b.name: b.shape for b in whole.buffers}
    assert set(shapes) - {b.name for b in whole.buffers} == {"a_pieces", "b_pieces"}


def test_a_kernel_that_cannot_have_pieces_says_so() -> None:
    with pytest.raises(ScheduleError, match="split_k = 3 is not possible; it must be one of 1, 2, 4"):
        Schedule(split_k=3)
    text = 'x: Tensor["M", "N"]'
    program = f'@kernel\ndef f({text}):\n    return {{"y": 2 * x}}\n'
    program += f'@program\ndef p({text}):\n    a = f(x)\n    return {{"y": a.y}}\n'
    from tests.language import signature_of

    read_back = read(program)
    with pytest.raises(LoweringError, match="split_k = 2 is for a kernel with a gemm"):
        lower(read_back, signature_of(read_back), {"M": 8, "N": 8}, schedules={"a": Schedule(split_k=2)})


# -- what is chosen


@pytest.mark.parametrize(
    "rows", [pytest.param(1, marks=pytest.mark.slow), 16, pytest.param(64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_few_rows_get_short_tiles_that_build_without_spills(name: str, rows: int) -> None:
    made = with_rows(name, rows)
    assert all(s.block_m == max(16, rows) for s in made.schedules.values())
    for launch, found in zip(made.launches, build(made, "sm_90"), strict=True):
        assert found.spill_bytes == 0 and found.shared_bytes <= H200.shared_bytes, found
        assert not launch.multiplies or found.tensor_core_instructions > 0, found


def priced(schedule: Schedule, rows: int, cols: int, inner: int) -> float:
    sig = signature(task(NAME))
    sizes = {"T": rows, "D": cols, "K": inner}
    return program_cost(read(worked_candidate(NAME), sig), sig, sizes, {"a": schedule}, H200).seconds


@pytest.mark.parametrize("inner", [1024, 4096, 14336])
@pytest.mark.parametrize("cols", [1024, 4096, 14336])
@pytest.mark.parametrize("rows", [1, 16, 64, 256])
def test_the_rule_and_the_cost_model_agree(rows: int, cols: int, inner: int) -> None:
    """The default is within a quarter of the best of everything that the model can price here."""
    sig = signature(task(NAME))
    made = lower(read(worked_candidate(NAME), sig), sig, {"T": rows, "D": cols, "K": inner}, hopper=True)
    chosen = priced(made.schedules["a"], rows, cols, inner)
    tried = [
        Schedule(block_m=m, block_n=n, stages=4 if m * n > 64 * 128 else 8, warps=4, split_k=k, mainloop="portable")
        for m, n, k in product((16, 32, 64, 128), (32, 64, 128, 256), (1, 2, 4, 8, 16, 32))
    ]
    assert chosen <= 1.25 * min(priced(s, rows, cols, inner) for s in [Schedule(), *tried])


def test_a_weight_is_read_at_full_parallelism() -> None:
    """Nearly every processor has work, if K is long enough to be cut for it."""
    for name, rows in product(REPRESENTATIVE, (1, 16, 64)):
        made = with_rows(name, rows)
        for launch in made.launches:
            if launch.multiplies:
                assert launch.programs >= 0.7 * 132 or made.schedules[launch.call].split_k >= 4, launch


def test_pieces_cost_a_workspace_and_a_launch() -> None:
    sig = signature(task(NAME))
    sizes = {"T": 16, "D": 1024, "K": 16384}
    whole, split = (
        program_cost(read(worked_candidate(NAME), sig), sig, sizes, {"a": replace(SPLIT, split_k=n)}, H200)
        for n in (1, 8)
    )
    assert split.bytes - whole.bytes == 2 * 4 * 8 * 16 * 1024
    assert split.seconds < whole.seconds / 2
    short = [priced(replace(SPLIT, split_k=n), 16, 1024, 256) for n in (1, 4)]
    assert short[1] > short[0] + LAUNCH_S
    assert "8 tiles in 8 pieces of K each on 132 SMs" in modelled_lines(split.launches, H200, "bfloat16")[0]


def test_a_tuner_cuts_a_product_of_few_tiles_and_no_other() -> None:
    def moves(rows: int, inner: int) -> list[tuple[str, int]]:
        sizes = {"T": rows, "D": 1024, "K": inner}
        modelled = (Modelled("only", sizes, "H200", 1, 1, 1.0, 1.0, 1.0),)
        checks = (Check("meaning", sizes, "normal", 1, "reference", 0.1),)
        found = Evaluation("id", NAME, Verdict.PASSED, "check", 1, checks=checks, modelled=modelled)
        text = worked_candidate(NAME)
        return [(k, int(h["split_k"])) for k, h, _ in pieces(text, found, {"project": Schedule(block_m=64)})]

    assert moves(64, 16384) == [("project", n) for n in (4, 2, 8, 16)]
    assert moves(64, 2048) == [("project", 2)]
    assert moves(8192, 16384) == []


# -- two launches of one call


def test_a_line_of_either_launch_is_the_calls() -> None:
    made = with_rows("linear_rope", 16)
    assert call_of(made, "rotary_pieces") == call_of(made, "rotary") == call_of(made, "rotary_epilogue") == "q"
    assert call_of(made, "linear_pieces") == "v" and call_of(made, "sum_of_pieces") is None
    try:
        exec(compile("def rotary_pieces():\n    1 / 0\nrotary_pieces()", "made", "exec"), {})
    except ZeroDivisionError as error:
        assert raised_in(made, "made", error) == "q"


def test_a_profile_tells_both_launches() -> None:
    made, sig = with_rows(NAME, 16, schedules={"a": SPLIT}), signature(task(NAME))
    sizes = {**next(iter(task(NAME).time_shapes.values())), "T": 16}
    costs = program_cost(read(worked_candidate(NAME), sig), sig, sizes, made.schedules, H200).launches
    sample = Sample(0.02, 0.02, 0.02, 9)
    found = Measured({"candidate": sample}, {}, {"a": (0.012, 0.004)}, 0.0, ({},), ({},), between_ms=0.003)
    taken = [Resources("a", launch.kernel, n, 0, 1024, 0, 1.0) for n, launch in enumerate(made.launches, 50)]
    words = "\n".join(measured_lines(found, costs, taken, H200, "bfloat16", made.schedules))
    assert "a takes 0.016 ms, 80% of the program, its launches 0.012 and 0.004 ms" in words
    assert "project_pieces: 50 registers" in words and "project: 51 registers" in words
    assert "between its 2 launches the program spends 0.003 ms of 0.02 ms" in words


def test_a_gemm_without_its_epilogue_is_cut_alike() -> None:
    sig = signature(task(NAME))
    program = read(worked_candidate(NAME), sig)
    made, needs = bare(program, sig, program.calls[0])
    text = lower(made, needs, {"M": 16, "N": 4096, "K": 4096}, schedules={"product": SPLIT})
    assert [launch.multiplies for launch in text.launches] == [True, False]


def test_an_export_allocates_the_workspace_for_any_size() -> None:
    sig = signature(task(NAME))
    made = every_form(read(worked_candidate(NAME), sig), sig, {"T": 16, "D": 4096, "K": 4096}, {"a": SPLIT})
    assert [str(axis) for axis in made.shapes["a_pieces"]] == ["4", "T", "D"] and made.hopper is None

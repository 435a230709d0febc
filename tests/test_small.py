"""Products of few tiles: K cut in pieces, two launches of one call, and what is chosen where nobody chose."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from coda_synth.coda_api.schedule import Schedule, ScheduleError, as_hints
from coda_synth.coda_api.stream import piece_count, pieces_in_a_run, run_length
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


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        ("linear_rope.small", {}),
        ("linear_residual.pieces", {"a": TURNS}),
        ("linear_residual.stream", {"a": replace(TURNS, cut="stream")}),
    ],
)
def test_golden_text_of_pieces(which: str, chosen: Mapping[str, Schedule]) -> None:
    text = with_rows(which.partition(".")[0], 16, schedules=chosen).source
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
@pytest.mark.parametrize(("rows", "cut"), [(16, "even"), (256, "even"), (256, "stream")])
def test_pieces_of_a_hopper_mainloop_build_without_spills(rows: int, cut: str, schedule: Schedule) -> None:
    made = with_rows(NAME, rows, schedules={"a": replace(schedule, cut=cut)})
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


def test_runs_of_a_stream_cover_every_step_once_in_no_more_pieces_than_asked() -> None:
    """The rule of stream.py, over every small product."""
    for tiles, steps, runs, most in product(range(1, 8), range(1, 12), range(1, 15), (2, 3, 4, 8)):
        length = run_length(tiles, steps, runs, most)
        found: dict[int, list[tuple[int, int, int]]] = {tile: [] for tile in range(tiles)}
        of_runs = []
        for run in range(runs):
            begin, end = run * length, min(run * length + length, tiles * steps)
            mine = range(begin // steps, -(-end // steps))
            of_runs.append(len(mine))
            for tile in mine:
                first, last = max(begin - tile * steps, 0), min(end - tile * steps, steps)
                found[tile].append((run - tile * steps // length, first, last))
        for tile, pieces_of in found.items():
            count = (tile * steps + steps - 1) // length - tile * steps // length + 1
            assert [number for number, _, _ in pieces_of] == list(range(count)) and count <= most
            assert [first for _, first, _ in pieces_of] == [0, *(last for _, _, last in pieces_of[:-1])]
            assert pieces_of[-1][2] == steps and all(first < last for _, first, last in pieces_of)
        assert piece_count(tiles, steps, length) == sum(map(len, found.values()))
        assert pieces_in_a_run(tiles, steps, length) == max(of_runs)


def test_a_stream_is_launched_once_a_run_whatever_the_tiles() -> None:
    made = with_rows(NAME, 256, schedules={"a": replace(TURNS, cut="stream")})
    first, second = made.launches
    assert (first.programs, first.tiles, second.tiles) == (132, 132, 64) and first.gluon
    assert {"RUNS": 132, "SPLIT_K": 4}.items() <= {a.name: a.value for a in first.args}.items()
    assert [b.shape for b in made.buffers if not b.outputs] == [(4, 256, 4096)]
    assert "project_pieces, (132,)," in made.source
    assert "cut=" not in as_hints(Schedule()) and 'split_k=4, cut="stream"' in as_hints(made.schedules["a"])


def test_a_stream_has_no_padded_groups() -> None:
    spec = task("qknorm_rope")
    sig, sizes = signature(spec), {**next(iter(spec.time_shapes.values())), "T": 64, "H": 96}
    chosen = {"q": Schedule(block_m=64, block_n=128, split_k=4, cut="stream")}
    with pytest.raises(LoweringError, match='cut="stream" knows no tiles that hold whole groups of 96 columns'):
        lower(read(worked_candidate(spec.name), sig), sig, sizes, form="pointer", schedules=chosen)


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


@pytest.mark.parametrize(
    ("sizes", "tile", "pieces"),
    [
        ((16, 4096, 4096), (16, 64), 2),  # tiles of 32 columns would give each processor one
        ((64, 4096, 14336), (64, 64), 2),
        ((16, 4096, 2048), (16, 32), 1),  # a short K
        ((16, 6144, 4096), (16, 64), 1),  # as many tiles without
        ((16, 1024, 4096), (16, 32), 4),
        ((16, 1024, 14336), (16, 64), 8),  # half as many steps as (16, 32) in 4 pieces
        ((256, 1024, 14336), (64, 64), 2),
        ((256, 4096, 14336), (64, 128), 1),
    ],
)
def test_a_long_k_is_cut_where_tiles_would_be_narrow(
    sizes: tuple[int, int, int], tile: tuple[int, int], pieces: int
) -> None:
    """Measured on an H200: docs/small.md."""
    sig = signature(task(NAME))
    rows, cols, inner = sizes
    made = lower(read(worked_candidate(NAME), sig), sig, {"T": rows, "D": cols, "K": inner}, hopper=True)
    chosen = made.schedules["a"]
    assert ((chosen.block_m, chosen.block_n), chosen.split_k) == (tile, pieces)


LONG = {"T": 256, "D": 5120, "K": 13824}


@pytest.mark.parametrize("change", [{}, {"T": 64}, {"K": 4096}, {"T": 8192}])
def test_few_rows_a_short_k_and_many_tiles_stay_in_one_launch(change: dict[str, int]) -> None:
    sig = signature(task(NAME))
    made = lower(read(worked_candidate(NAME), sig), sig, LONG | change, hopper=True)
    assert [launch.multiplies for launch in made.launches] == [True]


def test_an_authors_hints_are_not_cut() -> None:
    sig = signature(task(NAME))
    text = worked_candidate(NAME).replace("@kernel\n", "@kernel(stages=3)\n")
    assert lower(read(text, sig), sig, LONG, hopper=True).schedules["a"].split_k == 1


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


def test_a_stream_is_priced_by_its_runs() -> None:
    """24 tiles of 64 steps: 128 runs of 12 make 144 pieces, beside 192 even ones in two rounds of 8 steps."""
    sig, sizes = signature(task(NAME)), {"T": 16, "D": 3072, "K": 4096}
    program = read(worked_candidate(NAME), sig)
    even, stream = (
        program_cost(program, sig, sizes, {"a": replace(SPLIT, split_k=8, cut=cut)}, H200) for cut in ("even", "stream")
    )
    assert even.launches[0].tiles == 192 and stream.launches[0].tiles == 144 and stream.launches[0].streamed == 24
    assert even.bytes - stream.bytes == 2 * 4 * 48 * 16 * 128
    assert stream.launches[0].wave_efficiency == pytest.approx(24 * 64 / (12 * 132))
    assert "24 tiles in 144 pieces, equal runs" in modelled_lines(stream.launches, H200, "bfloat16")[0]


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

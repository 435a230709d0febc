"""The benchmarks' arithmetic against figures made by hand, and every benchmark once, small, on a CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import xml.etree.ElementTree
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.words import WORDS
from coda_synth.evaluator.race import Lap, WallClock
from coda_synth.tasks.catalog import task, task_names

from benchmarks import contest as contests
from benchmarks import epilogue, gap, h200, mainloops, rounds, table, targets
from benchmarks.contest import Contest, checked
from benchmarks.layer import Shape, in_halves, in_pairs
from benchmarks.peers import PEERS, peers
from benchmarks.sanitize import differing, finalist, reports, small_sizes

ROOT = Path(__file__).resolve().parent.parent


def test_a_share_of_the_gap_has_the_intervals_of_both_ratios() -> None:
    """Ours takes 3/4 of compiled's time, from 8/11 to 8/10; the bound 1/2, from 1/2 to 6/11: so the share is 1/2, from
    (2/10) / (1/2) to (3/11) / (5/11)."""
    found = gap.share([10.0, 11.0, 12.0], [8.0, 8.0, 9.0], [5.0, 6.0, 6.0])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.4, 0.6))


def test_a_share_can_be_negative_and_above_one() -> None:
    slower, beyond = gap.share([10.0] * 3, [12.0] * 3, [6.0] * 3), gap.share([10.0] * 3, [5.0] * 3, [6.0] * 3)
    assert slower is not None and slower.value == pytest.approx(-0.5) and slower.negative
    assert beyond is not None and beyond.value == pytest.approx(1.25) and not beyond.negative


def test_where_the_gap_is_small_there_is_no_share() -> None:
    assert gap.share([10.2] * 3, [10.1] * 3, [10.0] * 3) is None
    assert gap.share([10.4] * 3, [10.1] * 3, [10.0] * 3) is not None
    assert gap.share([10.4, 10.4, 9.9], [10.1] * 3, [10.0] * 3) is None, "the interval holds a gap of none"


def test_the_bound_is_the_larger_of_gemms_and_bytes() -> None:
    assert gap.bound([2.0, 4.0], 3.0) == [3.0, 4.0]


def test_an_interval_leaves_out_the_ends_of_many_rounds() -> None:
    """Of 20 rounds the 95 % interval of the median runs from the 6th to the 15th."""
    found = gap.figure([float(n) for n in range(1, 21)])
    assert (found.low, found.value, found.high) == (6.0, 10.5, 15.0)


def test_geometric_mean() -> None:
    assert gap.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError):
        gap.geometric_mean([])


def test_a_mean_of_operators_adds_errors_in_squares() -> None:
    found = gap.mean([gap.Figure(0.5, 0.2, 0.6), gap.Figure(0.9, 0.5, 1.0)])
    assert found.value == pytest.approx(0.7)
    assert found.low == pytest.approx(0.7 - 0.25), "half of the root of 0.09 + 0.16"
    assert found.high == pytest.approx(0.7 + math.sqrt(0.02) / 2)


def test_ratios_are_paired_by_round() -> None:
    """A clock that slows in the second round slows both."""
    found = gap.ratio([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def _row(name: str, direction: str, share: dict[str, float] | None, faster: float) -> dict[str, object]:
    times = {"bare_gemm": 0.9, "eager": 2.0, "compile": 1.1, "max_autotune": faster}
    sure = {"shape": "llama3-8b", "error": 2e-3, "eager_error": 4e-3, "ms": 1.5, "bound": 0.9}
    return {"task": name, "direction": direction, "share": share, **sure, **times}


ROWS = [
    _row("a", "forward", {"value": 0.5, "low": 0.4, "high": 0.6}, 1.21),
    _row("b", "forward", {"value": 0.9, "low": 0.8, "high": 1.0}, 1.0),
    _row("c", "forward", None, 1.01),
    _row("d", "backward", {"value": -0.2, "low": -0.3, "high": -0.1}, 0.98),
]


def test_what_is_said_of_all_operators() -> None:
    said = h200.summaries(ROWS)
    assert "geometric mean over eager: 2.000 of 4" in said
    (closed,) = (s for s in said if "forward" in s and "of the gap" in s)
    assert closed.startswith("forward: 0.70 [0.63, 0.77]") and "the mean of 2 operators of 3" in closed
    assert "1.100x over max-autotune" in closed, "over the operators that the share counts"
    assert "forward: negative beyond its interval: none" in said
    assert "backward: negative beyond its interval: d" in said


def test_the_table_joins_errors_and_times() -> None:
    again = {**ROWS[0], "ms": 1.25}
    judged = {"a": {"verdict": "PASSED", "llama3-8b": 0.31}, "b": {"verdict": "INCORRECT", "llama3-8b": 1.2}}
    lines = table.table([*ROWS, again], judged)
    assert len(lines) == 2 + 4, "a later row of a task and shape stands for the earlier"
    assert lines[2] == (
        "| a | llama3-8b | yes | 0.31 | 0.50 | 1.250 | 0.900 | 2.000 | 1.100 | 1.210 | 0.50 [0.40, 0.60] |"
    )
    lasting = table.table([ROWS[0], {**again, "lasting": True}], judged)[2:]
    assert [row.split(" | ")[1] for row in lasting] == ["llama3-8b", "llama3-8b, lasting"]
    assert "| NO | 1.20 |" in lines[3] and "| not judged | - |" in lines[4]


@pytest.mark.slow
@pytest.mark.parametrize("name", [word.name for word in WORDS if word.cost])
def test_a_word_costs_what_its_author_is_told(name: str) -> None:
    said, found = next(w.cost for w in WORDS if w.name == name), epilogue.word_cost(name)
    assert said is not None
    assert all(abs(a - b) <= max(1.0, 0.1 * b) for a, b in zip(said, found, strict=True)), (said, found)


def test_rounds_have_a_row_a_cell_and_a_curve() -> None:
    timed = {"step": 1, "verdict": "PASSED", "ms": 2.0, "over_bound": 1.5, "bare_gemm": 0.9, "compile": 1.1}
    wrong = {"step": 2, "verdict": "RUNTIME_ERROR"}
    found = {"a": [timed, {**timed, "step": 2, "ms": 1.8, "over_bound": 1.35}], "b": [timed, wrong, timed]}
    lines = rounds.table(found)
    assert lines[2:] == [
        "| a | 2.000 (0.900, 1.50) | 1.800 (0.900, 1.35) |  | 1.100 |",
        "| b | 2.000 (0.900, 1.50) | runtime error | 2.000 (0.900, 1.50) | 1.100 |",
    ]
    drawn = xml.etree.ElementTree.fromstring(rounds.picture(found))
    curves = [e for e in drawn.iter() if e.tag.endswith("path") and e.get("stroke") in rounds._COLOURS]
    assert len(curves) == 1, "a round without a time is a gap"
    assert sum(e.tag.endswith("circle") for e in drawn.iter()) == 4


def test_a_wrong_peer_is_not_timed() -> None:
    expected = {"y": torch.ones(4, 8, dtype=torch.float64), "s": torch.ones(4, dtype=torch.float64)}
    assert checked({"y": torch.full((4, 8), 1.01)}, expected, 4e-3) == ["s"]
    with pytest.raises(ValueError, match="outputs are wrong"):
        checked({"y": torch.full((4, 8), 1.1)}, expected, 4e-3)
    with pytest.raises(ValueError, match="outputs are wrong"):
        checked({"y": torch.full((4, 8), math.nan)}, expected, 4e-3)


def test_peers_are_of_tasks_that_exist() -> None:
    assert all(name in task_names() for own in PEERS.values() for name in own)
    assert not peers("linear_swiglu", {"liger": "no liger-kernel: ImportError", "quack": "no quack-kernels"})
    assert set(peers("linear_swiglu", {"liger": "0.8.5", "quack": "0.6.5"})) == {"liger", "quack"}
    assert not peers(task("linear_nn").name, {"liger": "0.8.5"})


def test_pairs_and_halves_of_a_head() -> None:
    row = torch.arange(8.0)[None]
    assert in_pairs(row, -1).tolist() == [[0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]]
    assert torch.equal(in_halves(in_pairs(row, -1), -1), row)
    assert Shape(2, 8, 32, 48, 4, 2, 16).sizes == {"T": 16, "D": 32, "A": 64, "F": 48, "Q": 128}


_ALL = """
import contextlib, io, json, runpy, sys, traceback
told = []
for line in json.loads(sys.argv[1]):
    sys.argv, said, complained = line, io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            runpy.run_path(line[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    except Exception:
        code = traceback.format_exc()
    told.append([code, said.getvalue(), complained.getvalue()])
print(json.dumps(told))
"""


def _run(lines: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Exit code (or traceback), output and complaints of each: in one process, since torch takes its time to load."""
    given = json.dumps([[str(ROOT / "benchmarks" / name), *rest] for name, *rest in lines])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _ALL, given]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, list[str]]:
    """The exit code and output of every benchmark, small, by file."""
    timed, judged, cpu = str(folder / "h.json"), str(folder / "s.json"), ("--device", "cpu", "--tiny")
    lines = [
        ["h200.py", "linear_bias_gelu", *cpu, "--json", timed],
        ["unit.py", *cpu, "--json", str(folder / "u.json")],
        ["sanitize.py", "linear_bias", *cpu, "--repeats", "3"],
        ["targets.py", "linear_residual", "llama_unit_forward", *cpu, "--json", str(folder / "t.json")],
        ["host.py"],
        ["overlap.py"],
        ["shapes.py", "linear_bias_gelu", "--device", "cpu", "--json", judged],
        ["table.py", timed, "--judged", judged],
        ["few_rows.py", *cpu, "--json", str(folder / "f.json")],
        ["mainloops.py", "linear_residual", *cpu, "--json", str(folder / "m.json")],
    ]
    return {name: found[:2] for (name, *_), found in zip(lines, _run(lines), strict=True)}


RUNNABLE = [path.name for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]
MEANT_OTHERWISE = [
    *([name, "no_such_task"] for name in RUNNABLE if "type=task_name" in (ROOT / "benchmarks" / name).read_text()),
    ["sanitize.py", "no_such_task"],
    ["targets.py", "no_such_row"],
    ["unit.py", "no_such_layer"],
    ["epilogue.py", "linear_nt", "--words"],
    ["few_rows.py", "--products", "4096"],
    ["h200.py", "--seconds", "abc"],
    ["h200.py", "--shape", "no_such_shape"],
    ["h200.py", "--json", "no_such_folder/rows.json"],
    ["judge.py", "0"],
    ["mainloops.py", "linear_residual.no_such_call"],
    ["mainloops.py", "linear_residual."],
    ["mainloops.py", "--seconds", "-1"],
    ["unit.py", "--seconds", "nan"],
    ["model.py", "no_such_file"],
    ["model.py", "pyproject.toml"],
    ["rounds.py", "no_such_folder"],
    ["sanitize.py", "linear_bias=no_such_file"],
    ["sanitize.py", "--once", "--device=cpu"],
    ["soak.py", "many"],
    ["soak.py", "1", "no_such_device"],
    ["table.py", "no_such_file"],
    ["table.py", "benchmarks/results/shapes-h200-2026-11-30.json"],
]


@pytest.fixture(scope="module")
def asked() -> dict[tuple[str, ...], list[Any]]:
    """What every benchmark says where it is asked for help, and where it cannot do as it is told."""
    lines = [*([name, option] for name in RUNNABLE for option in ("--help", "--no-such-option")), *MEANT_OTHERWISE]
    return dict(zip(map(tuple, lines), _run(lines), strict=True))


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_benchmark_has_help_and_refuses_what_it_does_not_know(
    asked: dict[tuple[str, ...], list[Any]], name: str
) -> None:
    code, said, complained = asked[name, "--help"]
    assert (code, complained) == (0, "") and said.startswith(f"usage: {name}")
    code, said, complained = asked[name, "--no-such-option"]
    assert (code, said) == (2, "") and complained.startswith(f"usage: {name}")


@pytest.mark.parametrize("line", MEANT_OTHERWISE, ids=" ".join)
def test_a_benchmark_refuses_bad_arguments_in_a_line(asked: dict[tuple[str, ...], list[Any]], line: list[str]) -> None:
    code, said, complained = asked[tuple(line)]
    assert (code, said) == (2, "")
    assert complained.startswith(f"usage: {line[0]}") and complained.splitlines()[-1].startswith(f"{line[0]}: error: ")


def test_operators_and_the_table_small(told: dict[str, list[str]], folder: Path) -> None:
    code, said = told["h200.py"]
    assert code == 0 and "geometric mean over eager" in said
    assert "nothing here is a measurement" in said and "peers: liger" in said
    row = json.loads((folder / "h.json").read_text())["rows"][0]
    assert row["error"] < 4e-3 and row["rounds"].keys() == {"ours", "bare_gemm", "eager"}
    assert "| linear_bias_gelu | tiny | yes | - |" in told["table.py"][1], "no shape of that name was judged"


def test_kernels_against_targets_small(told: dict[str, list[str]], folder: Path) -> None:
    """Whole candidates, and one kernel of a candidate with all of its outputs and with one."""
    code, said = told["targets.py"]
    assert code == 0 and "row scale, SwiGLU, z not stored" in said and "residual" in said
    rows = json.loads((folder / "t.json").read_text())["rows"]
    assert [row["bare"][1] for row in rows] == [4096, 2048, 28672, 11264, 28672, 11264]
    assert all(row["ms"] > 0 and row["bytes_allow"] <= 1 and row["rounds"]["bare"] for row in rows)


def test_a_part_of_a_program_computes_what_the_whole_does() -> None:
    row = next(row for row in targets.ROWS if row.outputs == ("dx", "dgamma"))
    spec, sizes = task(row.task), task(row.task).check_shapes[1]
    program, needs, local = targets.part(row, sizes)
    inputs = spec.make_inputs(sizes, torch.Generator().manual_seed(1), "normal")
    found = evaluate(program, needs, inputs)
    assert local == sizes and set(found) == {"dx", "dgamma"}
    torch.testing.assert_close(found["dx"], spec.reference(**inputs)["dx"].double(), rtol=1e-3, atol=1e-3)
    row = next(row for row in targets.ROWS if row.outputs == ("act",))
    program, needs, local = targets.part(row, task(row.task).check_shapes[1])
    given = {i.name: torch.randn([d.size(local) for d in i.type.dims]) for i in needs.inputs}
    (found_act,) = evaluate(program, needs, given).values()
    (call,) = program.calls
    gemm = call.unit.gemm  # type: ignore[union-attr]
    r = next(v for n, v in given.items() if n not in (gemm.a, gemm.b))
    z = (given[gemm.a].double() @ given[gemm.b].double().T) * r.double()[:, None]
    torch.testing.assert_close(found_act, torch.nn.functional.silu(z[:, ::2]) * z[:, 1::2])


def test_a_layer_small(told: dict[str, list[str]], folder: Path) -> None:
    """Its gradients are checked against eager's on the way: a unit that errs ends it."""
    code, said = told["unit.py"]
    assert code == 0 and "ours differs from eager by" in said
    row = json.loads((folder / "u.json").read_text())["rows"][0]
    assert (
        row["differs"] < 2e-2
        and {"ours whole", "eager forward", "bound forward", "bound whole"} <= row["rounds"].keys()
    )


def test_a_lap_that_lasts_holds_many_runs_and_what_is_said_is_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contests, "LASTING_MS", 12.0)
    calls: list[str] = []

    def run() -> None:
        calls.append("run")
        time.sleep(0.002)

    found = contests.lasting({"a": Lap(run, lambda: calls.append("restored"))}, 0.01, WallClock())
    assert all(2 <= ms < 12 for ms in found["a"]) and calls.count("run") > 2 * 8 * len(found["a"])
    assert calls.count("run") > 2 * calls.count("restored") > 0, "inputs are put back before a lap, not in it"


def test_mainloops_small(told: dict[str, list[str]], folder: Path) -> None:
    code, said = told["mainloops.py"]
    (row,) = json.loads((folder / "m.json").read_text())["rows"]
    assert code == 0 and "linear_residual.a" in said and {"bare, long", "default, short"} <= row["rounds"].keys()


def test_mainloops_names_the_default_beside_the_schedule_that_it_equals() -> None:
    """A K of 8,192 and more shares a tile; one that is in turns has them all, and its own beside."""
    ((_, program, needs),) = mainloops.products("linear_residual", "")
    long, short = (mainloops.texts(program, needs, {"M": 8192, "N": 4096, "K": k}, False) for k in (14336, 2048))
    assert [n for n in long if "default" in n] == ["default: shared, 16 rows a group"]
    assert [n for n in short if "default" in n] == ["default: in turns"]
    assert len(long) == len(short) == len(mainloops.SCHEDULES)


def test_repeats_small(told: dict[str, list[str]]) -> None:
    code, said = told["sanitize.py"]
    assert (
        code == 0 and "linear_bias: the same bits" in said and "3 repeats" in said and "only bits are compared" in said
    )


def test_without_a_gpu_no_real_shape_is_reached(told: dict[str, list[str]], folder: Path) -> None:
    code, said = told["shapes.py"]
    (row,) = json.loads((folder / "s.json").read_text())["rows"]
    assert code == 0 and "1 of 1 passed" in said and row["verdict"] == "PASSED"
    assert row["llama3-8b"] is None and row["odd"] is None and row["checks"] > 10


def test_what_a_tool_finds_is_its_finalists() -> None:
    said = """========= COMPUTE-SANITIZER
finalist linear
finalist residual_rmsnorm
========= Invalid __global__ write of size 2 bytes
=========     at residual+0x10
finalist linear_rope
========= ERROR SUMMARY: 1 error
"""
    found = reports(said)
    assert found["linear"] == [] == found["linear_rope"] and "qknorm_rope" not in found
    assert [line.split()[1] for line in found["residual_rmsnorm"]] == ["Invalid", "at"]


@pytest.mark.gpu
def test_a_graph_of_a_call_gives_the_same_bits() -> None:
    """Launches that overlap, accumulate in place and make partials."""
    names = ["residual_rmsnorm", "linear_backward", "llama_unit_forward"]
    command = [sys.executable, str(ROOT / "benchmarks" / "sanitize.py"), *names, "--repeats", "20", "--tools", ""]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("the same bits") == 3, done.stdout + done.stderr


def test_few_rows_small(told: dict[str, list[str]], folder: Path) -> None:
    """One of every kind, the same bits twice, and near enough to fp64."""
    code, said = told["few_rows.py"]
    assert code == 0 and "nothing here is a measurement" in said and "WRONG" not in said
    (row,) = json.loads((folder / "f.json").read_text())["rows"]
    kinds = ["default", "one launch", "hopper pieces", "portable pieces", "stream"]
    assert sorted(row["schedules"]) == sorted(kinds) and row["rounds"].keys() == {*kinds, "torch.mm"}
    assert 'cut="stream"' in row["schedules"]["stream"] and row["modelled_us"]["stream"] > 0


def test_what_needs_a_gpu_says_so(told: dict[str, list[str]]) -> None:
    assert "only be measured with a GPU" in told["host.py"][0]
    assert "overlap on Hopper alone" in told["overlap.py"][0]


class _Told:
    """A clock that believes what a run says it took."""

    name = "none"

    def laps(self, laps: Sequence[Lap]) -> list[float]:
        return [cast(float, lap.run()) for lap in laps]


def test_a_row_is_made_of_what_was_timed() -> None:
    told = {"ours": 2.0, "bare_gemm": 1.0, "eager": 8.0, "max_autotune": 5.0}
    runs = {name: partial(float, ms) for name, ms in told.items()}
    sizes, lost = {"T": 40}, {"liger": ["s"]}
    bound = finalist("linear_bias", "cpu")
    contest = Contest(task("linear_bias"), sizes, bound, runs, lost, ("quack is left out",), 2e-3, 4e-3, 1.5, _Told())
    row = h200.row_of(contest, Namespace(tiny=True, seconds=0.0, lasting=False))
    assert (row["ms"], row["eager"], row["bare_gemm"], row["max_autotune"]) == (2.0, 4.0, 0.5, 2.5)
    assert row["bound"] == 0.75, "the bytes take longer than the GEMM"
    assert row["share"]["value"] == pytest.approx(3.0 / 3.5)
    assert row["direction"] == "forward" and row["shape"] == "tiny"
    assert row["without"] == lost and row["left_out"] == ["quack is left out"] and len(row["rounds"]["eager"]) == 3


class _Restless:
    """A program whose third run gives another value."""

    runs = 0

    def launch(self, a_y: torch.Tensor) -> None:
        self.runs += 1
        a_y.fill_(1.0 if self.runs != 3 else 1.0078125)


def test_a_repeat_with_other_bits_is_found() -> None:
    made = finalist("linear_bias", "cpu")
    restless = replace(made, module=_Restless(), generated=replace(made.generated, arguments=("a_y",)))
    assert differing(restless, 5) == (3, ["y"])
    assert small_sizes(task("linear_rope")) == {"T": 384, "D": 512, "HQ": 4, "HK": 2, "H": 64}


def test_an_epilogue_lies_between_a_tiles_last_wgmma_and_the_jump_to_the_next_tile() -> None:
    listing = """
.L_x_1:
        /*0000*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], RZ, !UPT ;
.L_x_2:
        /*0010*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0020*/              @P0  BRA `(.L_x_2) ;
        /*0030*/                   IMAD.U32 R4, R5, 0x10000, RZ ;
        /*0040*/             @!P1  FADD R3, R4, R24 ;
.L_x_3:
        /*0050*/                   STSM.16.M88.4 [R4], R16 ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""
    found = epilogue.epilogue(listing)
    assert found == ["BRA", "IMAD.U32", "FADD", "STSM.16.M88.4", "BRA"]
    assert epilogue.classes(found) == {"wait": 2, "unpack": 1, "float": 1, "shared": 1}


def test_what_a_residual_adds_to_an_epilogue() -> None:
    """An addition and an unpacking for each element, and half a rounding: two elements are rounded at once."""
    ((_, elements, count),) = epilogue.rows("linear_residual")
    assert (count["float"], count["round"], count["spill"]) == (elements, elements / 2, 0)
    assert elements <= count["unpack"] <= 1.1 * elements

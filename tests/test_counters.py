"""Hardware counters in a profile: what ncu writes, in words, and the way there with a stub in ncu's place and an
interpreter in the GPU's."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.agent import config
from coda_synth.evaluator import on_device
from coda_synth.evaluator.checking import Checker
from coda_synth.evaluator.child import Child
from coda_synth.evaluator.counters import counted, counter_lines
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.judge import Judge
from coda_synth.evaluator.ncu import command
from coda_synth.evaluator.on_device import OnDevice
from coda_synth.evaluator.processes import family
from coda_synth.evaluator.trial import Trial
from coda_synth.tasks.catalog import worked_candidate

ROOT = Path(__file__).resolve().parent.parent
NAME = "linear_residual"
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
TINY = {"T": 32, "K": 32, "D": 32}

# ---- what it writes --------------------------------------------------------------------------------------------------

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
HEAD += '"Block Size","Grid Size","Device","CC"'
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
PLACE = '"{}","7","python3.11","127.0.0.1","{}","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0"'


def csv_of(metrics: dict[str, tuple[str, ...]], *kernels: str) -> str:
    """A value of each metric for every kernel."""
    rows = [HEAD + "".join(f',"{name}"' for name in metrics)]
    rows.append(",".join(['""'] * 11) + "".join(f',"{"%" if "pct" in name else "inst"}"' for name in metrics))
    for number, kernel in enumerate(kernels):
        rows.append(PLACE.format(number, kernel) + "".join(f',"{values[number]}"' for values in metrics.values()))
    return "\n".join(rows) + "\n"


REAL = csv_of(
    {
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("31.25", "88.02"),
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": ("1,048,576", "0"),
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": ("48,576", "0"),
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("10,971,520", "4,000"),
        "l1tex__throughput.avg.pct_of_peak_sustained_active": ("52.49", "20"),
        "launch__occupancy_limit_registers": ("1", "4"),
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("44.10", "41"),
        "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": ("0.51", "0"),
        "sm__maximum_warps_per_active_cycle_pct": ("18.75", "75"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("16.20", "0"),
        "sm__pipe_tensor_type_hmma_hgmma_cycles_active.avg.pct_of_peak_sustained_elapsed": ("64.86", "n/a"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("64.86", "12.5"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("18.20", "61.4"),
        STALLED.format("barrier"): ("1.50", "0.1"),
        STALLED.format("gmma"): ("2.75", "0"),
        STALLED.format("long_scoreboard"): ("4.75", "18"),
        STALLED.format("not_selected"): ("0", "0.9"),
        STALLED.format("selected"): ("1.00", "1"),
    },
    "up_proj",
    "norm",
)
FIRST = (
    "u, by hardware counters: of their peaks SM 65%, tensor pipe 65%, DRAM 31%, L2 44%, L1 and shared memory 52%;"
    " 18% of the possible warps are active (19% fit); warps wait for data from memory"
    " (long scoreboard, 48% of their time) and for the tensor cores (gmma, 28%);"
    " 10% of its turns at shared memory are bank conflicts"
)
SECOND = (
    "n, by hardware counters: of their peaks SM 12%, tensor pipe 0%, DRAM 88%, L2 41%, L1 and shared memory 20%;"
    " 61% of the possible warps are active (75% fit); warps wait for data from memory"
    " (long scoreboard, 90% of their time); 0% of its turns at shared memory are bank conflicts"
)
AROUND = (
    "==PROF== Connected to process 7 (/usr/bin/python3.11)\n"
    '==PROF== Profiling "up_proj": 0%....50%....100% - 38 passes\n'
    "\n{}\n==PROF== Disconnected from process 7\n"
)


@pytest.mark.parametrize("text", [REAL, AROUND.format(REAL), REAL.replace("\n", "\r\n")], ids=["bare", "words", "dos"])
def test_every_launch_is_a_line_of_words(text: str) -> None:
    assert counter_lines(counted(text), [("u", "up_proj"), ("n", "norm")]) == [FIRST, SECOND]


def test_launches_of_one_call_are_told_apart_and_foreign_ones_by_their_kernels() -> None:
    pieces = counter_lines(counted(REAL), [("u", "up_proj"), ("u", "norm")])
    assert [line.partition(",")[0] for line in pieces] == ["u (up_proj)", "u (norm)"]
    foreign = counter_lines(counted(REAL), [("u", "up_proj")])
    assert [line.partition(",")[0] for line in foreign] == ["the kernel up_proj", "the kernel norm"]


def test_what_a_chip_does_not_have_is_left_out() -> None:
    one = csv_of({"sm__throughput.avg.pct_of_peak_sustained_elapsed": ("7.1",)}, "k(float *, int)")
    assert counter_lines(counted(one), [("a", "k")]) == ["a, by hardware counters: of their peaks SM 7%"]
    only = {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("12,345",), STALLED.format("new_one"): ("3",)}
    said = "a, by hardware counters: warps wait for new one (100% of their time); 12,345 bank conflicts"
    assert counter_lines(counted(csv_of(only, "k")), [("a", "k")]) == [said]
    unknown = csv_of({"sm__something_new.avg": ("4",), "smsp__other.sum": ("nan",)}, "k")
    assert counter_lines(counted(unknown), [("a", "k")]) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\1\2,\n" * 9,
        HEAD,
        REAL[: len(HEAD) * 2],
        '"ID","Kernel Name"\n"0"\n"x","k"\n',
        "==ERROR== no\n",
        'a"' * 99999,
    ],
    ids=["empty", "bytes", "head", "cut", "short", "error", "long"],
)
def test_what_is_no_table_says_nothing(text: str) -> None:
    assert counter_lines(counted(text), [("a", "k")]) == []


def test_names_are_matched_as_they_are() -> None:
    given = command("/opt/ncu", ["up_proj", "a.b", "up_proj"], Path("/tmp/x.csv"))
    pattern = given[given.index("--kernel-name") + 1]
    assert pattern == r"regex:^(up_proj|a\.b)$"
    matches = re.compile(pattern.removeprefix("regex:")).search
    assert all(map(matches, ("up_proj", "a.b")))
    assert not any(map(matches, ("up_proj_2", "xup_proj", "upXproj", "aXb", "a.b ", "at::native::up_proj")))


def test_the_setting_is_one_of_the_judge(tmp_path: Path) -> None:
    assert not config.Config().counters and "counters" in config.OF_THE_JUDGE
    assert config.load(tmp_path, {"CODA_SYNTH_COUNTERS": "true"}, {}).counters
    (tmp_path / "coda-synth.toml").write_text("counters = true\n")
    assert config.load(tmp_path, {}, {}).counters and not config.load(tmp_path, {}, {"counters": False}).counters


# ---- the way there ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(device="cpu", counters=True) as made:
        made.gpu = Child("coda_synth.evaluator.worker", environment=INTERPRETED)
        yield made


@pytest.fixture
def stub(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program named ncu in PATH; afterwards nothing of it runs, and its files are gone."""
    program, own = tmp_path / "bin" / "ncu", tmp_path / "tmp"
    program.parent.mkdir()
    own.mkdir()
    program.write_text(f"#!{sys.executable}\n{(ROOT / 'tests' / 'ncu_stub.py').read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NCU_LAUNCHES", "elementwise_kernel project project_2 xproject")
    monkeypatch.delenv("NCU", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    judge.gpu.ready()
    before = set(family(os.getpid()))
    yield program
    assert [path for path in own.iterdir() if path.suffix != ".lock"] == []
    deadline = time.monotonic() + 5
    while (left := set(family(os.getpid())) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def trial_of(judge: Judge) -> tuple[Trial, Checker, Case]:
    known = judge._describe(NAME, "bfloat16")
    facts = replace(known, time_shapes={"tiny": TINY}, check_shapes=known.check_shapes[-1:], styles=("normal",))
    trial = Trial(Candidate(NAME, worked_candidate(NAME)), facts, 5, lambda _: None)
    trial.environment = {"device": "an interpreter", "sms": "2", "gpu": "interpreter"}
    case = Case("device", TINY, 405, "normal", "auto", processors=2)
    return trial, Checker(trial, judge.references, 60.0), case


def lines(judge: Judge) -> list[str]:
    _, checker, case = trial_of(judge)
    return on_device._counters(judge, checker, case)


SAID = "a, by hardware counters: of their peaks SM 64%, DRAM 31%, L2 44%; warps wait for data from memory"
SAID += " (long scoreboard, 70% of their time) and at barriers for other warps of the block (barrier, 20%);"
SAID += " 5% of its turns at shared memory are bank conflicts"


def test_a_measured_candidate_has_the_counters_of_its_own_kernels(judge: Judge, stub: Path) -> None:
    """Among launches of torch, and of kernels whose names begin or end alike."""
    trial, _, _ = trial_of(judge)
    judge._read(trial)
    judge._plan(trial)
    judge.limits = replace(judge.limits, race_s=0.02)
    with OnDevice(trial, judge, None, ()) as visit:
        visit._small = []
        visit.begin()
        visit.finish(measure=True)
    assert len(trial.timings) == 1 and trial.profile[-1] == f"tiny: {SAID}"
    assert trial.environment["counters"] == "on" and judge._stages()["device counters"] > 0


def test_without_being_asked_nobody_looks(judge: Judge, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _, _ = trial_of(judge)
    judge._read(trial)
    judge._plan(trial)
    monkeypatch.setattr(judge, "counters", False)
    stub.unlink()
    with OnDevice(trial, judge, None, ()) as visit:
        visit._small = []
        visit.begin()
        visit.finish(measure=True)
    assert len(trial.timings) == 1 and "counters" not in trial.environment
    assert not any("counters" in line for line in trial.profile)


def test_ncu_may_lie_elsewhere(judge: Judge, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = stub.rename(stub.with_name("ncu-of-another-release"))
    monkeypatch.setattr(shutil, "which", functools.partial(shutil.which, path=str(stub.parent)))
    (missing,) = lines(judge)
    assert missing.startswith("no hardware counters: there is no ncu in PATH; install Nsight Compute")
    monkeypatch.setenv("NCU", str(stub))
    (wrong,) = lines(judge)
    assert wrong.startswith(f"no hardware counters: NCU names '{stub}', which is no program")
    monkeypatch.setenv("NCU", str(elsewhere))
    assert lines(judge) == [SAID]


FATES = {
    "denied": "this user may not read them (ERR_NVGPUCTRPERM); ask for it as root, or",
    "driver": "ncu failed: Failed to initialize the profiler: LibraryNotLoaded; try it by hand, or",
    "slow": "ncu was ended after 3 s, its limit; ask without them where",
    "stuck": "ncu was ended after 2 s, its limit; ask without them where",
    "": "ncu failed: No kernels were profiled; try it by hand",
}


SLOW = [pytest.param(fate, marks=pytest.mark.slow) for fate in ("slow", "stuck")]


@pytest.mark.parametrize(
    "fate", [fate for fate in FATES if fate not in ("slow", "stuck")] + SLOW, ids=lambda fate: fate or "other kernels"
)
def test_what_goes_wrong_is_one_line(judge: Judge, stub: Path, fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCU_FATE", fate)
    monkeypatch.setenv("NCU_LAUNCHES", "elementwise_kernel")
    limit = {"slow": 3.0, "stuck": 2.0}.get(fate, 60.0)
    monkeypatch.setattr(judge, "limits", replace(judge.limits, counters_s=limit))
    (said,) = lines(judge)
    assert said.startswith(f"no hardware counters: {FATES[fate]}")


def test_a_program_that_is_no_profiler_is_told(judge: Judge, stub: Path) -> None:
    stub.write_text("#!/bin/sh\necho it is something else >&2\nexit 3\n")
    (said,) = lines(judge)
    assert said.startswith("no hardware counters: ncu failed: ") and "exited with code 3" in said
    stub.write_bytes(b"\x7fELF")
    (said,) = lines(judge)
    assert said.startswith("no hardware counters: ncu failed: cannot start coda_synth.evaluator.worker")


def test_a_launch_leaves_what_it_accumulates_into_as_one_run_does(judge: Judge) -> None:
    """The candidate child resets its own buffers, however often it is asked."""
    _, checker, case = trial_of(judge)
    asked = checker.run(case)
    for _ in range(2):
        assert judge.gpu.request("launch", 60.0, asked).data == {}
    assert judge.gpu.request("execute", 60.0, asked).data["faults"] == []


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_the_counters_of_a_product_say_how_busy_it_is(tmp_path: Path) -> None:
    file = tmp_path / "candidate.coda"
    file.write_text(worked_candidate(NAME))
    asked = ["evaluate", str(file), "--task", NAME, "--device", "cuda", "--counters", "--json"]
    command = [sys.executable, "-m", "coda_synth", *asked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=560)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["environment"]["counters"] == "on" and said["timings"]
    lines = [line for line in said["profile"] if "hardware counters" in line]
    if "no hardware counters" in lines[0] and ("no ncu" in lines[0] or "ERR_NVGPUCTRPERM" in lines[0]):
        pytest.skip(lines[0])
    shares = [int(share) for share in re.findall(r"(?:SM|tensor pipe) (\d+)%", lines[0])]
    assert shares and 1 <= max(shares) <= 100, lines

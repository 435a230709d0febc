"""The record: what was appended is there whole, whatever happens to the process that wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from coda_synth.coda_api.errors import Diagnostic, Edit
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.evaluation import Baseline, Candidate, Check, Evaluation, Timing, Verdict
from coda_synth.runs.record import Attempt, Run, Usage
from coda_synth.runs.store import Store, StoreError, UnknownRun, default_root, new_run_id

RUN = Run(
    "20261129-171501-linear_swiglu-3f2a",
    "linear_swiglu",
    "scripted",
    "",
    {"attempts": "6"},
    "2026-11-29T17:15:01+00:00",
    "0.1.0",
)
TUNED = Candidate("linear_swiglu", 'x = "\u2264"\n', "model/a", "0123456789", {"b": Schedule(block_m=64, warps=4)})
PASSED = Evaluation(
    candidate=TUNED.id,
    task="linear_swiglu",
    verdict=Verdict.PASSED,
    stage="measure",
    seed=7,
    checks=(Check("meaning", {"T": 3, "D": 5}, "normal", 7, "reference", 0.25),),
    resources=(Resources("b", "up_proj", 183, 0, 147456, 4, 1.5),),
    timings=(
        Timing(
            "llama3-8b", {"T": 8192}, "H200", 1.25, 1.24, 1.26, 100, 1.0, 0.2, (Baseline("bare_gemm", 1.2, 1.19, 1.21),)
        ),
    ),
    environment={"torch": "2.13.0"},
    seconds={"read": 0.01},
)
REJECTED = Evaluation(
    "x",
    "linear_swiglu",
    Verdict.REJECTED,
    "read",
    1,
    (Diagnostic("Loop", "no loops", 2, 1, "error", Edit(2, 1, 4, "")),),
)


def attempt(step: int) -> Attempt:
    source = f"program {step}\n"
    return Attempt(
        step, "evaluated", Candidate("linear_swiglu", source), REJECTED, Usage(10, 5, 2, 3, None, 0.5, "req_1")
    )


def test_a_run_comes_back_equal(tmp_path: Path) -> None:
    writer = Store(tmp_path).create(RUN)
    told = (
        Attempt(1, "evaluated", TUNED, PASSED, Usage(10, 5, 2, 3, 0.25, 1.5, "req_1"), "lower T"),
        Attempt(2, "no_program", note="send one", reply="I \ud800 cannot"),
        Attempt(3, "duplicate", TUNED),
    )
    for one in told:
        writer.append(one)
    assert Store(tmp_path).load(RUN.id) == (RUN, told)
    assert writer.attempts == told
    assert (writer.folder / "candidates" / f"{TUNED.id}.coda").read_text() == TUNED.source


def test_each_attempt_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    writer = Store(tmp_path).create(RUN)
    for step in (1, 2, 3):
        writer.append(attempt(step))
        assert len(Store(tmp_path).load(RUN.id)[1]) == step


def test_only_folders_with_a_head_are_runs(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text("")
    (tmp_path / "__pycache__").mkdir()
    assert Store(tmp_path).ids() == ()
    Store(tmp_path).create(RUN)
    assert Store(tmp_path).ids() == (RUN.id,)


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").ids() == ()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_last_line_is_left_out_with_a_note(tmp_path: Path, keep: int) -> None:
    writer = Store(tmp_path).create(RUN)
    writer.append(attempt(1))
    path = writer.folder / "attempts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:keep])
    record = Store(tmp_path).read(RUN.id)
    assert record.attempts == (attempt(1),)
    assert "cut off" in record.note
    assert Store(tmp_path).load(RUN.id)[1] == (attempt(1),)


def test_damage_elsewhere_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    writer = Store(tmp_path).create(RUN)
    for step in (1, 2):
        writer.append(attempt(step))
    path = writer.folder / "attempts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{broken\n" + lines[1])
    with pytest.raises(StoreError, match=r"attempts.jsonl, line 1 is not JSON"):
        Store(tmp_path).load(RUN.id)
    path.write_bytes(lines[0] + b'{"step": 2}\n')
    with pytest.raises(StoreError, match="line 2 is no attempt: .*lacks outcome"):
        Store(tmp_path).load(RUN.id)


def test_a_run_never_writes_over_another(tmp_path: Path) -> None:
    Store(tmp_path).create(RUN).append(attempt(1))
    with pytest.raises(StoreError, match="exists already"):
        Store(tmp_path).create(RUN)
    assert len(Store(tmp_path).load(RUN.id)[1]) == 1


@pytest.mark.parametrize("below", ["", "below"])
def test_a_link_to_nothing_is_no_run_that_exists(tmp_path: Path, below: str) -> None:
    link = tmp_path / "runs"
    link.symlink_to("gone")
    with pytest.raises(StoreError, match=r"runs is a link to gone, and nothing is there: make that folder, remove the"):
        Store(link / below).create(RUN)
    (tmp_path / "gone").mkdir()
    Store(link / below).create(RUN).append(attempt(1))
    assert len(Store(tmp_path / "gone" / below).load(RUN.id)[1]) == 1


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"cannot write .*; choose another folder with --runs or CODA_SYNTH_RUNS"
    ) as caught:
        Store(tmp_path / "file" / "runs").create(RUN)
    assert "\n" not in str(caught.value)


def test_a_folder_that_vanishes_is_an_error_and_not_an_attempt(tmp_path: Path) -> None:
    writer = Store(tmp_path).create(RUN)
    (writer.folder / "candidates").rmdir()
    with pytest.raises(StoreError, match="cannot write"):
        writer.append(attempt(1))
    assert writer.attempts == ()


@pytest.mark.parametrize("bad", ["../up", "", "a/b", ".hidden"])
def test_an_id_that_is_no_folder_name_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(StoreError, match="cannot name"):
        Store(tmp_path).create(Run(bad, "t", "p", "", {}, "now", "0"))
    with pytest.raises(UnknownRun):
        Store(tmp_path).load(bad)


def test_settings_are_text(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="'attempts' must be text"):
        Store(tmp_path).create(Run(RUN.id, "t", "p", "", {"attempts": 6}, "now", "0"))  # type: ignore[dict-item]


def test_a_run_is_found_by_part_of_its_id(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UnknownRun, match="no runs"):
        store.resolve()
    ids = ["20261129-171501-linear_swiglu-3f2a", "20261129-171502-linear_rope-0001"]
    for run_id in ids:
        store.create(Run(run_id, "t", "p", "", {}, "now", "0"))
    assert store.resolve(ids[0]) == ids[0]
    assert store.resolve("rope") == store.resolve("latest") == store.resolve() == ids[1]
    with pytest.raises(UnknownRun, match="names 2 runs"):
        store.resolve("2026")
    with pytest.raises(UnknownRun, match="nearest are 20261129-171501-linear_swiglu-3f2a"):
        store.resolve("20261129-171501-linear_swiglu-ffff")


def test_ids_tell_the_utc_time_and_differ() -> None:
    moment = datetime(2026, 11, 29, 18, 15, 1, tzinfo=timezone(timedelta(hours=1)))
    ids = {new_run_id("linear_swiglu", moment) for _ in range(20)}
    assert all(i.startswith("20261129-171501-linear_swiglu-") for i in ids)
    assert len(ids) > 15


def test_where_runs_lie() -> None:
    assert default_root(None, {}) == Path("runs")
    assert default_root(None, {"CODA_SYNTH_RUNS": "/elsewhere"}) == Path("/elsewhere")
    assert default_root("here", {"CODA_SYNTH_RUNS": "/elsewhere"}) == Path("here")


@pytest.mark.parametrize("call", ["replace", "write", "fsync"])
def test_ctrl_c_in_mid_append_is_raised_when_the_attempt_is_written(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives right after the candidate's file, the line, or its way to the disk."""
    writer = Store(tmp_path).create(RUN)
    original = getattr(os, call)
    left = [1]

    def interrupted(*args: Any) -> Any:
        done = original(*args)
        if left and left.pop():
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(attempt(1))
    monkeypatch.undo()
    writer.append(attempt(2))
    assert Store(tmp_path).load(RUN.id)[1] == writer.attempts == (attempt(1), attempt(2))


WRITE_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.runs.record import Attempt, Run
from coda_synth.runs.store import Store
writer = Store(Path(sys.argv[1])).create(Run("killed", "t", "p", "", {}, "now", "0"))
for step in itertools.count(1):
    writer.append(Attempt(step, "duplicate", Candidate("t", f"{step}\\n" * 5000)))
    print(step, flush=True)
"""


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_killed_run_loads_whole(tmp_path: Path, after: int) -> None:
    """SIGKILL in mid-run: every attempt that append returned for is there, and nothing half-written is believed."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        said = max([said, *map(int, process.stdout.read().split())])
    record = Store(tmp_path).read("killed")
    assert said <= len(record.attempts) <= said + 1
    assert [a.step for a in record.attempts] == list(range(1, len(record.attempts) + 1))
    for one in record.attempts:
        assert one.candidate is not None
        path = tmp_path / "killed" / "candidates" / f"{one.candidate.id}.coda"
        assert path.read_text() == one.candidate.source == f"{one.step}\n" * 5000

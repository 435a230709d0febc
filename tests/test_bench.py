"""`coda-synth bench`: cells go on side by side, come to the same in whatever order they end, and lose nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coda_synth.agent import config, models
from coda_synth.agent.cli import main
from coda_synth.agent.lessons import Lesson, save
from coda_synth.runs.record import Attempt, Run
from coda_synth.runs.store import Store

from tests.fake_llm_server import KEY, FakeService
from tests.test_cli import BAD, ROOT, wait_for
from tests.test_live import left_clean, on_a_terminal
from tests.test_turns import running

TASK = "linear_residual"
GOOD = (ROOT / "tasks" / f"{TASK}.coda").read_text(encoding="utf-8")
TWO = ("linear_residual", "linear_rope")
FOUR = (*TWO, "linear_swiglu", "linear_gelu")
PLAIN = ("--device", "cpu", "--seed", "3", "--tokens", "900000")


def replied(program: str) -> str:
    return f"```\n{program}\n```\n"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of this file alone; in CI no progress is shown, and here it is what is looked at."""
    for name in [n for n in os.environ if n.startswith("CODA_SYNTH_")] + ["CI"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CODA_SYNTH_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)


def asked(service: FakeService, *authors: str, tasks: tuple[str, ...] = TWO, jobs: int = 4) -> tuple[str, ...]:
    """The command for a server of one's own."""
    where = ("--base-url", f"{service.url}/v1", "--jobs", str(jobs))
    return ("bench", "--tasks", *tasks, "--authors", *(f"openai-compatible/{a}" for a in authors), *where, *PLAIN)


def runs(root: str = "runs") -> dict[str, tuple[Run, tuple[Attempt, ...]]]:
    """Every run of a record by its cell."""
    found = [Store(Path(root)).load(name) for name in Store(Path(root)).ids()]
    assert len({run.settings["cell"] for run, _ in found}) == len(found)  # no cell was begun twice
    return {run.settings["cell"]: (run, attempts) for run, attempts in found}


def stops(root: str = "runs") -> dict[str, str]:
    ends = {cell: Path(root) / run.id / "end.json" for cell, (run, _) in runs(root).items()}
    return {cell: json.loads(end.read_text())["stop"] if end.exists() else "" for cell, end in ends.items()}


def lines_on_disk() -> list[bytes]:
    return [line for path in sorted(Path().glob("runs/*/attempts.jsonl")) for line in path.read_bytes().splitlines()]


# -- what comes out


def content(cells: Mapping[str, tuple[Run, tuple[Attempt, ...]]]) -> dict[str, list[Any]]:
    """All of a record that neither a clock nor a run's name stands in."""
    return {
        cell: [
            (a.step, a.outcome, a.candidate, a.note, e and (e.verdict, e.seed, checks, e.diagnostics, e.modelled))
            for a in attempts
            for e in [a.evaluation]
            for checks in [e and [replace(check, seconds=0) for check in e.checks]]
        ]
        for cell, (_, attempts) in cells.items()
    }


def go_on_after(service: FakeService, root: str, ended: int) -> None:
    wait_for(lambda: len(list(Path().glob(f"{root}/*/end.json"))) == ended)
    service.go_on.set()


@pytest.mark.parametrize(
    ("second", "more"), [(f"{BAD}\n# again", ()), pytest.param(GOOD, ("planner",), marks=pytest.mark.slow)]
)
def test_the_same_comes_out_in_whatever_order_cells_end(
    second: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first cell is the last to end where they go on side by side: its model answers when the others have ended."""
    Path("replies.md").write_text(replied(BAD) + "=== reply\n" + replied(second))
    authors = ("openai-compatible/pauses", "scripted=replies.md", *more)
    documents, order = [], []
    for jobs, others in ((1, 0), (4, len(authors) - 1)):
        with FakeService(replied(BAD)) as service:
            threading.Thread(target=go_on_after, args=(service, f"runs{jobs}", others), daemon=True).start()
            command = ("--tasks", TASK, "--authors", *authors, "--base-url", f"{service.url}/v1", *PLAIN, "--json")
            assert main(["bench", *command, "--jobs", str(jobs), "--attempts", "2", "--runs", f"runs{jobs}"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        documents.append(json.loads(out))
        cells = {run.id: cell for cell, (run, _) in runs(f"runs{jobs}").items()}
        ended = sorted(Path().glob(f"runs{jobs}/*/end.json"), key=lambda path: path.stat().st_mtime_ns)
        order.append([cells[path.parent.name] for path in ended])
    one, four = documents
    assert order[0] == list(one["runs"]) and order[0][0] == order[1][-1]
    assert one["lines"] == four["lines"] and list(one["runs"]) == list(four["runs"])
    assert one["unfinished"] == four["unfinished"] == {}
    passed = {x["author"]: (x["pass_at_1"]["hits"], x["passed"]["hits"]) for x in four["lines"]}
    assert passed == {authors[0]: (0, 0), authors[1]: (0, second == GOOD), **dict.fromkeys(more, (1, 1))}
    assert content(runs("runs1")) == content(runs("runs4"))


def test_four_slow_authors_take_less_than_their_sum_and_each_has_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    delay, command = 1.0, ["--attempts", "2", "--strategies", "best-of-n"]
    with FakeService(replied(BAD), delay=delay) as service:
        started = time.monotonic()
        assert main([*asked(service, "ok", tasks=FOUR), *command]) == 0
        took = time.monotonic() - started
        out, err = capsys.readouterr()
        assert took < 8 * delay <= sum(a.usage.seconds for _, attempts in runs().values() for a in attempts)
        assert len(service.requests) == 8
        assert main([*asked(service, "ok", tasks=FOUR), *command]) == 0 and len(service.requests) == 8
        assert capsys.readouterr() == (out, "")  # nothing was left to do
        quiet = (*asked(service, "ok", tasks=FOUR), *command, "--name", "again", "--quiet", "--attempts", "1")
        assert main(quiet) == 0 and capsys.readouterr().err == ""
    for task in FOUR:
        cell = f"{task} openai-compatible/ok best-of-n 1"
        mine = [line for line in err.splitlines() if line.startswith(cell)]
        assert [line.removeprefix(cell) for line in mine] == [
            *(", step 1: REJECTED, -", ", step 2: duplicate, -", ": attempts used")
        ]
    assert "Record: 4 runs have ended" in out and "not counted" not in out


@pytest.mark.slow
def test_a_terminal_shows_a_row_for_each_cell(tmp_path: Path) -> None:
    with FakeService(replied(BAD), delay=1.0) as service:
        command = (*asked(service, "ok"), "--attempts", "1")
        ended = on_a_terminal(tmp_path, *command, CODA_SYNTH_API_KEY=KEY, COLUMNS="160")
    assert ended.code == 0 and left_clean(ended)
    assert "2 at work, 0 ended, 0 to come" in ended.plain
    for task in TWO:
        row = f"{task} openai-compatible/ok refine 1 +none has passed yet +0 of 1 attempts, .*the author is writing"
        assert re.search(row, ended.plain)


# -- what breaks


def test_a_broken_cell_leaves_the_others_alone_and_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeService(replied(BAD)) as service:
        command = [*asked(service, "no-credit", "ok", tasks=(TASK,)), "--attempts", "1"]
        assert main(command) == 1
        out, err = capsys.readouterr()
        cell = f"{TASK} openai-compatible/no-credit refine 1"
        assert sum(line.startswith(f"coda-synth: {cell}: ") and "credit" in line for line in err.splitlines()) == 1
        assert f"1 of 2 cells are not counted; the same command goes on with them:\n  {cell}: " in out
        assert list(runs()) == [f"{TASK} openai-compatible/ok refine 1"] and "Record: 1 run has ended" in out
        before = len(service.requests)
        assert main([*command, "--json"]) == 3  # the only one that was worked on
        unfinished = json.loads(capsys.readouterr().out)["unfinished"]
        assert list(unfinished) == [cell] and "credit" in unfinished[cell]
        service.credit = True
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [x["runs"] for x in found["lines"]] == [1, 1] and not found["unfinished"]
        assert {r.body["model"] for r in service.requests[before:]} == {"no-credit"}


def test_ctrl_c_ends_every_cell_in_order_and_the_rest_is_done_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two are in mid-answer, and a third never begins."""
    with FakeService(replied(BAD)) as service:
        command = (*asked(service, "pauses", tasks=FOUR[:3], jobs=2), "--attempts", "1", "--json")
        with running(tmp_path, *command, CODA_SYNTH_API_KEY=KEY) as process:
            wait_for(lambda: len(service.requests) == 2)
            time.sleep(0.3)  # until half an answer has come
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in err and err.count("interrupted") == 1
        first, second, third = (f"{task} openai-compatible/pauses refine 1" for task in FOUR[:3])
        found = json.loads(out)
        assert found["unfinished"] == {first: "interrupted", second: "interrupted", third: "not begun"}
        assert found["lines"] == [] and stops() == {first: "interrupted", second: "interrupted"}
        service.go_on.set()
        assert main(list(command)) == 0 and stops() == dict.fromkeys((first, second, third), "attempts used")
        assert json.loads(capsys.readouterr().out)["lines"][0]["runs"] == 3


def test_after_kill_9_no_finished_attempt_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeService(replied(BAD), delay=0.4) as service:
        command = (*asked(service, "ok"), "--attempts", "3", "--json")
        with running(tmp_path, *command, CODA_SYNTH_API_KEY=KEY) as process:
            wait_for(lambda: len(lines_on_disk()) >= 2)
            os.killpg(process.pid, signal.SIGKILL)
        before = lines_on_disk()
        assert 2 <= len(before) < 6 and set(stops().values()) == {""}
        assert main(list(command)) == 0
        after = lines_on_disk()
        assert len(after) == 6 and [line for line in after if line in before] == before
        assert 6 <= len(service.requests) <= 8  # of each cell the call in hand, at most
        assert stops() == {f"{task} openai-compatible/ok refine 1": "attempts used" for task in TWO}


# -- what it may cost, and what is told


def test_the_dollars_are_each_cells_own_and_all_of_them_are_said_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call costs 11 cents and may cost 10 dollars: a second one does not fit beside the first."""
    Path("prices.toml").write_text("[prices.ok]\ninput = 0.001\noutput = 10000.0\n")
    monkeypatch.setenv("CODA_SYNTH_MODELS", "prices.toml")
    monkeypatch.setenv("CODA_SYNTH_MAX_OUTPUT_TOKENS", "1000")
    models._table.cache_clear()
    try:
        with FakeService(replied(BAD)) as service:
            assert main([*asked(service, "ok"), "--usd", "10.05", "--repeats", "2"]) == 0
            assert main([*asked(service, "ok"), "--usd", "9.95", "--name", "less", "--runs", "less"]) == 0
            assert len(service.requests) == 4  # one of each of the first four cells
    finally:
        models._table.cache_clear()
    said = "4 runs, each with its own budget in dollars: $40.20 at most in all"
    assert capsys.readouterr().err.startswith(f"coda-synth: {said}\n")
    assert list(stops().values()) == ["dollars used"] * 4 and list(stops("less").values()) == ["dollars used"] * 2
    assert {round(a.usage.usd or 0, 2) for _, attempts in runs().values() for a in attempts} == {0.11}


def test_a_cell_is_told_nothing_of_other_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Else what came out would depend on which cell ended first. A person may answer any of them."""
    Path("runs").mkdir()
    save(Path("runs"), [Lesson(TASK, "H200", "llama3-8b", "stages 4 instead of 3", 2.0, 1.0, "run", 2)])
    assert main(["bench", "--tasks", TASK, "--authors", "exchange", "--no-wait", "--repeats", "2"]) == 4
    assert "2 of 2 cells are not counted" in capsys.readouterr().out
    assert main(["synth", TASK, "--provider", "exchange", "--no-wait"]) == 4
    told = [path.read_text() for path in sorted(Path().glob("runs/*/steps/001/prompt.md"))]
    assert sorted("stages 4 instead of 3" in text for text in told) == [False, False, True]


HOLDS_TWO = """
import sys
from contextlib import ExitStack
from pathlib import Path
from coda_synth.runs.store import Store
with ExitStack() as stack:
    for name in ("bench", "ended"):
        stack.enter_context(Store(Path("runs")).claimed(f"the benchmark {name!r}"))
    print(flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_begin_cells_of_one_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """What both begin would be paid for twice. Another benchmark, another record, and what has ended are not held up;
    nor does a folder where there can be no lock hold up anything."""
    command = ["bench", "--tasks", TASK, "--authors", "exchange", "--no-wait"]
    with FakeService(replied(BAD)) as service:
        assert main([*asked(service, "ok", tasks=(TASK,)), "--name", "ended"]) == 0
    capsys.readouterr()
    python, environment = [sys.executable, "-c", HOLDS_TWO], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdin and other.stdout and other.stdout.readline()
        assert main([*command, "--name", "another"]) == 4 and len(runs()) == 2
        assert main([*command, "--name", "bench"]) == 3 and len(runs()) == 2
        assert f"the benchmark 'bench' is being worked on by process {other.pid} " in capsys.readouterr().err
        assert main([*command, "--name", "bench", "--runs", "elsewhere"]) == 4
        with FakeService(replied(BAD)) as service:
            assert main([*asked(service, "ok", tasks=(TASK,)), "--name", "ended"]) == 0 and not service.requests
        other.stdin.close()
    assert main([*command, "--name", "bench"]) == 4
    Path("no-locks").mkdir()
    Path("no-locks/.claims").write_text("a file where the folder should be")
    assert main([*command, "--name", "bench", "--runs", "no-locks"]) == 4


def test_cells_under_other_budgets_are_not_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--tasks", TASK, "--authors", "exchange", "--no-wait", "--attempts", "2"]
    assert main(command) == 4
    assert main([*command[:-1], "4", "--seed", "9"]) == 2 and len(runs()) == 1
    said = capsys.readouterr().err
    assert "was begun with attempts = 2 and not 4, seed = none and not 9; ask for the same again, or give" in said
    assert main([*command[:-1], "4", "--seed", "9", "--name", "more"]) == 4 and main(command) == 4
    assert config.unlike({}, config.Config()) == []  # what an older version did not keep


def test_what_is_named_twice_is_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tasks", TASK, TASK, "--authors", "exchange", "exchange", "--no-wait", "--json"]) == 4
    assert len(json.loads(capsys.readouterr().out)["runs"]) == len(runs()) == 1


@pytest.mark.parametrize("args", [("--jobs", "0"), ("--repeats", "0"), ("--strategies", "best"), ("--authors", "me")])
def test_what_cannot_be_leaves_nothing_behind(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tasks", TASK, *args]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not list(Path().iterdir())

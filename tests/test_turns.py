"""Runs side by side: authors are asked at the same time, one judge is shared in turn, and each run keeps to itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from coda_synth.agent.budget import Budget
from coda_synth.agent.cli import main
from coda_synth.agent.cli_live import View
from coda_synth.agent.cli_overview import Overview
from coda_synth.agent.cli_session import exit_of
from coda_synth.agent.cli_several import jobs_for, say_dollars
from coda_synth.agent.config import Config
from coda_synth.agent.events import StepStarted
from coda_synth.agent.loop import Outcome, Settings, Stop, synthesize
from coda_synth.agent.provider import Reply, Request
from coda_synth.agent.turns import InTurn, Turns
from coda_synth.evaluator.evaluation import Candidate
from coda_synth.runs.record import Run
from coda_synth.runs.store import RunWriter, Store
from rich.console import Console

from tests.fake_llm_server import KEY, FakeService
from tests.test_cli import BAD, environ, wait_for
from tests.test_live import left_clean, on_a_terminal
from tests.test_loop import TASK, ReadingJudge, better, fenced

THREE = ("linear_residual", "linear_rope", "linear_swiglu")
PAUSE = 0.1


def run_of(root: Path, name: str) -> RunWriter:
    return Store(root).create(Run(name, TASK.name, "scripted", "", {}, "2026-11-29T10:00:00+00:00", "0.1.0"))


@dataclass
class Waiting:
    """Answers when all of them are being asked at once."""

    together: threading.Barrier
    name: str = "author"
    model: str = "one"

    def propose(self, request: Request) -> Reply:
        self.together.wait(20)
        return Reply(fenced(better(request.number)))


@dataclass
class Alone:
    """A judge's work, which must be on the main thread and never twice at once."""

    order: list[str] = field(default_factory=list)
    busy: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, candidate: Candidate) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert self.busy.acquire(blocking=False)
        self.order.append(candidate.id)
        time.sleep(PAUSE)
        self.busy.release()


def at_once(root: Path, judge: ReadingJudge, author: Waiting, budget: Budget, count: int = 3) -> list[Outcome]:
    turns = Turns()
    writers = [run_of(root, f"run{i}") for i in range(count)]

    def one(writer: RunWriter) -> Outcome:
        shared = InTurn(judge, turns)
        return synthesize(TASK, author, shared, writer, Settings(budget), ask=turns.aside)

    return turns.work([lambda writer=writer: one(writer) for writer in writers], count)  # type: ignore[misc]


def test_authors_are_asked_at_once_and_the_judge_in_turn(tmp_path: Path) -> None:
    alone = Alone()
    judge = ReadingJudge(during=alone)
    outcomes = at_once(tmp_path, judge, Waiting(threading.Barrier(3)), Budget(attempts=2))
    assert [len(o.attempts) for o in outcomes] == [2, 2, 2] and len(alone.order) == 6
    first, second = ({a.candidate.id for o in outcomes if (a := o.attempts[i]).candidate} for i in (0, 1))
    assert set(alone.order[:3]) == first and set(alone.order[3:]) == second  # nobody was judged twice before another
    # Who waited for the judge until two others had been judged has worked for its own time only.
    assert all(o.attempts[0].seconds < 2 * PAUSE for o in outcomes)


def test_the_first_to_come_is_the_first_to_be_served() -> None:
    turns, served = Turns(), list[int]()
    asked = [threading.Event() for _ in range(4)]

    def one(number: int) -> None:
        if number:
            asked[number - 1].wait(10)
            time.sleep(0.02)  # from saying so to standing in the queue
        asked[number].set()
        turns.in_turn(lambda: (time.sleep(0.1 if not number else 0), served.append(number)))

    turns.work([lambda n=n: one(n) for n in range(4)], 4)  # type: ignore[misc]
    assert served == [0, 1, 2, 3]


def test_no_more_at_once_than_jobs() -> None:
    turns, at_work, most = Turns(), list[int](), list[int]()

    def one(number: int) -> int:
        at_work.append(number)
        most.append(len(at_work))
        turns.aside(lambda: time.sleep(0.02))
        at_work.remove(number)
        return number

    assert turns.work([lambda n=n: one(n) for n in range(6)], 2) == list(range(6))  # type: ignore[misc]
    assert max(most) == 2


def test_what_is_raised_reaches_who_asked_and_nobody_else() -> None:
    turns = Turns()

    def one(number: int) -> str:
        try:
            return str(turns.in_turn(lambda: 1 // number))
        except ZeroDivisionError:
            return "division"

    assert turns.work([lambda n=n: one(n) for n in (1, 0, 1)], 3) == ["1", "division", "1"]  # type: ignore[misc]


def test_ctrl_c_in_mid_judging_ends_every_run_in_order(tmp_path: Path) -> None:
    """One is being judged, one waits for the judge, one for its author, and a fourth never begins."""
    turns, asked = Turns(), list[str]()

    def judging(candidate: Candidate) -> None:
        while len(asked) < 3:
            time.sleep(0.01)
        time.sleep(0.1)
        raise KeyboardInterrupt

    @dataclass
    class Third:
        name: str
        model: str = ""

        def propose(self, request: Request) -> Reply:
            asked.append(self.name)
            if self.name == "run2":
                threading.Event().wait(30)
            return Reply(fenced(better(1)))

    def one(name: str) -> Outcome:
        judge, writer = InTurn(ReadingJudge(during=judging), turns), run_of(tmp_path, name)
        return synthesize(TASK, Third(name), judge, writer, Settings(), ask=turns.aside)

    started = time.monotonic()
    outcomes = turns.work([lambda name=f"run{i}": one(name) for i in range(4)], 3)  # type: ignore[misc]
    assert time.monotonic() - started < 10 and turns.interrupted
    assert [o.stop for o in outcomes] == [Stop.INTERRUPTED] * 3 and Store(tmp_path).ids() == ("run0", "run1", "run2")
    kept = [[a.outcome for a in Store(tmp_path).load(name)[1]] for name in Store(tmp_path).ids()]
    assert kept == [["interrupted"], ["interrupted"], []]  # two candidates are to be judged on resuming


def test_how_many_are_worth_it() -> None:
    def said(provider: str, jobs: int | None = None, wait: bool = True) -> int:
        return jobs_for([Config(provider=provider, wait=wait)] * 9, jobs)

    assert [said(name) for name in ("planner", "scripted", "openai-compatible")] == [1, 1, 1]
    assert said("anthropic") == said("openai") == 4
    assert (said("exchange"), said("exchange", wait=False)) == (9, 1)
    assert (said("planner", 3), said("anthropic", 20)) == (3, 9)


def test_the_view_of_several(tmp_path: Path) -> None:
    overview = Overview(9)
    for number in range(6):
        writer = run_of(tmp_path, f"run{number}")
        label, view = overview.label(writer), View(writer, Budget())
        assert label == (TASK.name if number == 0 else f"run{number}")  # one task, several runs
        overview.begun(label, view)
        view.tell(StepStarted(1, 6))
    overview.over("run2", "attempts used")
    screen = Console(width=120, height=10, record=True, file=(tmp_path / "shown").open("w"))
    screen.print(overview.drawn(screen.height))
    shown = screen.export_text()
    assert len(shown.splitlines()) <= 10
    assert "5 at work, 1 ended, 3 to come (2 not shown)" in shown
    assert (
        "step 1: the author is writing, 0:00" in shown
        and "reply.md" not in shown
        and "0 of 6 attempts, 0:00 of 8 min" in shown
    )


def test_the_view_of_several_says_where_people_are_to_answer(tmp_path: Path) -> None:
    overview = Overview(2)
    for name in ("one", "two"):
        head = Run(name, TASK.name, "exchange", "", {}, "2026-11-29T10:00:00+00:00", "0.1.0")
        writer = Store(Path(os.path.relpath(tmp_path))).create(head)
        label, view = overview.label(writer), View(writer, Budget())
        overview.begun(label, view)
        view.tell(StepStarted(1, 6))
        writer.close()
    screen = Console(width=160, height=20, record=True, file=(tmp_path / "shown").open("w"))
    screen.print(overview.drawn(screen.height))
    shown = screen.export_text()
    assert "2 prompt.md, each to be answered in a reply.md beside it:" in shown
    assert all(f"{tmp_path.name}/{name}/steps/001" in shown for name in ("one", "two"))


# -- the command


def running(folder: Path, *args: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coda_synth", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environ(**more), text=True, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("end", ["answered", "interrupted"])
def test_several_paid_authors_write_at_once(end: str, tmp_path: Path) -> None:
    """All are in mid-answer at the same time. Then the answers come, or Ctrl-C does: it breaks all of them off, and
    what they have taken until then is in each record."""
    with FakeService(f"```\n{BAD}\n```\n") as service:
        where = ("--provider", "anthropic", "--model", "pauses", "--base-url", service.url, "--tokens", "300000")
        options = (*where, "--attempts", "1", "--device", "cpu", "--json")
        with running(tmp_path, "synth", *THREE, *options, ANTHROPIC_API_KEY=KEY) as command:
            wait_for(lambda: len(service.requests) == 3)
            time.sleep(0.3)  # until half an answer has come
            if end == "answered":
                service.go_on.set()
            else:
                os.killpg(command.pid, signal.SIGINT)
            out, err = command.communicate(timeout=60)
        service.go_on.set()
    ends = json.loads(out)
    assert [e["task"] for e in ends] == list(THREE) and "Traceback" not in err
    assert KEY not in out + err + "".join(p.read_text() for p in tmp_path.glob("runs/*/*.json"))
    spoilt = [json.loads(p.read_text()) for p in tmp_path.glob("runs/*/steps/001/spoilt.json")]
    stops = {json.loads(p.read_text())["stop"] for p in tmp_path.glob("runs/*/end.json")}
    if end == "answered":
        assert command.returncode == 1 and stops == {"attempts used"} and not spoilt
        assert all(e["report"]["rows"][0]["result"].startswith("REJECTED") for e in ends)
    else:
        assert command.returncode == 130 and stops == {"interrupted"} and err.count("interrupted") == 1
        assert len(spoilt) == 3 and all(s["input_tokens"] > 1000 and s["output_tokens"] for s in spoilt)


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_one_that_breaks_off_leaves_the_others_alone(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is still counted among the waiting, for its reply can be mended."""
    monkeypatch.chdir(tmp_path)
    assert main(["synth", *THREE, "--provider", "exchange", "--no-wait", "--jobs", jobs]) == 4
    broken, *others = (next(tmp_path.glob(f"runs/*-{task}-*")) for task in THREE)
    (broken / "steps/001/reply.md").write_bytes(b"\xff\xfe")
    capsys.readouterr()
    assert main(["resume", "--waiting", "--jobs", jobs]) == 4
    out, err = capsys.readouterr()
    assert err.count("reply.md cannot be read: it is not UTF-8 text") == 1 and "goes on with it" in err
    summary = out.partition("0 of 3 passed")[2].splitlines()
    assert [sum(words in line for line in summary) for words in ("broke off", "waiting for a reply")] == [1, 2]
    main(["show", broken.name])
    shown = capsys.readouterr().out
    assert "Ended:   broke off: the reply" in shown and f"resume {broken.name}" in shown
    assert main(["resume", broken.name, "--json"]) == 3 == json.loads(capsys.readouterr().out)["exit"]
    (broken / "steps/001/reply.md").unlink()
    assert main(["resume", "--waiting", "--jobs", jobs, "--json"]) == 4
    assert [end["ended"] for end in json.loads(capsys.readouterr().out)] == ["waiting for a reply"] * 3


def test_the_code_of_several() -> None:
    passed, failed = (SimpleNamespace(best=best) for best in (object(), None))
    plain = {"interrupted": False, "waiting": False, "folder": "f"}
    good, bad = {**plain, "report": passed}, {**plain, "report": failed}
    waits, broke = {**bad, "waiting": True}, {**plain, "report": None, "error": "no network", "exit": 3}
    assert exit_of([good, good]) == 0 and exit_of([good, bad]) == 1
    assert exit_of([good, broke]) == 1 and exit_of([broke, broke]) == 3
    assert exit_of([good, broke, waits]) == 4 and exit_of([waits, {**bad, "interrupted": True}]) == 130


def test_what_several_may_cost_is_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    def said(count: int, *, quiet: bool = False, **settings: str) -> str:
        say_dollars(Namespace(quiet=quiet, json=False), [Config(usd=2.5, **settings)] * count)  # type: ignore[arg-type]
        return capsys.readouterr().err

    assert said(3, provider="anthropic") == (
        "coda-synth: 3 runs, each with its own budget in dollars: $7.50 at most in all\n"
    )
    assert said(2, provider="openai-compatible", model="own", fallback="anthropic/claude-opus-5-5")
    for nothing in (said(1, provider="anthropic"), said(3), said(3, provider="openai-compatible", model="own")):
        assert nothing == ""
    assert said(3, quiet=True, provider="anthropic") == ""


def test_people_see_all_their_questions_at_once_and_ctrl_c_ends_the_view_of_them(tmp_path: Path) -> None:
    typed: list[int] = []

    def press(so_far: str, terminal: int) -> None:
        ticking = so_far.count("step 1: the author is writing, 0:01") >= 3
        if "3 at work, 0 ended, 0 to come" in so_far and ticking and not typed:
            typed.append(os.write(terminal, b"\x03"))

    ended = on_a_terminal(tmp_path, "synth", *THREE, "--provider", "exchange", act=press, COLUMNS="160")
    assert typed and ended.code == 130 and left_clean(ended) and "Traceback" not in ended.output
    assert "coda-synth: interrupted; what was judged until then is whole in" in ended.plain
    assert len(list(tmp_path.glob("runs/*/end.json"))) == 3

"""A run that was killed at any point, anywhere, goes on as if nothing had happened, and pays for nothing twice."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coda_synth.agent.exchange import Exchange
from coda_synth.agent.loop import Budget, Settings, Stop, synthesize
from coda_synth.agent.provider import Reply, Request
from coda_synth.runs.record import Attempt, Usage
from coda_synth.runs.store import RunHeld, RunWriter, Store, StoreError

from tests.test_loop import GOOD, LOOPING, TASK, ReadingJudge, better, fenced, new_run

REPLIES = (fenced(LOOPING), "no program", fenced(GOOD), fenced(better(2)))
SETTINGS = Settings(Budget(attempts=len(REPLIES), usd=100.0))
POINTS = range(1, 57)
FEW = tuple(POINTS)[::4]


@dataclass
class Billing:
    """An author of our own that costs money, and writes down outside the record every call that it has finished."""

    ledger: Path
    name: str = "author"
    model: str = "one"

    def propose(self, request: Request) -> Reply:
        step = request.number - 1
        with self.ledger.open("a") as file:
            file.write(f"{step + 1}\n")
        return Reply(REPLIES[step], usage=Usage(1000, 0, 0, 100, 0.25, 2.0, f"req_{step}"), model="one")

    @property
    def calls(self) -> list[int]:
        return [int(line) for line in self.ledger.read_text().split()] if self.ledger.exists() else []


def undisturbed(folder: Path) -> tuple[Attempt, ...]:
    author = Billing(folder / "ledger")
    return synthesize(TASK, author, ReadingJudge(), new_run(folder / "runs"), SETTINGS).attempts


def timeless(attempts: tuple[Attempt, ...]) -> list[Any]:
    """All but wall clock."""
    return [(a.step, a.outcome, a.candidate, a.evaluation, a.usage, a.note, a.reply) for a in attempts]


class Killer:
    """Kills this process at the n-th operation on a file; a write is cut in its middle first."""

    def __init__(self, point: int) -> None:
        self.left = point

    def wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    original(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return killing

    def arm(self) -> None:
        for name in ("write", "fsync", "replace", "open", "ftruncate", "posix_fallocate", "mkdir"):
            setattr(os, name, self.wrap(name, getattr(os, name)))


def in_a_child(work: Callable[[], None]) -> int:
    """Runs it in a fork of this process, which has everything imported; gives the wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def killed_at(point: int, folder: Path) -> bool:
    """A run killed at its n-th operation; False where it had ended by then."""
    author = Billing(folder / "ledger")
    writer = new_run(folder / "runs")

    def work() -> None:
        Killer(point).arm()
        synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)

    status = in_a_child(work)
    writer.close()
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("point", [p if p in FEW else pytest.param(p, marks=pytest.mark.slow) for p in POINTS])
def test_killed_anywhere_it_goes_on_and_pays_nothing_twice(point: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = undisturbed(tmp_path / "whole")
    assert killed_at(point, tmp_path)
    author = Billing(tmp_path / "ledger")
    store = Store(tmp_path / "runs")
    kept = {int(p.parent.name) for p in (tmp_path / "runs" / "run").glob("steps/*/reply.json")}
    before = len(author.calls)
    written = len(store.load("run")[1])
    writer = store.open("run")
    outcome = synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    assert timeless(outcome.attempts) == timeless(expected)
    assert timeless(store.load("run")[1]) == timeless(expected)
    again = author.calls[before:]
    assert not kept & set(again), "a reply that lay on the disk was asked for again"
    assert len(author.calls) <= len(REPLIES) + 1, "more than the call in flight was repeated"
    assert again == sorted(again) and (not again or again[0] >= written + 1)
    assert not list((tmp_path / "runs").rglob(".*.tmp"))


def test_there_are_that_many_points(tmp_path: Path) -> None:
    assert killed_at(POINTS[-1], tmp_path) and not killed_at(1000, _other(tmp_path))


def _other(folder: Path) -> Path:
    (folder / "other").mkdir()
    return folder / "other"


def test_a_resumed_run_counts_as_one(tmp_path: Path) -> None:
    """Attempts, minutes, tokens and dollars of earlier sessions are used."""
    author = Billing(tmp_path / "ledger")
    writer = new_run(tmp_path / "runs")
    first = synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=2)))
    assert first.stop is Stop.ATTEMPTS
    writer.close()
    for budget, stop in (
        (Budget(attempts=2), Stop.ATTEMPTS),
        (Budget(minutes=4.0 / 60), Stop.MINUTES),
        (Budget(tokens=2200), Stop.TOKENS),
        (Budget(usd=0.5), Stop.USD),
    ):
        writer = Store(tmp_path / "runs").open("run")
        outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings(budget))
        assert (outcome.stop, len(outcome.attempts)) == (stop, 2)
        writer.close()
    writer = Store(tmp_path / "runs").open("run")
    assert len(synthesize(TASK, author, ReadingJudge(), writer, SETTINGS).attempts) == len(REPLIES)


def test_a_candidate_whose_judging_was_interrupted_is_judged_on_resuming(tmp_path: Path) -> None:
    author = Billing(tmp_path / "ledger")
    writer = new_run(tmp_path / "runs")

    def interrupt(candidate: object) -> None:
        raise KeyboardInterrupt

    outcome = synthesize(TASK, author, ReadingJudge(during=interrupt), writer, SETTINGS)
    assert (outcome.stop, outcome.attempts[-1].outcome) == (Stop.INTERRUPTED, "interrupted")
    writer.close()
    writer = Store(tmp_path / "runs").open("run")
    judge = ReadingJudge()
    synthesize(TASK, author, judge, writer, Settings(Budget(attempts=1)))
    assert [a.outcome for a in writer.attempts] == ["interrupted", "evaluated"]
    assert writer.attempts[1].candidate == writer.attempts[0].candidate and author.calls == [1]
    assert writer.attempts[1].usage.usd is None and writer.attempts[1].usage.output_tokens == 0


# -- who holds a run


def test_the_second_process_is_told_who_works_on_a_run(tmp_path: Path) -> None:
    writer = new_run(tmp_path)
    with pytest.raises(RunHeld, match=f"run run is being worked on by process {os.getpid()} on .*, since 20"):
        Store(tmp_path).open("run")
    writer.close()
    Store(tmp_path).open("run").close()


def test_a_dead_holder_and_a_copied_folder_hold_nothing(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "runs")
    writer.close()
    child = in_a_child(lambda: (Store(tmp_path / "runs").open("run"), os.kill(os.getpid(), signal.SIGKILL))[1])
    assert os.WIFSIGNALED(child)
    held = Store(tmp_path / "runs").open("run")
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    Store(tmp_path / "copy").open("run").close()
    held.close()


# -- a disk that is full, or cannot be written


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From its call on, the disk has no room for anything that was not reserved."""

    def fill() -> None:
        def no_space(*_: Any) -> Any:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", no_space)

    yield fill
    monkeypatch.undo()


def test_a_full_disk_is_found_before_the_call_is_paid(tmp_path: Path, full: Callable[[], None]) -> None:
    author = Billing(tmp_path / "ledger")
    writer = new_run(tmp_path / "runs")
    full()
    with pytest.raises(StoreError, match=r"cannot write .*reply\.json: No space left on device; choose another folder"):
        synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    assert author.calls == []


def test_a_disk_that_fills_after_the_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply has its reserved room; the attempt's line has none, and is written on resuming."""
    author = Billing(tmp_path / "ledger")
    writer = new_run(tmp_path / "runs")

    def no_room(self: RunWriter, attempt: Attempt) -> None:
        raise StoreError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "append", no_room)
        with pytest.raises(StoreError):
            synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    writer.close()
    outcome = synthesize(TASK, author, ReadingJudge(), Store(tmp_path / "runs").open("run"), SETTINGS)
    assert author.calls == [1, 2, 3, 4] and len(outcome.attempts) == 4


def test_a_real_full_file_system(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the kernel itself refuses the write."""
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from tests.test_resume import *\n"
        "author = Billing(Path(sys.argv[1]) / 'ledger')\nwriter = new_run(Path(sys.argv[1]) / 'runs')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try: synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)\n"
        "except StoreError as error: print(error)\n"
        "print(author.calls)"
    )
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stdout and "File too large" in done.stdout and done.stdout.endswith("[]\n")


# -- the exchange


def test_a_run_waits_for_a_file_and_goes_on_where_it_is_copied_to(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "here")
    author = Exchange(wait=False)
    outcome = synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    step = writer.folder / "steps" / "001"
    assert (outcome.stop, outcome.attempts) == (Stop.WAITING, ())
    assert str(step / "reply.md") in outcome.detail and "def linear_residual(" in (step / "prompt.md").read_text()
    writer.close()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there/run/steps/001/reply.md").write_text(fenced(GOOD))
    writer = Store(tmp_path / "there").open("run")
    outcome = synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    assert outcome.stop is Stop.WAITING and outcome.best is outcome.attempts[0]
    assert "PASSED" in (writer.folder / "steps/001/report.md").read_text()
    (writer.folder / "steps/002/reply.coda").write_text(better(3))
    outcome = synthesize(TASK, author, ReadingJudge(), writer, SETTINGS)
    assert [a.outcome for a in outcome.attempts] == ["evaluated", "evaluated"]
    assert outcome.attempts[1].candidate is not None and outcome.attempts[1].candidate.author == "exchange"
    first, second = ((writer.folder / f"steps/{n:03}/prompt.md").read_text() for n in (1, 2))
    system = (writer.folder / "system.md").read_text()
    assert system in first and system not in second and "system.md in the run's folder" in second


def test_waiting_is_no_work_and_a_half_written_reply_is_left_alone(tmp_path: Path) -> None:
    import threading
    import time

    writer = new_run(tmp_path)
    step = writer.folder / "steps" / "001"

    def slowly() -> None:
        while not (step / "prompt.md").exists():
            time.sleep(0.02)
        with (step / "reply.md").open("w") as file:
            for part in (fenced(GOOD)[:40], fenced(GOOD)[40:90], fenced(GOOD)[90:]):
                file.write(part)
                file.flush()
                time.sleep(0.2)

    thread = threading.Thread(target=slowly)
    thread.start()
    outcome = synthesize(TASK, Exchange(), ReadingJudge(), writer, Settings(Budget(attempts=1)))
    thread.join()
    assert outcome.attempts[0].outcome == "evaluated" and outcome.attempts[0].seconds < 0.5


def test_a_late_change_of_a_reply_changes_nothing(tmp_path: Path) -> None:
    """What was accepted is what is judged."""
    writer = new_run(tmp_path)
    step = writer.folder / "steps" / "001"
    step.mkdir(parents=True)
    (step / "reply.md").write_text(fenced(GOOD))

    def meddle(candidate: object) -> None:
        (step / "reply.md").write_text("something else")
        raise RuntimeError("the judge broke down")

    with pytest.raises(RuntimeError):
        synthesize(TASK, Exchange(wait=False), ReadingJudge(during=meddle), writer, SETTINGS)
    outcome = synthesize(TASK, Exchange(wait=False), ReadingJudge(), writer, SETTINGS)
    assert outcome.best is not None and outcome.best.candidate is not None
    assert outcome.best.candidate.source == GOOD


# -- with the whole judge


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "coda_synth", *words, "--runs", str(folder / "runs"), "--device", "cpu", "--json"]


def results(folder: Path) -> list[Any]:
    store = Store(folder / "runs")
    evaluations = [a.evaluation for a in store.load(store.resolve())[1] if a.outcome == "evaluated"]
    return [(e.candidate, e.verdict, e.diagnostics, e.modelled) for e in evaluations if e]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["read", "build", "check", "report", "attempts"])
def test_killed_in_a_full_evaluation(stage: str, tmp_path: Path) -> None:
    """kill -9 while the real judge is at a stage of the second candidate, or right after it."""
    replies = tmp_path / "replies"
    replies.mkdir()
    for number, text in enumerate((LOOPING, GOOD)):
        (replies / f"{number}.coda").write_text(text)
    options = ("--provider", "scripted", "--replies", str(replies), "--seed", "7", "--attempts", "2")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    code = (
        "import os, signal, sys\nfrom coda_synth.agent import cli, loop\n"
        "from coda_synth.evaluator.judge import Judge\nfrom coda_synth.runs.store import RunWriter\n"
        f"wanted = {stage!r}\nplain, keep, append = Judge.evaluate, RunWriter.keep, RunWriter.append\n"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "def evaluate(self, candidate, *, measure=True, on_stage=None, **more):\n"
        "    hit = lambda s: die() if s == wanted and 'for i in' not in candidate.source else on_stage(s)\n"
        "    return plain(self, candidate, measure=measure, on_stage=hit, **more)\n"
        "def kept(self, name, text, durable=True):\n"
        "    die() if wanted == 'report' and name.endswith('002/report.md') else keep(self, name, text, durable)\n"
        "def appended(self, attempt):\n"
        "    append(self, attempt)\n    die() if wanted == 'attempts' and attempt.step == 2 else None\n"
        "Judge.evaluate, RunWriter.keep, RunWriter.append = evaluate, kept, appended\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    run = {"env": environment, "capture_output": True, "text": True, "check": False}
    assert subprocess.run(command(whole, "synth", TASK.name, *options), cwd=whole, **run).returncode == 0  # type: ignore[call-overload]
    words = command(killed, "synth", TASK.name, *options)[3:]
    died = subprocess.run([sys.executable, "-c", code, *words], cwd=killed, **run)  # type: ignore[call-overload]
    assert died.returncode == -signal.SIGKILL, died.stderr
    resumed = subprocess.run(command(killed, "resume", "latest"), cwd=killed, **run)  # type: ignore[call-overload]
    assert resumed.returncode == 0, resumed.stderr
    assert results(killed) == results(whole) and len(results(killed)) == 2

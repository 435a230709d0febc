"""The author writes while the judge is at work; what is asked, kept and counted is the same as if it did not."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from coda_synth.agent.events import Event, StageReached, StepStarted
from coda_synth.agent.loop import Budget, Outcome, Settings, Stop, synthesize
from coda_synth.agent.provider import ProviderError, Reply, Request
from coda_synth.agent.strategy import CHILDREN, PARENTS, beam, turn, turn_ahead
from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.runs.record import Attempt
from coda_synth.runs.store import Store, StoreError

from tests.test_loop import GOOD, LOOPING, TASK, Author, ReadingJudge, better, fenced, judged, new_run
from tests.test_resume import REPLIES, Billing, Killer, in_a_child, timeless

PAUSE = 0.15


@dataclass
class Slow(Billing):
    """Takes its time, and can be asked ahead."""

    by_prompt: bool = True
    pause: float = 0.0

    def propose(self, request: Request) -> Reply:
        time.sleep(self.pause)
        return super().propose(request)


def wall_clock(folder: Path, strategy: str, by_prompt: bool = True) -> tuple[float, Outcome]:
    author = Slow(folder / "ledger", by_prompt=by_prompt, pause=PAUSE)
    judge = ReadingJudge(during=lambda candidate: time.sleep(PAUSE))
    settings = Settings(Budget(attempts=len(REPLIES), usd=100.0), strategy=strategy)
    started = time.monotonic()
    outcome = synthesize(TASK, author, judge, new_run(folder), settings)
    return time.monotonic() - started, outcome


def test_the_next_program_is_written_while_the_last_is_judged(tmp_path: Path) -> None:
    """Four replies and three judgements of one pause each: seven in a row, or five with two of them hidden."""
    for name in ("apart", "together"):
        (tmp_path / name).mkdir()
    apart, one = wall_clock(tmp_path / "apart", "best-of-n", by_prompt=False)
    together, other = wall_clock(tmp_path / "together", "best-of-n")
    assert apart > 7 * PAUSE and together < apart - 1.5 * PAUSE
    assert timeless(one.attempts) == timeless(other.attempts)
    # Time that the judge was waited for is not counted again as the author's.
    assert sum(a.seconds for a in other.attempts) < sum(a.seconds for a in one.attempts)


def test_refine_waits_for_each_verdict(tmp_path: Path) -> None:
    took, _ = wall_clock(tmp_path, "refine")
    assert took > 7 * PAUSE


def test_children_of_a_beam_are_independent_and_parents_of_a_new_round_are_not() -> None:
    history: tuple[Attempt, ...] = ()
    waits = []
    for step in range(1, 2 * PARENTS * CHILDREN + PARENTS):
        early = turn_ahead("beam", history)
        waits += [step + 1] if early is None else []
        history += (judged(step, Verdict.PASSED, ms=10.0 - 0.1 * step),)
        late = turn("beam", history, ahead=True)
        assert early is None or late == early  # whenever it is asked, it is asked the same
        plain = beam(history)
        assert (late.choice.focus, late.choice.hint) == (plain.focus, plain.hint)
    assert waits == [PARENTS + 1, PARENTS + 1 + PARENTS * CHILDREN]


def test_a_candidate_to_be_judged_again_changes_no_request() -> None:
    one, two = judged(1, Verdict.PASSED), judged(2, Verdict.PASSED)
    broken = Attempt(2, "interrupted", two.candidate)
    again = Attempt(3, "evaluated", two.candidate, two.evaluation)
    asked = turn_ahead("beam", (one, broken))
    assert turn("best-of-n", (one, broken, again), ahead=True).known == (one,)
    assert asked is None and turn("beam", (one, broken, again), ahead=True).known == (one, broken, again)


@pytest.mark.parametrize("point", range(3, 60, 8))
def test_killed_anywhere_with_two_steps_in_hand(point: int, tmp_path: Path) -> None:
    settings = Settings(Budget(attempts=len(REPLIES), usd=100.0), strategy="best-of-n")
    (tmp_path / "whole").mkdir()
    whole = synthesize(TASK, Slow(tmp_path / "whole" / "ledger"), ReadingJudge(), new_run(tmp_path / "whole"), settings)
    author, writer = Slow(tmp_path / "ledger", pause=0.005), new_run(tmp_path / "runs")

    def work() -> None:
        Killer(point).arm()
        synthesize(TASK, author, ReadingJudge(during=lambda c: time.sleep(0.01)), writer, settings)

    status = in_a_child(work)
    writer.close()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    kept = {int(p.parent.name) for p in (tmp_path / "runs" / "run").glob("steps/*/reply.json")}
    before = len(author.calls)
    outcome = synthesize(TASK, author, ReadingJudge(), Store(tmp_path / "runs").open("run"), settings)
    assert timeless(outcome.attempts) == timeless(whole.attempts)
    assert not kept & set(author.calls[before:]) and len(author.calls) <= len(REPLIES) + 1
    assert not list((tmp_path / "runs").rglob(".*.tmp"))


def test_ctrl_c_keeps_the_judged_candidate_and_the_next_reply(tmp_path: Path) -> None:
    settings = Settings(Budget(attempts=4, usd=100.0), strategy="best-of-n")
    author, writer = Slow(tmp_path / "ledger"), new_run(tmp_path / "runs")
    following = writer.step(4) / "reply.json"

    def interrupt(candidate: Candidate) -> None:
        if candidate.source == GOOD:  # step 3
            while not following.exists():
                time.sleep(0.01)
            raise KeyboardInterrupt

    outcome = synthesize(TASK, author, ReadingJudge(during=interrupt), writer, settings)
    assert outcome.stop is Stop.INTERRUPTED and author.calls == [1, 2, 3, 4]
    writer.close()
    writer = Store(tmp_path / "runs").open("run")
    outcome = synthesize(TASK, author, ReadingJudge(), writer, settings)
    assert author.calls == [1, 2, 3, 4]
    assert [a.outcome for a in outcome.attempts] == ["evaluated", "no_program", "interrupted", "evaluated", "evaluated"]
    assert [a.candidate.source for a in outcome.attempts if a.candidate] == [LOOPING, GOOD, GOOD, better(2)]
    assert sum(a.usage.usd or 0.0 for a in outcome.attempts) == 1.0


def test_what_was_paid_for_is_judged_and_nothing_more_is_asked(tmp_path: Path) -> None:
    """The first judgement uses up the minutes, while the second program is being written."""
    author = Slow(tmp_path / "ledger")
    judge = ReadingJudge(during=lambda candidate: time.sleep(0.1))
    settings = Settings(Budget(attempts=4, minutes=2.05 / 60), strategy="best-of-n")
    outcome = synthesize(TASK, author, judge, new_run(tmp_path), settings)
    assert (outcome.stop, len(outcome.attempts), author.calls) == (Stop.MINUTES, 2, [1, 2])


def test_no_more_is_asked_than_the_budget_bears(tmp_path: Path) -> None:
    for budget, calls in ((Budget(attempts=1), [1]), (Budget(attempts=4, usd=0.5), [1, 2])):
        folder = tmp_path / str(len(calls))
        folder.mkdir()
        author = Slow(folder / "ledger")
        synthesize(TASK, author, ReadingJudge(), new_run(folder), Settings(budget, strategy="best-of-n"))
        assert author.calls == calls


def test_an_author_lost_while_the_judge_works_loses_no_verdict(tmp_path: Path) -> None:
    @dataclass
    class Ready(Author):
        by_prompt: bool = True

    writer = new_run(tmp_path)
    with pytest.raises(ProviderError, match="cannot be reached"):
        synthesize(
            TASK,
            Ready([Reply(fenced(GOOD)), ProviderError("cannot be reached")]),
            ReadingJudge(),
            writer,
            Settings(strategy="best-of-n"),
        )
    assert [a.outcome for a in Store(tmp_path).load("run")[1]] == ["evaluated"]


def test_an_answer_that_comes_after_the_end_is_not_kept(tmp_path: Path) -> None:
    writer = new_run(tmp_path)
    writer.reserve("steps/001/reply.json")
    writer.close()
    with pytest.raises(StoreError, match="has ended its work on the run"):
        writer.keep("steps/001/reply.json", "{}")
    assert not list(tmp_path.rglob("*reply.json*"))


def test_events_tell_of_both(tmp_path: Path) -> None:
    told: list[Event] = []
    author = Slow(tmp_path / "ledger")
    settings = Settings(Budget(attempts=4, usd=100.0), strategy="best-of-n")
    synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), settings, told.append)
    assert [e.step for e in told if isinstance(e, StepStarted)] == [1, 2, 3, 4]
    first = [type(e) for e in told[:3]]
    assert first == [StepStarted, StepStarted, StageReached]

"""The loop, with replayed replies, a judge that really reads the programs, and a real record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coda_synth.agent.budget import spent
from coda_synth.agent.events import Event, StageReached, StepEnded, StepStarted
from coda_synth.agent.loop import Budget, Outcome, Settings, Stop, synthesize
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Options, ProviderError, Reply, Request
from coda_synth.agent.scripted import Scripted
from coda_synth.agent.strategy import choose
from coda_synth.coda_api.errors import Diagnostic, ProgramError
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Modelled, Verdict
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt, Run, Usage
from coda_synth.runs.store import RunWriter, Store
from coda_synth.tasks.catalog import task as find
from coda_synth.tasks.catalog import task_names, worked_candidate

TASK = find("linear_residual")
GOOD = worked_candidate("linear_residual")
LOOPING = GOOD.replace("@program", "for i in range(3):\n    pass\n\n@program")


def better(step: int) -> str:
    """Another program, by a factor that is almost one; the judge below finds longer ones faster."""
    return GOOD.replace("+ x", f"+ x * 1.{step + 1:05}") + "# " + "x" * step + "\n"


@dataclass
class ReadingJudge:
    """Judges as far as the language goes: what the reader refuses is REJECTED, the rest PASSED with a modelled time."""

    asked: list[str] = field(default_factory=list)
    during: Callable[[Candidate], None] = lambda candidate: None

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        self.asked.append(candidate.id)
        if on_stage:
            on_stage("read")
        self.during(candidate)
        try:
            read(candidate.source, signature(TASK))
        except ProgramError as error:
            return Evaluation(candidate.id, candidate.task, Verdict.REJECTED, "read", 1, error.diagnostics)
        sizes = next(iter(TASK.time_shapes.values()))
        model = Modelled("8b", sizes, "H200", 1, 1, 0.5, 1.0 / len(candidate.source), 1.0)
        checks = (Check("meaning", sizes, "normal", 1, "reference", 0.5),)
        return Evaluation(candidate.id, candidate.task, Verdict.PASSED, "check", 1, checks=checks, modelled=(model,))

    def trace(self, task: str) -> Graph:
        return Graph(task, {}, (), {})


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return new_run(tmp_path / "runs")


def new_run(root: Path) -> RunWriter:
    return Store(root).create(Run("run", TASK.name, "scripted", "", {}, "2026-11-29T10:00:00+00:00", "0.1.0"))


def fenced(source: str) -> str:
    return f"```coda\n{source}```\n"


def script(tmp_path: Path, *replies: str) -> Scripted:
    folder = tmp_path / "replies"
    folder.mkdir()
    for number, reply in enumerate(replies):
        (folder / f"{number:03}.md").write_text(reply)
    return Scripted(folder)


@dataclass
class Author:
    """Gives prepared replies, refusals and errors among them, and keeps what it was asked."""

    replies: list[Reply | Exception]
    asked: list[Request] = field(default_factory=list)
    name: str = "author"
    model: str = "one"

    def propose(self, request: Request) -> Reply:
        self.asked.append(request)
        answer = self.replies[len(self.asked) - 1] if len(self.asked) <= len(self.replies) else Reply("", "done")
        if isinstance(answer, Exception):
            raise answer
        return answer


def on_disk(writer: RunWriter) -> tuple[Attempt, ...]:
    return Store(writer.folder.parent).load(writer.run.id)[1]


def test_a_run_ends_with_its_best_candidate(tmp_path: Path, writer: RunWriter) -> None:
    author = script(tmp_path, fenced(LOOPING), "No program here.", fenced(GOOD), fenced(better(9)), fenced(better(3)))
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings())
    assert [a.outcome for a in outcome.attempts] == ["evaluated", "no_program", *["evaluated"] * 3]
    assert [a.evaluation.verdict.value for a in outcome.attempts if a.evaluation] == ["REJECTED", *["PASSED"] * 3]
    assert (outcome.stop, outcome.reason) == (Stop.DONE, "the author has nothing better")
    assert outcome.best is outcome.attempts[3]
    assert on_disk(writer) == outcome.attempts
    assert outcome.attempts[0].candidate == Candidate(TASK.name, LOOPING, "scripted/replies")
    lying = {p.name for p in (writer.folder / "candidates").iterdir()}
    assert lying == {f"{a.candidate.id}.coda" for a in outcome.attempts if a.candidate}


def test_the_attempts_budget(tmp_path: Path, writer: RunWriter) -> None:
    author = script(tmp_path, *(fenced(better(n)) for n in range(5)))
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=2)))
    assert (len(outcome.attempts), outcome.reason) == (2, "attempts used")


def test_the_minutes_budget_finishes_the_step_in_hand(tmp_path: Path, writer: RunWriter) -> None:
    judge = ReadingJudge(during=lambda candidate: time.sleep(0.1))
    author = script(tmp_path, *(fenced(better(n)) for n in range(5)))
    outcome = synthesize(TASK, author, judge, writer, Settings(Budget(minutes=0.05 / 60)))
    assert (len(outcome.attempts), outcome.reason) == (1, "minutes used")
    assert outcome.best is not None


def test_each_attempt_is_on_the_disk_before_the_next_step(tmp_path: Path, writer: RunWriter) -> None:
    seen: list[int] = []
    judge = ReadingJudge(during=lambda candidate: seen.append(len(on_disk(writer))))
    synthesize(TASK, script(tmp_path, *(fenced(better(n)) for n in range(3))), judge, writer, Settings())
    assert seen == [0, 1, 2]


def test_a_program_is_judged_once(tmp_path: Path, writer: RunWriter) -> None:
    judge = ReadingJudge()
    outcome = synthesize(TASK, script(tmp_path, *[fenced(GOOD)] * 3), judge, writer, Settings())
    assert [a.outcome for a in outcome.attempts] == ["evaluated", "duplicate", "duplicate"]
    assert len(judge.asked) == 1
    assert outcome.attempts[2].note == "the same program as in step 1, which was judged already"


def test_a_correction_reaches_the_author(writer: RunWriter) -> None:
    author = Author([Reply("Which task?"), Reply(fenced(GOOD)[:-4], "truncated"), Reply(fenced(GOOD))])
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings())
    assert "it holds no ``` block" in author.asked[1].prompt.user
    assert "the reply ended before it was complete" in author.asked[2].prompt.user
    assert [a.reply for a in outcome.attempts] == ["Which task?", fenced(GOOD)[:-4], ""]
    assert outcome.best is outcome.attempts[2]


def test_what_the_judge_found_reaches_the_author(writer: RunWriter) -> None:
    author = Author([Reply(fenced(LOOPING)), Reply(fenced(GOOD))])
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings())
    first = outcome.attempts[0].evaluation
    assert first is not None
    assert str(first.diagnostics[0]) in author.asked[1].prompt.user
    assert LOOPING.strip() in author.asked[1].prompt.user
    assert outcome.attempts[1].candidate is not None and outcome.attempts[0].candidate is not None
    assert outcome.attempts[1].candidate.parent == outcome.attempts[0].candidate.id
    assert author.asked[0].prompt.system == author.asked[1].prompt.system


def test_usage_and_the_reported_model_are_kept(writer: RunWriter) -> None:
    usage = Usage(100, 50, 10, 5, 0.25, 1.5, "req_1")
    outcome = synthesize(TASK, Author([Reply(fenced(GOOD), "text", usage, "m-2")]), ReadingJudge(), writer, Settings())
    assert outcome.attempts[0].usage == usage
    assert outcome.attempts[0].candidate is not None
    assert outcome.attempts[0].candidate.author == "author/m-2"


def test_a_refusal_is_an_attempt_and_two_in_a_row_end_the_run(writer: RunWriter) -> None:
    no = Reply("frontier_llm: not this", "refused")
    author = Author([no, Reply(fenced(GOOD)), no, no, Reply(fenced(better(1)))])
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings())
    assert [a.outcome for a in outcome.attempts] == ["refused", "evaluated", "refused", "refused"]
    assert outcome.reason == "the author refused: frontier_llm: not this"
    assert author.asked[0].prompt.user != author.asked[1].prompt.user  # the same text is never sent again


def test_why_the_author_is_done_is_passed_on(writer: RunWriter) -> None:
    author = Author([Reply("aten.cumsum crosses tiles", "done")])
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings())
    assert outcome.reason == "the author has nothing better: aten.cumsum crosses tiles"
    assert (outcome.best, outcome.attempts) == (None, ())


def test_a_lost_author_stops_the_run_and_the_record_is_whole(writer: RunWriter) -> None:
    author = Author([Reply(fenced(GOOD)), ProviderError("cannot be reached")])
    with pytest.raises(ProviderError, match="cannot be reached"):
        synthesize(TASK, author, ReadingJudge(), writer, Settings())
    assert len(on_disk(writer)) == len(writer.attempts) == 1


def interrupt(candidate: Candidate) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_mid_judging_keeps_the_candidate(writer: RunWriter) -> None:
    usage = Usage(100, 0, 0, 5, 0.25)
    author = Author([Reply(fenced(GOOD)), Reply(fenced(better(1)), usage=usage)])
    judge = ReadingJudge(during=lambda c: interrupt(c) if c.source != GOOD else None)
    outcome = synthesize(TASK, author, judge, writer, Settings())
    assert outcome.reason == "interrupted"
    assert outcome.best is outcome.attempts[0]
    last = outcome.attempts[1]
    assert (last.outcome, last.candidate and last.candidate.source, last.usage) == ("interrupted", better(1), usage)
    assert on_disk(writer) == outcome.attempts


def test_ctrl_c_while_the_author_thinks(writer: RunWriter) -> None:
    @dataclass
    class Slow(Author):
        def propose(self, request: Request) -> Reply:
            raise KeyboardInterrupt

    outcome = synthesize(TASK, Slow([]), ReadingJudge(), writer, Settings())
    assert (outcome.stop, outcome.attempts, on_disk(writer)) == (Stop.INTERRUPTED, (), ())


def test_a_failing_judge_stops_the_run_and_keeps_the_candidate(writer: RunWriter) -> None:
    def fail(candidate: Candidate) -> None:
        raise RuntimeError("the worker does not start")

    with pytest.raises(RuntimeError, match="does not start"):
        synthesize(TASK, Author([Reply(fenced(GOOD))]), ReadingJudge(during=fail), writer, Settings())
    assert [a.outcome for a in on_disk(writer)] == ["interrupted"]


def test_events_tell_what_happens(tmp_path: Path, writer: RunWriter) -> None:
    told: list[Event] = []
    author = script(tmp_path, fenced(GOOD), fenced(LOOPING), fenced(better(4)))
    outcome = synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=3)), told.append)
    assert [type(e) for e in told] == [StepStarted, StageReached, StepEnded] * 3
    assert [e.leads for e in told if isinstance(e, StepEnded)] == [True, False, True]
    assert [e.attempt for e in told if isinstance(e, StepEnded)] == list(outcome.attempts)
    assert told[0] == StepStarted(1, 3)
    assert isinstance(told[1], StageReached) and told[1].stage == "read"


def test_a_task_is_traced_once_and_only_if_asked(writer: RunWriter) -> None:
    traced: list[str] = []

    class Tracing(ReadingJudge):
        def trace(self, task: str) -> Graph:
            traced.append(task)
            return super().trace(task)

    @dataclass
    class Planning(Author):
        def propose(self, request: Request) -> Reply:
            assert request.graph() is request.graph()
            return super().propose(request)

    synthesize(TASK, Author([Reply(fenced(GOOD))]), Tracing(), writer, Settings())
    assert traced == []
    synthesize(TASK, Planning([Reply(fenced(better(1))), Reply(fenced(better(2)))]), Tracing(), writer, Settings())
    assert traced == [TASK.name]


def test_an_author_that_sees_nothing_left_to_win_ends_the_run_for_no_attempt(tmp_path: Path) -> None:
    usage = Usage(input_tokens=7, output_tokens=3)
    early, late = Reply("done: it cannot be beaten"), Reply("\ndone: 99.8 % of it is the GEMM\n", usage=usage)
    author = Author([early, Reply(fenced(GOOD)), late])
    outcome = synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), Settings(Budget(attempts=9)))
    assert (outcome.stop, outcome.detail) == (Stop.DONE, "99.8 % of it is the GEMM")
    assert [a.outcome for a in outcome.attempts] == ["no_program", "evaluated", "done"]
    assert "once a program has passed" in outcome.attempts[0].note and "`done: `" in author.asked[2].prompt.user
    assert outcome.attempts[2].usage == usage and spent(outcome.attempts).attempts == 2


def test_a_run_that_its_author_ended_stays_so_and_another_author_may_go_on(tmp_path: Path) -> None:
    writer, budget = new_run(tmp_path), Settings(Budget(attempts=9))
    first = Author([Reply(fenced(GOOD)), Reply("done: it is the GEMM")], name="scripted")
    assert synthesize(TASK, first, ReadingJudge(), writer, budget).stop == Stop.DONE
    again, other = Author([Reply(fenced(better(1)))], name="scripted"), Author([Reply(fenced(better(1)))])
    outcome = synthesize(TASK, again, ReadingJudge(), writer, budget)
    assert (outcome.stop, outcome.detail, again.asked) == (Stop.DONE, "it is the GEMM", [])
    outcomes = [a.outcome for a in synthesize(TASK, other, ReadingJudge(), writer, budget).attempts]
    assert outcomes == ["evaluated", "done", "evaluated"] and other.asked


def test_a_program_with_a_wrong_hint_alone_is_told_so_for_nothing_once_in_a_row(tmp_path: Path) -> None:
    wrong = [GOOD.replace("@kernel", f"@kernel(block_n={n})") for n in (100, 192, 300)]
    author = Author([Reply(fenced(text)) for text in (wrong[0], GOOD, wrong[1], wrong[2], better(1))])
    outcome = synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), Settings(Budget(attempts=3)))
    assert [a.evaluation.verdict.value for a in outcome.attempts if a.evaluation] == [
        *("REJECTED", "PASSED", "REJECTED", "REJECTED", "PASSED")
    ]
    assert spent(outcome.attempts).attempts == 3
    told = [("cost none this once" in request.prompt.user) for request in author.asked]
    assert told == [False, True, False, True, False]


def judged(step: int, verdict: Verdict, ms: float = 1.0) -> Attempt:
    candidate = Candidate("t", f"program {step}")
    if verdict is not Verdict.PASSED:
        return Attempt(
            step, "evaluated", candidate, Evaluation(candidate.id, "t", verdict, "read", 1, (Diagnostic("R", "no"),))
        )
    evaluation = Evaluation(
        candidate.id,
        "t",
        verdict,
        "check",
        1,
        checks=(Check("meaning", {}, "normal", 1, "reference", 0.5),),
        modelled=(Modelled("8b", {}, "H200", 1, 1, 0.5, ms, 1.0),),
    )
    return Attempt(step, "evaluated", candidate, evaluation)


def test_strategy_mends_twice_and_then_goes_back_to_the_best() -> None:
    fast, slow = judged(1, Verdict.PASSED, 1.0), judged(2, Verdict.PASSED, 2.0)
    wrong = [judged(step, Verdict.INCORRECT) for step in (3, 4, 5)]
    assert choose(()).parent is None
    assert choose((fast, slow)).focus is fast
    assert choose((fast, slow, wrong[0])).focus is wrong[0]
    assert choose((fast, slow, *wrong[:2])).focus is wrong[1]
    assert choose((fast, slow, *wrong)).focus is fast
    assert choose(tuple(wrong)).focus is wrong[2]
    said = Attempt(6, "no_program")
    choice = choose((fast, slow, *wrong, said))
    assert (choice.best, choice.last, choice.focus) == (fast, said, fast)


def test_the_first_prompt_holds_the_task_and_not_its_answer() -> None:
    told = prompt(TASK)
    header = 'def linear_residual(y: Tensor["T", "K"], w: Tensor["D", "K"], x: Tensor["T", "D"]):'
    assert header in told.user and header in GOOD
    assert "F.linear" in told.user and "out [T, D] (bfloat16)" in told.user and "llama3-8b: T=8192" in told.user
    assert "check_shapes" not in told.user  # the odd shapes are not shown
    others = [worked_candidate(name).strip() for name in task_names() if name != TASK.name]
    assert GOOD.strip() not in told.system and sum(other in told.system for other in others) == 3
    assert "tile_logsumexp" in told.system


def test_a_prompt_shows_what_to_work_on_and_what_became_of_the_rest() -> None:
    fast, slow = judged(1, Verdict.PASSED, 1.0), judged(2, Verdict.PASSED, 2.0)
    wrong = [judged(step, Verdict.INCORRECT) for step in (3, 4, 5)]
    said = Attempt(6, "no_program", note="send one program")

    def user(*history: Attempt) -> str:
        return prompt(TASK, history, choose(history)).user

    told = user(fast, slow, wrong[0], said)
    assert "program 3" in told and "program 1" in told and "program 2" not in told
    assert "followed by a reply without a new program" in told and "send one program" in told
    assert "step 2: PASSED, 2 ms modelled" in told
    assert "leave it" not in told
    assert "the last of 3 failures in a row: leave it" in user(fast, *wrong)
    assert "failures" not in user(fast, slow)
    mended = judged(6, Verdict.PASSED, 3.0)
    assert "failures" not in user(fast, *wrong, mended) and "This brought no gain" in user(fast, *wrong, mended)
    assert "No program has passed yet" in user(*wrong)
    assert "you declined" in user(Attempt(1, "refused", note="not this"))


RUN_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from coda_synth.agent.loop import Budget, Settings, synthesize
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Reply
from tests.test_loop import TASK, ReadingJudge, better, fenced, new_run

class Endless:
    name, model = "endless", ""
    def propose(self, request):
        print(len(request.attempts), flush=True)
        return Reply(fenced(better(len(request.attempts))))

synthesize(TASK, Endless(), ReadingJudge(), new_run(Path(sys.argv[1])), Settings(Budget(attempts=10**6, minutes=60)))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_loads_whole(tmp_path: Path, how: signal.Signals) -> None:
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", RUN_UNTIL_KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for _ in range(10):
            said = int(process.stdout.readline())
        process.send_signal(how)
        said = max([said, *map(int, process.stdout.read().split())])
    assert process.returncode == (-signal.SIGKILL if how is signal.SIGKILL else 0)
    run, attempts = Store(tmp_path).load("run")
    assert run.task == TASK.name
    assert said <= len(attempts) <= said + 1  # the author is asked for step n + 1 when n are on the disk
    assert [a.step for a in attempts] == list(range(1, len(attempts) + 1))
    assert all(a.evaluation and a.evaluation.verdict is Verdict.PASSED for a in attempts[:said])


def test_no_key_reaches_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that quotes the key in its error, and one that answers: neither leaves it on the disk."""
    from coda_synth.agent.providers import make

    from tests.fake_llm_server import FakeService

    secret = "sk-secret-0123456789abcdef"
    monkeypatch.setenv("ANTHROPIC_API_KEY", secret)
    with FakeService(fenced(GOOD), key=secret) as service:
        writer = new_run(tmp_path)
        author = make("anthropic", Options(model="ok", base_url=service.url))
        synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=1)))
        service.key = "another"
        with pytest.raises(ProviderError, match="refuses the key in ANTHROPIC_API_KEY"):
            synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=2)))
    assert len(writer.attempts) == 1
    written = [p.read_text() for p in writer.folder.rglob("*") if p.is_file()]
    assert len(written) > 8
    assert not any(secret in text for text in written)


def test_an_outcome_says_its_reason() -> None:
    assert Outcome((), None, Stop.MINUTES).reason == "minutes used"


def test_a_new_measured_best_can_be_judged_again_by_the_command_lines_judge() -> None:
    """Confirmation asks for a seed of its own (agent/confirm.py)."""
    from coda_synth.agent.cli_session import JudgeOnDemand
    from coda_synth.agent.config import Config

    with JudgeOnDemand(Config(device="cpu")) as judge:
        found = judge.evaluate(Candidate(TASK.name, LOOPING), seed=11, measure=False)
    assert (found.verdict, found.seed) == (Verdict.REJECTED, 11)

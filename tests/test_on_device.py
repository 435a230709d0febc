"""A trial's visit to the device, with an interpreter in its place: beside other checks or after them, and given up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator import checking
from coda_synth.evaluator.aside import Aside, Ended
from coda_synth.evaluator.child import Child, ChildCrashed, ChildRaised
from coda_synth.evaluator.compilers import Compilers
from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.judge import Judge
from coda_synth.evaluator.locating import guilty_call
from coda_synth.evaluator.on_device import OnDevice
from coda_synth.evaluator.references import References
from coda_synth.evaluator.trial import StageFailed, Trial
from coda_synth.tasks.catalog import worked_candidate

NAME = "linear_residual"
ROOT = Path(__file__).resolve().parent.parent
TESTS = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """With an interpreter for a GPU, and three reference children on any machine."""
    with Judge(device="cpu") as made:
        made.gpu = Child("coda_synth.evaluator.worker", environment=INTERPRETED)
        made.references = References([Child("coda_synth.evaluator.oracle") for _ in range(3)])
        yield made
        for child in made.references:
            child.close()


def visit(judge: Judge, source: str = "", alone: bool = False, name: str = NAME) -> tuple[Trial, OnDevice]:
    """alone: without references of its own."""
    candidate = Candidate(name, source or worked_candidate(name))
    trial = Trial(candidate, judge._describe(name, "bfloat16"), 5, lambda _: None)
    trial.environment = {"device": "an interpreter", "sms": "2"}
    judge._read(trial)
    judge._plan(trial)
    found = OnDevice(trial, judge, None if alone else judge._shares(True)[2], (), small_alone=True)
    found._small = found._small[-3:]  # the shapes that the task checks: an interpreter is slow
    return trial, found


def test_beside_other_checks_it_finds_what_it_finds_after_them(judge: Judge) -> None:
    trial, beside = visit(judge)
    with beside:
        beside.begin()
        assert beside._stream._aside
        beside.finish(measure=False)
    later, after = visit(judge, alone=True)
    with after:
        after.begin()
        assert not after._stream._aside
        after.finish(measure=False)
    assert [(c.sizes, c.seed, c.error_ratio) for c in trial.checks] == [
        (c.sizes, c.seed, c.error_ratio) for c in later.checks
    ]
    assert len(trial.checks) == 3 and all(c.error_ratio <= 1 for c in trial.checks)


def test_what_it_finds_wrong_is_told_where_it_is_waited_for(judge: Judge) -> None:
    trial, beside = visit(judge, worked_candidate(NAME).replace("+ ", "- "))
    with beside:
        beside.begin()
        beside._stream._aside._thread.join()  # type: ignore[union-attr]
        assert trial.checks == []
        with pytest.raises(StageFailed, match="INCORRECT"):
            beside.finish(measure=False)
    assert len(trial.checks) == 1 and trial.checks[0].error_ratio > 1


def test_a_candidate_that_failed_elsewhere_and_hangs_there_is_not_waited_for(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "PATIENCE_S", 0.2)
    judge.gpu.ready()
    trial, beside = visit(judge)
    assert judge.gpu.pid
    os.kill(judge.gpu.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(ValueError, match="elsewhere"), beside:
        beside.begin()
        raise ValueError("elsewhere")
    assert time.monotonic() - start < 20 and trial.checks == []
    again, unhindered = visit(judge)
    with unhindered:
        unhindered.begin()
        unhindered.finish(measure=False)
    assert len(again.checks) == 3


@pytest.mark.slow
def test_131_a_context_that_a_candidate_spoilt_unseen_is_not_the_next_ones(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised on the GPU after it had failed elsewhere, so that nobody waits for what it raised."""
    name = "residual_rmsnorm_swiglu"
    monkeypatch.setattr(judge, "gpu", Child("compromised_worker", environment=INTERPRETED | {"PYTHONPATH": TESTS}))
    text = worked_candidate(name)
    attack = '"""attack: spoils its process for good, as an illegal address does"""' + text[text.index('"""', 3) + 3 :]
    try:
        _, beside = visit(judge, attack, name=name)
        with pytest.raises(ValueError, match="elsewhere"), beside:
            beside.begin()
            beside._stream._aside._thread.join()  # type: ignore[union-attr]
            assert isinstance(beside._stream._aside._error, ChildRaised)  # type: ignore[union-attr]
            raise ValueError("elsewhere")
        trial, honest = visit(judge, name=name)
        with honest:
            honest.begin()
            honest.finish(measure=False)
        assert len(trial.checks) == 3
    finally:
        judge.gpu.close()


def test_134_a_candidate_that_failed_waits_for_no_compilation(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the GPU's child ended for it, which has nothing to do with it."""
    compiling = Compilers(lambda: Child("slow_compiler", environment={"PYTHONPATH": TESTS}))
    monkeypatch.setattr(judge, "compilers", compiling)
    try:
        _, beside = visit(judge)
        warm = judge.gpu.pid
        compiling.start({"seconds": 60})
        start = time.monotonic()
        with pytest.raises(ValueError, match="elsewhere"), beside:
            beside.begin()
            raise ValueError("elsewhere")
        assert time.monotonic() - start < checking.PATIENCE_S and judge.gpu.pid == warm
    finally:
        compiling.close()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("delay", [0.3, 1.5])
def test_136_ctrl_c_while_a_candidate_hangs_waits_for_no_limit(judge: Judge, count: int, delay: float) -> None:
    text = worked_candidate(NAME)
    hangs = f'"""attack: hangs"""{text[text.index(chr(34) * 3, 3) + 3 :]}'
    with Judge(device="cpu") as other:
        other.references = References([*judge.references][:count])
        other.interpreter.close()
        other.interpreter = Child("compromised_worker", environment=INTERPRETED | {"PYTHONPATH": TESTS})
        assert other.evaluate(Candidate(NAME, text), seed=3).verdict is Verdict.PASSED  # it is warm
        threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            other.evaluate(Candidate(NAME, hangs), seed=4)
        assert time.monotonic() - start < 8 and threading.active_count() <= 2
        assert other.evaluate(Candidate(NAME, text), seed=3).verdict is Verdict.PASSED
        other.references = References([])  # they are the other judge's to end


def test_references_are_shared_among_those_who_ask_at_once() -> None:
    def sizes(count: int, parts: int) -> list[int]:
        made = References([Child("coda_synth.evaluator.oracle") for _ in range(count)])
        return [len(list(part)) for part in made.shared(parts)]

    assert sizes(1, 3) == [1] and sizes(2, 3) == [1, 1] and sizes(3, 3) == [1, 1, 1] and sizes(4, 3) == [1, 1, 2]
    assert sizes(5, 3) == [1, 2, 2]


@pytest.mark.slow
def test_135_a_second_interpreter_finds_what_one_finds(judge: Judge) -> None:
    """Every check of one, in its order, and the first failure of what ran here goes before that of what ran beside."""
    found = {}
    for count in (1, 3):
        with Judge(device="cpu") as other:
            other.references = References([*judge.references][:count])
            good = other.evaluate(Candidate(NAME, worked_candidate(NAME)), seed=3)
            wrong = worked_candidate(NAME).replace("+ ", "+ 1e-2 + ")
            bad = other.evaluate(Candidate(NAME, wrong), seed=3)
            assert bool(other.second_interpreter.pid) == (count > 1)
            other.references = References([])  # they are the other judge's to end
        assert good.verdict is Verdict.PASSED and bad.verdict is Verdict.INCORRECT
        found[count] = [(c.stage, c.form, c.sizes, c.seed, c.error_ratio) for c in good.checks], bad.diagnostics
    assert found[1] == found[3] and len(found[1][0]) > 15


def test_no_large_oracle_is_drawn_ahead() -> None:
    references = References([Child("coda_synth.evaluator.oracle") for _ in range(4)])
    small, large = {"T": 64, "D": 64, "V": 64}, {"T": 512, "D": 4096, "V": 128256}
    cases = [Case("device", sizes, seed, "normal", "auto") for seed, sizes in enumerate((small, small, large, small))]
    assert list(references.coming(cases[0], cases[1:])) == cases[1:2]


def test_what_is_planned_is_for_the_first_shape_of_the_task(judge: Judge) -> None:
    """Labels are in no order of letters, and the schedules depend on which comes first."""
    known = judge._describe(NAME, "bfloat16")
    large = known.headline[1]
    facts = replace(known, time_shapes={"last letter": {**large, "T": 64}, "first letter": large})
    trial = Trial(Candidate(NAME, worked_candidate(NAME)), facts, 5, lambda _: None)
    judge._read(trial)
    judge._plan(trial)
    program = read(worked_candidate(NAME), facts.signature)
    few, many = (
        lower(program, facts.signature, sizes, hopper=True, processors=132).schedules
        for sizes in facts.time_shapes.values()
    )
    assert dict(trial.schedules) == dict(few) != dict(many)


def test_140_a_call_is_not_looked_for_where_no_process_starts() -> None:
    """The candidate's crash is its verdict all the same, and not the judge's failure."""
    worker = Child("channel_child", environment={"CHANNEL_CHILD_STILLBORN": "1", "PYTHONPATH": TESTS})
    assert guilty_call(worker, {}, 20) is None


# ---- aside -----------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_aside_is_raised_in_whoever_waits() -> None:
    def work(ended: Ended) -> None:
        raise ChildCrashed("gone")

    aside = Aside(work, list)
    with pytest.raises(ChildCrashed, match="gone"):
        aside.wait()
    aside.end()


def test_work_that_looks_up_is_not_killed() -> None:
    seen = threading.Event()

    def work(ended: Ended) -> None:
        assert ended.wait(10)
        seen.set()

    Aside(work, list).end(patience_s=5)
    assert seen.is_set()


def test_133_what_was_killed_is_dead_before_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large process takes its time to die, and would be taken for a living one until then."""
    monkeypatch.setenv("PYTHONPATH", TESTS)
    asked, idle = Child("channel_child"), Child("channel_child")

    def work(ended: Ended) -> None:
        asked.request("hang", 60)

    try:
        idle.request("hold", 60, {"bytes": 1 << 30})
        aside = Aside(work, lambda: [asked, idle])
        time.sleep(0.3)
        aside.end()
        assert idle.request("echo", 20, {"text": "again"}).data["said"] == "again"
    finally:
        asked.close()
        idle.close()

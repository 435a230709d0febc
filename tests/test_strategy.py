"""Strategies are functions of the history alone; the tuner changes schedules alone; equivalents are recognised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from coda_synth.agent.bench import Cell, Share, lines, median
from coda_synth.agent.lessons import Lesson, LessonsError, changed, damaged, distil, learn, load, save, told
from coda_synth.agent.loop import Budget, Settings, Stop, synthesize
from coda_synth.agent.planner_tune import read_hints
from coda_synth.agent.provider import Reply
from coda_synth.agent.strategy import CHILDREN, HINTS, PARENTS, STRATEGIES, beam, with_tuning
from coda_synth.agent.tuner import Exhausted, tuned, with_hints
from coda_synth.coda_api.canonical import canonical
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate, Timing, Verdict
from coda_synth.runs.record import Attempt, Run
from coda_synth.tasks.catalog import worked_candidate

from tests.test_loop import GOOD, TASK, Author, ReadingJudge, better, fenced, judged, new_run

RUN = Run("run", TASK.name, "author", "one", {}, "2026-11-29T10:00:00+00:00", "0.1.0")


def measured(step: int, source: str, ms: float, parent: str | None = None, author: str = "person") -> Attempt:
    attempt = judged(step, Verdict.PASSED)
    assert attempt.evaluation
    candidate = Candidate(TASK.name, source, author, parent)
    timing = Timing("8b", {}, "H200", ms, ms * 0.99, ms * 1.01, 10, 1.0, 0.0, ())
    return replace(
        attempt, candidate=candidate, evaluation=replace(attempt.evaluation, candidate=candidate.id, timings=(timing,))
    )


def test_a_beam_begins_apart_and_gives_each_parent_its_children() -> None:
    history: tuple[Attempt, ...] = ()
    parents, hints = [], []
    for step in range(1, PARENTS * (1 + CHILDREN) + 1):
        choice = beam(history)
        assert choice.alone == (step <= PARENTS)
        parents.append(choice.focus.step if choice.focus else 0)
        hints.append(choice.hint)
        history += (judged(step, Verdict.PASSED, ms=10.0 - step),)
    assert parents == [0, 0, 2, 2, 2, 1, 1, 1]
    assert len(set(hints[PARENTS:])) == min(len(HINTS), PARENTS * CHILDREN)
    after = beam(history)
    assert after.focus is history[-1]  # the next generation starts from the best


def test_best_of_n_shows_no_history(tmp_path: Path) -> None:
    author = Author([Reply(fenced(better(n))) for n in range(3)])
    settings = Settings(Budget(attempts=3), strategy="best-of-n")
    synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), settings)
    assert len({request.prompt for request in author.asked}) == 1


def test_the_tuner_changes_the_schedule_and_nothing_else() -> None:
    hinted = with_hints(GOOD, {"project": {"block_m": 64, "stages": 4}})
    assert read_hints(hinted) == {"project": {"block_m": 64, "stages": 4}}
    assert canonical(read(hinted)) == canonical(read(GOOD)) and with_hints(hinted, {}) == GOOD
    block = worked_candidate("residual_rmsnorm_swiglu")
    assert canonical(read(with_hints(block, {"gate_up": {"warps": 4}}))) == canonical(read(block))


def test_tuner_only_asks_the_author_once(tmp_path: Path) -> None:
    author = Author([Reply(fenced(GOOD))])
    settings = Settings(Budget(attempts=9), strategy="tuner-only")
    outcome = synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), settings)
    assert len(author.asked) == 1 and outcome.stop is Stop.DONE and len(outcome.attempts) > 2
    assert {a.candidate.author for a in outcome.attempts[1:] if a.candidate} == {"tuner"}
    assert all("Schedule: project with" in a.note for a in outcome.attempts[1:])


def test_a_new_measured_best_is_tuned_and_the_tuner_costs_no_attempts() -> None:
    strategy = with_tuning(STRATEGIES["refine"], 2)
    first = (measured(1, GOOD, 2.0),)
    choice = strategy(first)
    assert choice.candidate is not None and choice.candidate.author == "tuner"
    more = (
        *first,
        measured(2, choice.candidate.source, 1.9, first[0].candidate.id if first[0].candidate else "", "tuner"),
    )
    again = strategy(more)
    assert again.candidate is not None and again.candidate.source != choice.candidate.source
    full = (*more, measured(3, again.candidate.source, 2.1, author="tuner"))
    assert strategy(full).candidate is None
    with pytest.raises(Exhausted):
        tuned(())


def test_an_equivalent_program_is_not_judged_again(tmp_path: Path) -> None:
    turned = GOOD.replace("gemm(y, w) + x", "x + gemm(y, w)").replace("project", "add_it").replace('"M"', '"R"')
    other = with_hints(GOOD, {"project": {"block_m": 64}})
    author, judge = Author([Reply(fenced(t)) for t in (GOOD, turned, other)]), ReadingJudge()
    outcome = synthesize(TASK, author, judge, new_run(tmp_path), Settings(Budget(attempts=3)))
    assert [a.outcome for a in outcome.attempts] == ["evaluated", "duplicate", "evaluated"]
    assert (
        outcome.attempts[1].note.startswith("written differently, but with the same launches") and len(judge.asked) == 2
    )


# -- lessons


def test_lessons_are_measured_pairs(tmp_path: Path) -> None:
    parent = measured(1, GOOD, 2.0)
    assert parent.candidate
    child = measured(2, with_hints(GOOD, {"project": {"stages": 4}}), 1.6, parent.candidate.id)
    noise = measured(3, with_hints(GOOD, {"project": {"stages": 5}}), 2.01, parent.candidate.id)
    guessed = replace(
        judged(4, Verdict.PASSED, 0.1), candidate=Candidate(TASK.name, better(1), parent=parent.candidate.id)
    )
    (lesson,) = distil(RUN, (parent, child, noise, guessed))
    assert str(lesson) == "stages 4 instead of default: 1.25x faster (2 to 1.6 ms; linear_residual, H200)"
    assert learn(tmp_path, RUN, (parent, child)) == 1 and learn(tmp_path, RUN, (parent, child)) == 0
    assert load(tmp_path) == (lesson,) and told((lesson,), "x", "H200") == (str(lesson),)
    assert told((lesson,), TASK.name, "another device") == ()
    save(tmp_path, ())
    assert load(tmp_path) == ()


def test_a_damaged_lesson_costs_no_other(tmp_path: Path) -> None:
    """It is told, and stays until a person takes it away."""
    known = (Lesson("t", "H200", "s", "one", 2.0, 1.0, "run", 1), Lesson("t", "H200", "s", "two", 2.0, 1.0, "run", 2))
    save(tmp_path, known)
    path = tmp_path / "lessons.jsonl"
    path.write_bytes(b'{"task": "cut of\xff\n' + path.read_bytes())
    assert load(tmp_path) == known and save(tmp_path, known[:1]) == known[:1] == load(tmp_path)
    (said,) = damaged(tmp_path)
    assert said.startswith(f"{path}, line 1 is no lesson and is left out (")
    path.unlink()
    path.mkdir()
    with pytest.raises(LessonsError, match="remove it to begin anew"):
        load(tmp_path)


def test_runs_that_end_together_lose_no_lesson(tmp_path: Path) -> None:
    parent = measured(1, GOOD, 2.0)
    assert parent.candidate
    child = measured(2, with_hints(GOOD, {"project": {"stages": 4}}), 1.6, parent.candidate.id)
    runs = [replace(RUN, id=f"run{number}") for number in range(12)]
    threads = [Thread(target=learn, args=(tmp_path, run, (parent, child))) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {lesson.run for lesson in load(tmp_path)} == {run.id for run in runs}


def test_what_changed_is_said() -> None:
    two = GOOD.replace("@program", '@kernel\ndef more(x: Tensor["M", "N"]):\n    return {"y": x * 1.5}\n\n\n@program')
    two = two.replace('    return {"out": a.out}', '    b = more(a.out)\n    return {"out": b.y}')
    counted = "2 launches instead of 1; 2 stored matrices instead of 1"
    assert changed(GOOD, two) == counted  # the docstring says nothing new
    assert (
        changed(GOOD, two.replace("only rounding.", "only rounding. A pass\nfollows.")) == f"{counted}; A pass follows."
    )
    assert changed(GOOD, GOOD) == "" and changed(GOOD, "broken(") == ""


# -- the matrix


def test_shares_and_medians_have_intervals() -> None:
    assert Share(8, 10).interval == pytest.approx((0.490, 0.943), abs=0.001)
    assert str(Share(0, 0)) == "n = 0" and Share(5, 5).interval[1] == 1.0
    assert median([3.0, 1.0, 2.0]).low is None and median([]).value is None
    ten = median([float(i) for i in range(10)])
    assert (ten.value, ten.low, ten.high) == (4.5, 1.0, 8.0)


def test_a_line_of_the_matrix() -> None:
    good, bad = judged(1, Verdict.PASSED), judged(1, Verdict.INCORRECT)
    runs = [
        (Cell("t", "a", "refine", 1), (good,)),
        (Cell("t", "a", "refine", 2), (bad, replace(good, step=2))),
        (Cell("t", "a", "refine", 3), (bad, Attempt(2, "duplicate", Candidate("t", "x")))),
        (Cell("t", "a", "beam", 1), (measured(1, GOOD, 1.05),)),
    ]
    first, second = lines(runs, 0.1, 1.0, "compile")
    assert (first.strategy, str(first.near), first.runs) == ("beam", "1/1 (21% to 100%)", 1)
    assert (second.pass_at_1.hits, second.passed.hits, second.to_pass.value, second.saved) == (1, 2, 1.5, 1)
    assert second.near.n == second.fast.n == 0  # nothing was measured

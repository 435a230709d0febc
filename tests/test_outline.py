"""What an author is told of earlier attempts in a line, and of each in full: changes, times by call, what is left."""

from __future__ import annotations

import dataclasses

from coda_synth.agent.examples import examples
from coda_synth.agent.feedback import feedback
from coda_synth.agent.outline import line
from coda_synth.coda_api.canonical import kernel_forms
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Modelled, Verdict
from coda_synth.runs.record import Attempt
from coda_synth.tasks.catalog import task_names, worked_candidate

NAME = "linear_residual"
GOOD = worked_candidate(NAME)


def attempt(step: int, source: str, ms: float, parent: str | None = None, spills: int = 0, **hints: int) -> Attempt:
    candidate = Candidate(NAME, source, parent=parent)
    model = Modelled("8b", {}, "H200", 1, 1, 0.5, ms, 0.9, 0.9, {"a": ms - 0.1, "f": 0.1})
    evaluation = Evaluation(
        candidate.id,
        NAME,
        Verdict.PASSED,
        "check",
        1,
        checks=(Check("meaning", {}, "normal", 1, "reference", 0.25),),
        resources=(Resources("a", "project", 168, spills, 200_000, 8, 0.0),),
        modelled=(model,),
        schedules={"a": Schedule(block_n=128, mainloop="hopper", slice_n=64).with_hints(hints)},
        profile=("8b: a: 1 GB, 1 TFLOP, bound by shared memory; 9 tiles; this tile leaves 89% of the peak",),
    )
    return Attempt(step, "evaluated", candidate, evaluation)


def test_a_line_names_the_call_that_changed_its_time_its_spills_and_its_cause() -> None:
    first = attempt(1, GOOD, 1.2)
    text = GOOD.replace("@kernel", "@kernel(stages=4)")
    second = attempt(2, text, 1.1, first.candidate.id if first.candidate else None, 96, stages=4)
    assert line(second, (first, second)) == (
        "step 2: PASSED, 1.1 ms modelled (a 1, f 0.1); against step 1 a: stages=4 instead of 3;"
        " a (project) spills 96 B; a: this tile leaves 89% of the peak"
    )
    assert "against" not in line(first, (first, second))


def test_the_report_says_what_was_chosen_what_is_left_to_win_and_the_margin() -> None:
    told = feedback(attempt(1, GOOD, 1.2))
    assert "Schedule of a: block_m=128, block_n=128, block_k=64, stages=3, warps=8, group_m=8, slice_n=64, main" in told
    assert "1.2 ms; floor 0.9 ms, so 25.0% of it is left to win; bound 0.5 ms." in told
    assert "0.25 times the allowed one" in told and "3 stages of 32,768, the rest 101,696" in told
    assert "nothing is left to win" in feedback(attempt(1, GOOD, 0.9))


def test_no_example_holds_a_kernel_of_the_task() -> None:
    forms = {name: kernel_forms(read(worked_candidate(name))) for name in task_names()}
    for name in task_names():
        shown = examples(name)
        assert len(shown) == 3 and name not in shown
        assert not any(forms[name] & forms[other] for other in shown)
    assert forms["llama_unit_backward"] & forms["swiglu_backward"]  # there is something to keep back


def test_a_kernel_is_known_again_under_other_names() -> None:
    renamed = GOOD.replace("project", "other").replace('"N"', '"COLUMNS"')
    assert kernel_forms(read(renamed)) == kernel_forms(read(GOOD)) != frozenset()
    changed = GOOD.replace("+ x", "+ 2.0 * x")
    assert changed != GOOD and not kernel_forms(read(changed)) & kernel_forms(read(GOOD))


def test_an_older_record_without_schedules_has_its_line_too() -> None:
    first = attempt(1, GOOD, 1.2)
    assert first.evaluation is not None
    bare = dataclasses.replace(first.evaluation, schedules={}, profile=())
    assert line(dataclasses.replace(first, evaluation=bare)) == "step 1: PASSED, 1.2 ms modelled (a 1.1, f 0.1)"

"""What an author is told of earlier attempts in a line, and of each in full: changes, times by call, what is left."""

from __future__ import annotations

import dataclasses

from coda_synth.agent.examples import examples
from coda_synth.agent.feedback import feedback
from coda_synth.agent.no_gain import no_gain
from coda_synth.agent.outline import line
from coda_synth.agent.prompting import prompt
from coda_synth.agent.strategy import choose
from coda_synth.agent.untried import untried
from coda_synth.coda_api.canonical import kernel_forms
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Modelled, Verdict
from coda_synth.evaluator.remedies import over_shared, warnings
from coda_synth.evaluator.signature import signature
from coda_synth.runs.record import Attempt
from coda_synth.tasks.catalog import task as find
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


def test_a_line_shows_the_code_that_changed_and_no_words_of_its_author() -> None:
    first = attempt(1, GOOD, 1.2)
    text = GOOD.replace('"""', '"""So is this: ', 1).replace("+ x", "+ x + 0.0 * x")
    said = line(second := attempt(2, text, 1.2, first.candidate.id if first.candidate else None), (first, second))
    assert "against step 1 - `" in said and " + `" in said and "0.0 * x" in said and "So is" not in said
    assert "against" not in line(attempt(2, GOOD.replace('"""', '"""So: ', 1), 1.2, first.candidate.id), (first,))


def test_the_report_says_what_was_chosen_what_is_left_to_win_and_the_margin() -> None:
    told = feedback(attempt(1, GOOD, 1.2))
    assert "Schedule of a: block_m=128, block_n=128, block_k=64, stages=3, warps=8, group_m=8, slice_n=64, main" in told
    assert "1.2 ms; its GEMMs alone 0.9 ms, so 25.0% of the modelled time lies above them; bound 0.5 ms." in told
    assert "0.25 times the allowed one" in told and "3 stages of 32,768, the rest 101,696" in told
    assert "nothing is left to win" in feedback(attempt(1, GOOD, 0.9))
    first = attempt(1, GOOD, 1.2).evaluation
    assert first
    moved = dataclasses.replace(first, modelled=(dataclasses.replace(first.modelled[0], floor_ms=1.0),))
    assert "its least bytes alone 1 ms" in feedback(dataclasses.replace(attempt(1, GOOD, 1.2), evaluation=moved))


def test_the_report_of_a_gemm_that_did_not_build_says_its_stages() -> None:
    """They are what its shared memory depends on, and no build says which call has a GEMM."""
    passed = attempt(1, GOOD, 1.2)
    assert passed.evaluation
    said = (Diagnostic("OverShared", "the call a takes too much"),)
    failed = dataclasses.replace(
        passed.evaluation, verdict=Verdict.BUILD_ERROR, stage="build", diagnostics=said, resources=(), modelled=()
    )
    told = feedback(dataclasses.replace(passed, evaluation=failed))
    assert "Schedule of a: block_m=128, block_n=128, block_k=64, stages=3" in told


def test_done_is_expected_where_nothing_is_left_to_win() -> None:
    for ms, expected in ((0.9, True), (0.903, True), (1.2, False)):
        history = (attempt(1, GOOD, ms),)
        user = prompt(find(NAME), history, choose(history)).user
        assert ("the reply that is expected" in user) == expected != ("Send one program that improves" in user)
    told = prompt(find(NAME))
    assert "A launch costs about 3 us" in told.system and "K takes 1, 7, 48, 53, 64" in told.user


def test_a_lead_that_the_model_cannot_tell_is_said_to_be_none() -> None:
    for first, second, said in ((1.1, 1.104, "step 2"), (1.104, 1.1, "step 1"), (1.1, 1.2, "")):
        history = (attempt(1, GOOD, first), attempt(2, GOOD + "#\n", second))
        user = prompt(find(NAME), history, choose(history)).user
        assert user.count(f"Against {said}, the next best, it has no lead, since") == bool(said)


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


def told(task: str, source: str, *attempts: Attempt) -> list[str]:
    typed = signature(find(task))
    shapes = [*find(task).time_shapes.values(), *find(task).check_shapes]
    return untried(typed, attempts or (judged(task, source),), device("H200"), shapes)


def judged(task: str, source: str) -> Attempt:
    candidate = Candidate(task, source)
    found = Evaluation(candidate.id, task, Verdict.INCORRECT, "check", 1, (Diagnostic("R", "no"),))
    return Attempt(1, "evaluated", candidate, found)


def test_what_is_possible_alone_is_called_untried() -> None:
    assert told("rmsnorm_backward", worked_candidate("rmsnorm_backward")) == []  # gamma's own gradient is asked for
    assert told("lm_head_cross_entropy", worked_candidate("lm_head_cross_entropy")) == []  # a partial needs a finisher
    passes = " ".join(told("rmsnorm_linear", worked_candidate("rmsnorm_linear")))
    assert "folding a vector of weights (gamma)" in passes and "launches" not in passes  # passes are due there
    assert "folding" not in " ".join(told("linear_bias", worked_candidate("linear_bias")))  # nothing runs along b


def test_tiles_are_counted_by_call_with_those_that_were_chosen() -> None:
    first = attempt(1, GOOD, 1.2)
    (said,) = [s for s in told(NAME, GOOD, first) if "mainloop" in s]
    assert said.startswith("in the call a: ") and "hopper 128 x 256" in said and "hopper 128 x 128" not in said
    assert "pingpong 128 x 256" not in said
    second = attempt(2, GOOD + "#\n", 1.1, block_n=256)
    assert "hopper 128 x 256" not in " ".join(told(NAME, GOOD, first, second))


def test_tiles_that_are_refused_are_not_offered() -> None:
    first = attempt(1, GOOD, 1.2)
    text = GOOD.replace("@kernel", '@kernel(mainloop="pingpong", block_n=64)')
    assert "pingpong 128 x 64" in " ".join(told(NAME, GOOD, first))
    for rule, offered in (("TileFit", False), ("ScheduleHint", False), ("UnknownName", True)):
        error = Evaluation(NAME, NAME, Verdict.REJECTED, "read", 1, (Diagnostic(rule, "no"),))
        refused = Attempt(2, "evaluated", Candidate(NAME, text), error)
        said = " ".join(told(NAME, GOOD, first, refused))
        assert ("pingpong 128 x 64" in said) == offered and "pingpong 128 x 128" in said and "hopper 128 x 64" in said


def test_tiles_that_hold_no_group_are_not_offered_and_every_long_call_has_a_line() -> None:
    name = "rmsnorm_qkv_rope"
    source = worked_candidate(name)
    program = read(source, signature(find(name)))
    gemms = [c.name for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm]
    candidate = Candidate(name, source)
    shape = Schedule(block_n=256, mainloop="hopper")
    times = {call: 1.0 for call in gemms[:2]} | {call: 0.1 for call in gemms[2:]}
    model = Modelled("8b", {}, "H200", 1, 1, 0.5, sum(times.values()), 0.9, 0.9, times)
    passed = (Check("meaning", {}, "normal", 1, "reference", 0.25),)
    found = Evaluation(candidate.id, name, Verdict.PASSED, "check", 1, checks=passed, modelled=(model,))
    found = dataclasses.replace(found, schedules=dict.fromkeys(gemms, shape))
    said = [s for s in told(name, source, Attempt(1, "evaluated", candidate, found)) if "mainloop" in s]
    assert [s.partition(":")[0] for s in said] == [f"in the call {call}" for call in gemms[:2]]
    assert "x 128" in said[0] and "x 64" not in said[0]  # heads of 128 columns


def test_a_program_without_gain_is_told_of_the_cure_that_its_report_names() -> None:
    best, later = attempt(1, GOOD, 1.1), attempt(2, GOOD + "#\n", 1.2, spills=96)
    assert no_gain(attempt(2, GOOD, 1.1), best, (best,), device("H200")) == (
        "This brought no gain: leave it, and improve the best instead."
    )
    assert later.evaluation
    slow = "8b: a: 1 GB; 3 stages do not hide the latency of their loads, which leaves 80% (4 would); modelled 1 ms"
    told = dataclasses.replace(later.evaluation, profile=(slow,))
    assert "stages" not in no_gain(
        dataclasses.replace(later, evaluation=told), best, (best,), device("H200")
    )  # no room
    told = dataclasses.replace(told, resources=(dataclasses.replace(told.resources[0], shared_bytes=190_000),))
    after = dataclasses.replace(later, evaluation=told)
    said = no_gain(after, best, (best, after), device("H200"))
    assert (
        "not tried: stages=4 in the call a; slice_n=32 in the call a, which spills" in said and "leave it" not in said
    )
    deeper = attempt(3, GOOD + "##\n", 1.2, stages=4)
    assert "stages=4" not in no_gain(after, best, (best, after, deeper), device("H200"))


def test_of_a_program_without_gain_the_faster_call_is_worth_keeping() -> None:
    best, other = attempt(1, GOOD, 1.1), attempt(2, GOOD + "#\n", 1.2)
    assert other.evaluation
    model = dataclasses.replace(other.evaluation.modelled[0], calls_ms={"a": 0.9, "f": 0.3})
    mixed = dataclasses.replace(other, evaluation=dataclasses.replace(other.evaluation, modelled=(model,)))
    said = no_gain(mixed, best, (best, mixed), device("H200"))
    assert "a takes 0.9 ms, not 1, which is worth keeping; f 0.3 ms, not 0.1, as the best has it" in said


def test_a_spill_is_told_with_what_its_own_unit_can_do() -> None:
    spilt = Resources("a", "project", 168, 96, 200_000, 8, 0.0)
    (said,) = warnings(spilt, True, Schedule(slice_n=64, mainloop="hopper"))
    assert "96 bytes" in said.message and "slice_n=32 or block_n=128 takes" in said.message
    assert "takes no hints" in warnings(spilt, False, None)[0].message
    assert "warps" in warnings(spilt, False, Schedule(split_k=1))[0].message
    assert warnings(dataclasses.replace(spilt, spill_bytes=0), True, Schedule()) == []


def test_what_would_fit_is_the_widest_slice_and_the_most_stages() -> None:
    big = Resources("a", "project", 168, 0, 300_000, 8, 0.0)
    said = over_shared(big, Schedule(stages=4, slice_n=128), device("H200"))
    assert "slice_n=32 (about 222,456) or stages=2 (about 201,696)" in said


def test_a_pass_that_takes_long_has_a_line_of_tiles() -> None:
    name = "linear_backward"
    candidate = Candidate(name, worked_candidate(name))
    program = read(candidate.source, signature(find(name)))
    (call,) = (c.name for c in program.live_calls() if isinstance(c.unit, Kernel) and not c.unit.gemm)
    shape = Schedule(block_m=32, block_n=256, stages=2, mainloop="portable")
    passed = (Check("meaning", {}, "normal", 1, "reference", 0.25),)
    for ms, expected in ((0.4, True), (0.02, False)):
        times = {call: ms, **{c.name: 1.2 for c in program.live_calls() if c.name != call}}
        model = Modelled("8b", {}, "H200", 1, 1, 0.5, sum(times.values()), 0.9, 0.9, times)
        found = Evaluation(candidate.id, name, Verdict.PASSED, "check", 1, checks=passed, modelled=(model,))
        found = dataclasses.replace(found, schedules={call: shape})
        said = [s for s in told(name, candidate.source, Attempt(1, "evaluated", candidate, found)) if "pass" in s]
        assert bool(said) == expected
    whole = dataclasses.replace(found, modelled=(dataclasses.replace(model, calls_ms={}),))
    (line_of,) = [s for s in told(name, candidate.source, Attempt(1, "evaluated", candidate, whole)) if "pass" in s]
    assert line_of.startswith(f"in the call {call}: the pass over tiles of (block_m x block_n) 16 x 128")
    assert "32 x 256" not in line_of and "64 x 256" in line_of

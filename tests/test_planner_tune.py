"""The planner as an author: its replies follow from the attempts alone, and its schedules from what the judge said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from coda_synth.agent.planner import Planner, derive
from coda_synth.agent.planner_emit import kernel_names
from coda_synth.agent.planner_tune import read_hints
from coda_synth.agent.provider import Prompt, Reply, Request
from coda_synth.agent.reply import extract
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.evaluation import Baseline, Candidate, Check, Evaluation, Modelled, Timing, Verdict
from coda_synth.evaluator.trace import Graph, trace_task
from coda_synth.runs.record import Attempt
from coda_synth.tasks.catalog import task

Judging = Callable[[dict[str, dict[str, int]], str], Evaluation]
NAME = "linear_swiglu"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace_task(task(NAME))


def ask(graph: Graph, attempts: tuple[Attempt, ...]) -> Reply:
    return Planner().propose(Request(graph.task, Prompt("", ""), attempts, lambda: graph))


def run(graph: Graph, judging: Judging, most: int = 60) -> tuple[tuple[Attempt, ...], Reply]:
    """Attempts until the author is done, judged by a rule of the test's."""
    attempts: tuple[Attempt, ...] = ()
    while (reply := ask(graph, attempts)).outcome == "text" and len(attempts) < most:
        candidate = Candidate(graph.task, extract(reply.text), "planner/rules")
        evaluation = judging(read_hints(candidate.source), candidate.id)
        attempts += (Attempt(len(attempts) + 1, "evaluated", candidate, evaluation),)
    return attempts, reply


def schedule(hints: dict[str, dict[str, int]]) -> Schedule:
    return Schedule().with_hints(next(iter(hints.values()), {}))


def passed(candidate: str, estimate: float, spills: int = 0, measured: float | None = None) -> Evaluation:
    sizes = {"T": 8192}
    check = Check("meaning", sizes, "normal", 1, "reference", 0.1)
    resources = (Resources("a", "linear_silu", 200, spills, 150_000, 4, 1.0),)
    modelled = (Modelled("only", sizes, "H200", 1, 1, 0.5, estimate, 0.9),)
    bare = (Baseline("bare_gemm", 0.9, 0.9, 0.9),)
    timing = Timing("only", sizes, "H200", measured or 1, measured or 1, measured or 1, 9, 0.5, 0.1, bare)
    timings = (timing,) if measured else ()
    return Evaluation(
        candidate,
        NAME,
        Verdict.PASSED,
        "measure",
        1,
        checks=(check,),
        resources=resources,
        modelled=modelled,
        timings=timings,
    )


def failed(candidate: str, verdict: Verdict, rule: str) -> Evaluation:
    return Evaluation(candidate, NAME, verdict, "build", 1, diagnostics=(Diagnostic(rule, "said so"),))


def texts(attempts: tuple[Attempt, ...]) -> list[str]:
    return [a.candidate.source for a in attempts if a.candidate]


def test_the_first_reply_is_the_derived_program_with_the_default_schedule(graph: Graph) -> None:
    text = extract(ask(graph, ()).text)
    assert "@kernel\n" in text and "interleave(w_gate, w_up" in text
    assert ask(graph, ()) == ask(graph, ())


def test_without_a_measurement_it_compares_tiles_and_stops(graph: Graph) -> None:
    attempts, reply = run(graph, lambda hints, id: passed(id, 1.0 + 0.1 * bool(hints)))
    assert 2 <= len(attempts) <= 4
    assert reply.outcome == "done" and "nothing was measured" in reply.text and "step 1" in reply.text


def test_hints_that_were_chosen_anyway_are_not_judged_again(graph: Graph) -> None:
    """What the first program was carried out with is the first tile that would be compared: the second is."""

    def second(**ran: object) -> Schedule:
        text = extract(ask(graph, ()).text)
        found, candidate = passed("", 2.0), Candidate(NAME, text, "planner/rules")
        chosen = {"a": replace(Schedule(mainloop="hopper"), **ran)}  # type: ignore[arg-type]
        judged = replace(found, candidate=candidate.id, schedules=chosen)
        return schedule(read_hints(extract(ask(graph, (Attempt(1, "evaluated", candidate, judged),)).text)))

    assert (second().block_m, second().block_n) == (128, 128)
    assert (second(block_n=128).block_m, second(block_n=128).block_n) == (128, 256)
    assert second(mainloop="pingpong").block_n == 256  # turns are not what a hint of "auto" gives
    assert second(stages=4).block_n == 256 and second(stages=4).stages == 3


def test_passes_without_a_gemm_have_no_sum_to_cut() -> None:
    name = "rmsnorm_linear"
    graph = trace_task(task(name))
    text = extract(ask(graph, ()).text)
    assert "gemm" in text and text.count("@kernel") > 1
    found = replace(passed("", 2.0), task=name)
    model = replace(found.modelled[0], sizes=task(name).time_shapes["llama3-8b"])
    candidate = Candidate(name, text, "planner/rules")
    judged = Attempt(1, "evaluated", candidate, replace(found, candidate=candidate.id, modelled=(model,)))
    assert extract(ask(graph, (judged,)).text) != text


def test_spills_are_answered_first_and_in_figures(graph: Graph) -> None:
    attempts, _ = run(graph, lambda hints, id: passed(id, 1.0, 0 if schedule(hints).slice_n == 32 else 2056))
    assert [schedule(read_hints(t)).slice_n for t in texts(attempts)[:3]] == [0, 64, 32]
    assert "2,056 bytes" in texts(attempts)[1]
    assert all(schedule(read_hints(t)).slice_n == 32 for t in texts(attempts)[3:])


def test_a_build_that_takes_too_much_is_made_shallower_then_smaller(graph: Graph) -> None:
    def judging(hints: dict[str, dict[str, int]], id: str) -> Evaluation:
        return (
            passed(id, 1.0)
            if schedule(hints).operand_bytes() < 110_000
            else failed(id, Verdict.BUILD_ERROR, "OverShared")
        )

    attempts, _ = run(graph, judging)
    assert schedule(read_hints(texts(attempts)[1])).stages == 2
    assert "OverShared" in texts(attempts)[1]
    assert any(a.evaluation and a.evaluation.verdict is Verdict.PASSED for a in attempts)


def test_measured_times_lead_it_downhill(graph: Graph) -> None:
    def milliseconds(s: Schedule) -> float:
        return 1.0 + 0.2 * (s.block_n != 128) + 0.1 * abs(s.stages - 5) + 0.05 * (s.group_m != 16)

    attempts, reply = run(graph, lambda hints, id: passed(id, 1.0, measured=milliseconds(schedule(hints))))
    best = min((schedule(read_hints(t)) for t in texts(attempts)), key=milliseconds)
    assert (best.block_n, best.stages, best.group_m) == (128, 5, 16)
    assert reply.outcome == "done" and "neighbours" in reply.text


def test_no_schedule_is_tried_twice_and_all_can_exist(graph: Graph) -> None:
    attempts, _ = run(graph, lambda hints, id: passed(id, 1.0, measured=1.0))
    assert len(set(texts(attempts))) == len(attempts) > 8
    for text in texts(attempts):
        s = schedule(read_hints(text))
        assert s.operand_bytes() <= 232_448 and s.block_m * s.block_n <= 128 * 32 * s.warps


@pytest.mark.parametrize("verdict", [Verdict.REJECTED, Verdict.INCORRECT])
def test_a_wrong_program_is_no_matter_of_schedules(graph: Graph, verdict: Verdict) -> None:
    attempts, reply = run(graph, lambda hints, id: failed(id, verdict, "Rule"))
    assert len(attempts) == 1
    assert reply.outcome == "done" and verdict in reply.text and "fault of the planner" in reply.text


def test_it_gives_up_on_failures_that_no_schedule_mends(graph: Graph) -> None:
    attempts, reply = run(graph, lambda hints, id: failed(id, Verdict.TIMEOUT, "Timeout"))
    assert len(attempts) == 4 and "TIMEOUT" in reply.text


def test_where_no_rule_leads_on_it_is_done_with_the_reason(graph: Graph) -> None:
    """The graph of a reference with an operation that has no rule."""
    from dataclasses import replace

    nodes = tuple(replace(n, op="aten.cumsum.default") if n.op == "aten.silu.default" else n for n in graph.nodes)
    reply = ask(replace(graph, nodes=nodes), ())
    assert reply.outcome == "stuck" and "stopped at aten.cumsum.default" in reply.text and "F.silu(gate)" in reply.text


def test_passes_without_a_gemm_are_not_tuned() -> None:
    assert kernel_names(derive(trace_task(task("rmsnorm_linear")))) == ("linear",)

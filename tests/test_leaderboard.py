"""The ranking rule, the leaderboard made from the record, and a run's rows."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.evaluator.evaluation import Baseline, Candidate, Check, Evaluation, Modelled, Timing, Verdict
from coda_synth.runs.leaderboard import INDEX, board, rows
from coda_synth.runs.ranking import best, ranked
from coda_synth.runs.record import Attempt, Run, Usage
from coda_synth.runs.report import report, schedule_hints
from coda_synth.runs.store import Store

CHECKS = (Check("meaning", {"T": 3}, "normal", 1, "reference", 0.5),)


def timing(ms: float, shape: str = "8b", device: str = "H200") -> Timing:
    peers = (Baseline("bare_gemm", 2.0, 1.9, 2.1), Baseline("eager", 4.0, 3.9, 4.1))
    return Timing(shape, {"T": 8192}, device, ms, ms, ms, 50, 1.0, 0.1, peers)


def modelled(ms: float) -> Modelled:
    return Modelled("8b", {"T": 8192}, "H200", 1000, 1000, 1.0, ms, 2.0)


def attempt(
    step: int,
    source: str,
    *,
    timings: tuple[Timing, ...] = (),
    models: tuple[Modelled, ...] = (),
    spills: int = 0,
    verdict: Verdict = Verdict.PASSED,
) -> Attempt:
    candidate = Candidate("linear_swiglu", source, author="planner")
    passed = verdict is Verdict.PASSED
    evaluation = Evaluation(
        candidate.id,
        candidate.task,
        verdict,
        "measure",
        1,
        diagnostics=() if passed else (Diagnostic("Wrong", "act is off"),),
        checks=CHECKS if passed else (),
        resources=(Resources("b", "k", 128, spills, 1024, 4, 1.0),) if passed else (),
        modelled=models,
        timings=timings,
        profile=("bound by tensor cores",) if passed else (),
        seconds={"build": 2.0},
    )
    return Attempt(step, "evaluated", candidate, evaluation)


def record(root: Path, name: str, *attempts: Attempt, started: str = "2026-11-29T10:00:00+00:00") -> Store:
    store = Store(root)
    writer = store.create(Run(name, "linear_swiglu", "planner", "", {}, started, "0.1.0"))
    for one in attempts:
        writer.append(one)
    return store


def test_measured_beats_modelled_whatever_the_figures() -> None:
    slow = attempt(1, "a", timings=(timing(9.0),))
    dreamt = attempt(2, "b", models=(modelled(0.1),))
    assert ranked([dreamt, slow]) == (slow, dreamt)


def test_the_headline_shape_decides() -> None:
    first = attempt(1, "a", timings=(timing(2.0), timing(0.1, "1b")))
    second = attempt(2, "b", timings=(timing(1.9), timing(5.0, "1b")))
    assert ranked([first, second]) == (second, first)


def test_equal_times_go_to_fewer_spills_then_to_the_shorter_text_then_to_the_earlier() -> None:
    spilling = attempt(1, "a", models=(modelled(2.0),), spills=64)
    long = attempt(2, "a longer text", models=(modelled(2.0),))
    short = attempt(3, "b", models=(modelled(2.0),))
    later = attempt(4, "c", models=(modelled(2.0),))
    assert ranked([later, spilling, long, short]) == (short, later, long, spilling)


def test_what_did_not_pass_has_no_rank() -> None:
    assert best([attempt(1, "a", verdict=Verdict.INCORRECT), Attempt(2, "no_program")]) is None


def test_rows_are_best_first_and_modelled_ones_apart(tmp_path: Path) -> None:
    store = record(
        tmp_path,
        "r1",
        attempt(1, "a", timings=(timing(2.0), timing(0.5, "1b"))),
        attempt(2, "b", timings=(timing(1.25),)),
        attempt(3, "c", models=(modelled(1.1),)),
        attempt(4, "d", verdict=Verdict.CRASHED),
    )
    both = board(store)
    assert [(r.rank, r.step, r.shape, r.time_ms) for r in both.measured] == [
        (1, 2, "8b", 1.25),
        (2, 1, "8b", 2.0),
        (1, 1, "1b", 0.5),
    ]
    assert [(r.rank, r.step, r.measured) for r in both.modelled] == [(1, 3, False)]
    top = both.measured[0]
    assert (top.vs_bare, top.vs_eager, top.vs_compile, top.bound_share) == (1.6, 3.2, None, 0.8)
    assert (top.author, top.verdict, top.run, top.device) == ("planner", "PASSED", "r1", "H200")
    assert rows(store) == [*both.measured, *both.modelled]


def test_another_task_and_another_device_are_ranked_apart(tmp_path: Path) -> None:
    store = record(
        tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)), attempt(2, "b", timings=(timing(5.0, device="A100"),))
    )
    assert [(r.rank, r.device) for r in rows(store)] == [(1, "A100"), (1, "H200")]
    assert rows(store, "linear_rope") == []
    assert len(rows(store, "linear_swiglu")) == 2


def test_the_newest_figure_of_a_candidate_counts_not_the_luckiest(tmp_path: Path) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(1.0),)))
    record(tmp_path, "r2", attempt(1, "a", timings=(timing(1.5),)), started="2026-11-30T10:00:00+00:00")
    assert [(r.run, r.time_ms) for r in rows(store)] == [("r2", 1.5)]


def test_a_candidate_found_incorrect_later_leaves_the_board(tmp_path: Path) -> None:
    wrong = attempt(2, "a", verdict=Verdict.INCORRECT)
    store = record(
        tmp_path, "r1", attempt(1, "a", timings=(timing(1.0),)), wrong, attempt(3, "b", timings=(timing(2.0),))
    )
    assert [r.step for r in rows(store)] == [3]


def test_the_index_lies_on_the_disk_and_is_used(tmp_path: Path) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    rows(store)
    with closing(sqlite3.connect(tmp_path / INDEX)) as index:
        assert index.execute("select run, time_ms from entries").fetchall() == [("r1", 2.0)]
        index.execute("update entries set time_ms = 3.0")
        index.commit()
    assert [r.time_ms for r in rows(store)] == [3.0]  # an unchanged run is not read again


def test_the_index_follows_the_record(tmp_path: Path) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    assert len(rows(store)) == 1
    record(tmp_path, "r2", attempt(1, "b", timings=(timing(1.0),)))
    assert [r.run for r in rows(store)] == ["r2", "r1"]
    (tmp_path / "r2" / "run.json").unlink()
    assert [r.run for r in rows(store)] == ["r1"]


def test_a_run_that_grows_is_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.create(Run("r1", "linear_swiglu", "planner", "", {}, "now", "0"))
    writer.append(attempt(1, "a", timings=(timing(2.0),)))
    assert len(rows(store)) == 1
    writer.append(attempt(2, "b", timings=(timing(1.0),)))
    assert [r.step for r in rows(store)] == [2, 1]


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to look at" * 100])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    before = rows(store)
    for path in (tmp_path / INDEX).parent.iterdir():
        path.write_bytes(content)
    assert rows(store) == before


def test_an_index_of_another_version_is_rebuilt(tmp_path: Path) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    before = rows(store)
    with closing(sqlite3.connect(tmp_path / INDEX)) as index:
        index.execute("drop table entries")
        index.execute("pragma user_version = 999")
    assert rows(store) == before


def test_an_index_that_cannot_be_written_is_made_in_memory(tmp_path: Path) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    (tmp_path / INDEX.parent).write_text("a file where the folder should be")
    assert [r.run for r in rows(store)] == ["r1"]


def test_no_record_is_an_empty_board_and_makes_nothing(tmp_path: Path) -> None:
    assert rows(Store(tmp_path / "none")) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("known", [False, True], ids=["unseen", "indexed"])
@pytest.mark.parametrize("file", ["attempts.jsonl", "run.json"])
def test_a_damaged_run_is_a_note_and_the_others_rank(tmp_path: Path, file: str, known: bool) -> None:
    store = record(tmp_path, "r1", attempt(1, "a", timings=(timing(2.0),)))
    record(tmp_path, "r2", attempt(1, "b", timings=(timing(1.0),)))
    assert not known or len(rows(store)) == 2
    (tmp_path / "r2" / file).write_text("{broken\n")
    both = board(store)
    assert [r.run for r in both.measured] == ["r1"]
    assert "r2" in both.notes[0] and "is not JSON" in both.notes[0]


def test_a_runs_rows_and_totals() -> None:
    run = Run("r1", "linear_swiglu", "anthropic", "m", {}, "now", "0")
    paid = replace(attempt(1, "a", models=(modelled(2.5),), spills=8), usage=Usage(100, 60, 0, 10, 0.5, 3.0))
    said = Attempt(2, "no_program", note="send one program", usage=Usage(10, 0, 0, 1, 0.25, 1.0))
    wrong = attempt(3, "b", verdict=Verdict.INCORRECT)
    made = report(run, (paid, said, wrong))
    assert made.best == paid
    assert [(r.result, r.time_ms, r.spill_bytes, r.why) for r in made.rows] == [
        ("PASSED", 2.5, 8, "bound by tensor cores"),
        ("no_program", None, None, "send one program"),
        ("INCORRECT", None, None, "Wrong: act is off"),
    ]
    assert (made.rows[0].vs_bare, made.rows[0].measured, made.rows[0].seconds) == (0.8, False, 5.0)
    assert (made.totals.attempts, made.totals.passed, made.totals.input_tokens) == (3, 1, 110)
    assert (made.totals.cached_tokens, made.totals.output_tokens, made.totals.usd) == (60, 11, 0.75)


def test_the_why_of_an_attempt_is_what_sets_it_apart_from_the_best() -> None:
    def passed(step: int, hint: str, ms: float, *said: str) -> Attempt:
        made = attempt(step, f"@kernel{hint}\ndef up(): ...\n", models=(modelled(ms),))
        assert made.evaluation
        lines = ("; ".join(("llama: a: 1 GB, bound by memory", *said, f"modelled {ms} ms, 100%")), "other: a: 9 GB")
        return replace(made, evaluation=replace(made.evaluation, profile=lines))

    best = passed(1, "", 1.0, "2 waves")
    more = (passed(2, "(block_n=128)", 2.0, "4 waves"), passed(3, "(stages=2)", 3.0, "2 waves"))
    wrong = attempt(4, "b", verdict=Verdict.INCORRECT)
    assert wrong.evaluation
    mapped = replace(wrong.evaluation, diagnostics=(Diagnostic("Wrong", "act is off\n  .#."),))
    rows = report(Run("r", "t", "p", "m", {}, "", "0"), (best, *more, replace(wrong, evaluation=mapped))).rows
    assert [r.why for r in rows] == [
        "call a: 1 GB, bound by memory; 2 waves",
        "block_n=128: 4 waves",
        "stages=2: call a: 1 GB, bound by memory",
        "Wrong: act is off",
    ]
    assert schedule_hints("@kernel(stages=2)\ndef a(): ...\n@kernel()\ndef b(): ...\n") == "a: stages=2"
    assert schedule_hints("def (") == schedule_hints("\0") == ""


def test_one_unpriced_call_makes_the_total_unpriced() -> None:
    run = Run("r1", "t", "p", "m", {}, "now", "0")
    calls = (Usage(10, 0, 0, 1, 0.25), Usage(10, 0, 0, 1, None))
    made = report(run, tuple(Attempt(i, "no_program", usage=u) for i, u in enumerate(calls, 1)))
    assert made.totals.usd is None
    assert report(run, ()).totals.usd == 0


def test_why_the_best_is_best_names_the_part_of_the_rule() -> None:
    def why(*attempts: Attempt) -> str:
        return report(Run("r1", "t", "p", "m", {}, "now", "0"), attempts).why_best

    quick, slow = attempt(1, "a", timings=(timing(1.5),)), attempt(2, "b", timings=(timing(2.0),))
    dreamt, spilling = attempt(3, "c", models=(modelled(1.0),)), attempt(4, "d", models=(modelled(1.0),), spills=8)
    assert why() == "no candidate passed"
    assert why(quick) == "the only candidate that passed every check"
    assert why(quick, slow) == "of 2 that passed, the lowest measured time: 1.5 ms, against 2 ms for step 2, the next"
    assert "an estimate never outranks a measurement" in why(dreamt, slow)
    close, far = (attempt(6, "e", models=(modelled(ms),)) for ms in (1.004, 1.006))
    assert why(dreamt, close).endswith("the next: no lead, since between modelled times 0.5% is the least that counts")
    assert "no lead" not in why(dreamt, far) + why(
        attempt(7, "a", timings=(timing(1.5),)), attempt(8, "b", timings=(timing(1.504),))
    )
    assert "which spills 8 bytes and not 0" in why(spilling, dreamt)
    assert "spills no less and is no shorter" in why(dreamt, attempt(5, "cc", models=(modelled(1.0),)))

"""Receipts: written, read, repeated; what was changed in one is found."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.evaluator.evaluation import Baseline, Candidate, Timing, Verdict
from coda_synth.evaluator.judge import Judge
from coda_synth.runs.export import write
from coda_synth.runs.receipt import Receipt, ReceiptError, compare, read_receipt, receipt_data
from coda_synth.tasks.catalog import task, worked_candidate

from tests.test_cli import LINEAR_SWIGLU, cli, environ, refused

NAME = "linear_residual"
CANDIDATE = Candidate(NAME, worked_candidate(NAME))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def receipt(judge: Judge) -> Receipt:
    return Receipt("coda-synth", CANDIDATE, judge.evaluate(CANDIDATE))


def test_a_receipt_has_what_it_takes_and_survives_the_disk(receipt: Receipt, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt_data(receipt.candidate, receipt.evaluation)))
    found = read_receipt(file)
    assert (found.candidate, found.evaluation) == (receipt.candidate, receipt.evaluation)
    kept = {"torch", "triton", "python", "version", "target", "dtype", "task_hash", "generated_hash"}
    assert kept <= set(found.evaluation.environment) and found.evaluation.seed >= 0


def test_the_same_seed_repeats_it_to_the_bit(judge: Judge, receipt: Receipt) -> None:
    again = judge.evaluate(CANDIDATE, seed=receipt.evaluation.seed)
    assert [c.error_ratio for c in again.checks] == [c.error_ratio for c in receipt.evaluation.checks]
    found = compare(receipt.evaluation, again)
    assert found.holds and found.notes == ()


def test_an_exports_receipt_is_one_and_is_regraded(receipt: Receipt, tmp_path: Path) -> None:
    package = write(task(NAME), receipt.candidate, receipt.evaluation, tmp_path / "out")
    file = tmp_path / "out" / "src" / package / "receipt.json"
    found = read_receipt(file)
    assert (found.candidate, found.evaluation) == (receipt.candidate, receipt.evaluation)
    done = cli("regrade", str(file), "--device", "cpu", "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["holds"] is True, done.stderr


def test_what_was_changed_is_found(receipt: Receipt) -> None:
    true = receipt.evaluation
    worst = max(true.checks, key=lambda check: check.error_ratio)  # the seed is secret: another one may be exact
    better = tuple(replace(c, error_ratio=c.error_ratio / 2) if c is worst else c for c in true.checks)
    assert "of the allowed error" in compare(replace(true, checks=better), true).broken[0]
    other = replace(true, environment={**true.environment, "task_hash": "0"})
    assert "the task's source" in compare(other, true).broken[0]
    elsewhere = replace(true, environment={**true.environment, "torch": "9"}, checks=better)
    found = compare(elsewhere, true)  # another torch may round otherwise: told, and no breach
    assert found.holds and any("torch: 9" in note for note in found.notes)
    wrong = replace(true, verdict=Verdict.PASSED)
    failed = replace(true, verdict=Verdict.INCORRECT, diagnostics=true.diagnostics or (_said(),))
    assert "the verdict was PASSED and is INCORRECT" in compare(wrong, failed).broken[0]


def _said():
    from coda_synth.coda_api.errors import Diagnostic

    return Diagnostic("WrongNumbers", "wrong")


def test_a_slower_time_breaks_it_and_another_device_does_not(receipt: Receipt) -> None:
    def timed(ms: float, device: str = "H200"):
        return replace(
            receipt.evaluation, timings=(Timing("8b", {"T": 1}, device, ms, ms * 0.99, ms * 1.01, 50, 0.1, 0.0, ()),)
        )

    assert compare(timed(1.0), timed(1.03)).holds
    assert "1 ms" in compare(timed(1.0), timed(1.2)).broken[0]
    found = compare(timed(1.0), timed(1.2, "H100"))
    assert found.holds and any("not measured again" in note for note in found.notes)


def test_a_baseline_that_was_made_slow_breaks_it(receipt: Receipt) -> None:
    def timed(eager: float):
        peer = Baseline("eager", eager, eager * 0.99, eager * 1.01)
        return replace(receipt.evaluation, timings=(Timing("8b", {"T": 1}, "H200", 1, 1, 1, 50, 0.1, 0.0, (peer,)),))

    assert compare(timed(2.0), timed(2.05)).holds and compare(timed(2.0), timed(3.0)).holds
    assert "eager is faster than was said" in compare(timed(20.0), timed(2.0)).broken[0]


@pytest.mark.parametrize(
    ("low", "median", "high"), [(1, 0.5, 2), (1e-9, math.nan, math.inf), (0.9, 1, math.inf), (0, 0, 0)]
)
def test_times_that_are_none_make_no_receipt(receipt: Receipt, low: float, median: float, high: float) -> None:
    """An interval without an end would hold whatever is measured."""
    for timing in (
        Timing("8b", {"T": 1}, "H200", median, low, high, 50, 0.1, 0.0, ()),
        Timing("8b", {"T": 1}, "H200", 1, 1, 1, 50, 0.1, 0.0, (Baseline("eager", median, low, high),)),
    ):
        with pytest.raises(ValueError, match="its times at 8b are none"):
            Receipt("", CANDIDATE, replace(receipt.evaluation, timings=(timing,)))


def test_a_wide_interval_does_not_excuse_a_slower_time(receipt: Receipt) -> None:
    claimed = replace(receipt.evaluation, timings=(Timing("8b", {"T": 1}, "H200", 0.1, 0.1, 99.0, 50, 0.1, 0.0, ()),))
    real = replace(receipt.evaluation, timings=(Timing("8b", {"T": 1}, "H200", 2.0, 1.9, 2.1, 50, 0.1, 0.0, ()),))
    assert "0.1 ms" in compare(claimed, real).broken[0]


def test_a_seed_that_gave_other_checks_breaks_it(judge: Judge, receipt: Receipt) -> None:
    other = replace(receipt.evaluation, seed=receipt.evaluation.seed + 1)
    broken = compare(other, judge.evaluate(CANDIDATE, seed=other.seed)).broken
    assert any("of the stage meaning are none that the seed" in said for said in broken)
    elsewhere = tuple(replace(check, form="pointer", sizes={"T": 8}) for check in receipt.evaluation.checks)
    assert compare(replace(receipt.evaluation, checks=elsewhere), receipt.evaluation).holds  # another GPU's forms
    for seed in (-1, 1 << 70):
        with pytest.raises(ValueError, match="no seed"):
            Receipt("", CANDIDATE, replace(receipt.evaluation, seed=seed))


def test_a_seed_that_was_chosen_is_not_the_only_one(receipt: Receipt) -> None:
    true = receipt.evaluation
    assert compare(true, true, replace(true, seed=4)).holds
    fresh = replace(true, seed=4, verdict=Verdict.INCORRECT, diagnostics=(_said(),), modelled=())
    assert "on the fresh seed 4 the verdict is INCORRECT" in compare(true, true, fresh).broken[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made_by": 1}', "[" * 100_000, "\0"])
def test_what_is_no_receipt_is_told_so(text: str, tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(text)
    with pytest.raises(ReceiptError, match="is no receipt"):
        read_receipt(file)


def test_a_receipt_that_is_none_says_so_without_moving_the_cursor(receipt: Receipt, tmp_path: Path) -> None:
    data = receipt_data(receipt.candidate, receipt.evaluation)
    data["evaluation"]["environment"]["\x1b[2J\x1b[1;1HPASSED"] = 3
    (tmp_path / "r.json").write_text(json.dumps(data))
    done = cli("regrade", "r.json", cwd=tmp_path)
    assert done.returncode == 2 and "PASSED" in done.stderr and "\x1b" not in done.stdout + done.stderr


def test_an_evaluation_of_another_candidate_is_no_receipt(receipt: Receipt) -> None:
    with pytest.raises(ValueError, match="not of its candidate"):
        Receipt("", Candidate(NAME, "other"), receipt.evaluation)


def test_a_reader_who_goes_away_takes_no_judgement_with_him(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coda_synth", "evaluate", str(LINEAR_SWIGLU), "--task", "linear_swiglu"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for name, more in (("text.json", ()), ("data.json", ("--json",))):
        asked = [*command, "--device", "cpu", "--receipt", name, *more]
        with subprocess.Popen(asked, cwd=tmp_path, env=environ(), text=True, **pipes) as running:
            assert running.stdout is not None and running.stderr is not None
            running.stdout.close()
            assert running.stderr.read() == ""
        assert running.returncode == 141
        assert read_receipt(tmp_path / name).evaluation.verdict is Verdict.PASSED


def test_the_commands(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    done = cli("evaluate", str(LINEAR_SWIGLU), "--task", "linear_swiglu", "--receipt", str(file), cwd=tmp_path)
    assert done.returncode == 0 and file.is_file() and done.stdout.endswith(f"\nReceipt: {file}\n")
    done = cli("regrade", str(file), "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["holds"] is True
    data = json.loads(file.read_text())
    data["evaluation"]["checks"][-1]["error_ratio"] /= 2
    file.write_text(json.dumps(data))
    done = cli("regrade", str(file), cwd=tmp_path)
    assert done.returncode == 1 and "does NOT hold" in done.stdout and "broken:" in done.stdout
    refused(cli("regrade", "nowhere.json", cwd=tmp_path), 2, "cannot read")

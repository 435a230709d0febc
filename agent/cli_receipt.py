"""`coda-synth regrade`: repeats the judgement of a receipt on this machine. Also writes receipts."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_tasks import known_target, known_task

if TYPE_CHECKING:
    from coda_synth.evaluator.evaluation import Candidate, Evaluation
    from coda_synth.runs.receipt import Comparison, Receipt


def regrade(args: argparse.Namespace) -> Exit:
    """OK if everything that could be repeated here came out the same."""
    from coda_synth.agent import config
    from coda_synth.agent.cli_view import print_json, progress
    from coda_synth.evaluator.evaluation import Verdict
    from coda_synth.evaluator.judge import Judge
    from coda_synth.runs.receipt import compare

    receipt = _receipt(args.receipt)
    before = receipt.evaluation
    task, target = known_task(before.task), known_target(before.environment.get("target", "sm_90"))
    with progress(args) as screen, Judge(device=config.of(args).device, target=target) as judge:
        after = judge.evaluate(
            receipt.candidate,
            seed=before.seed,
            measure=not args.no_measure and bool(before.timings),
            shapes=tuple(t.shape for t in before.timings),
            dtype=before.environment.get("dtype", "bfloat16"),
            on_stage=lambda stage: screen.say(f"{task}: {stage}"),
        )
        fresh = None
        if before.verdict is after.verdict is Verdict.PASSED:
            screen.say(f"{task}: a fresh seed")
            dtype = before.environment.get("dtype", "bfloat16")
            fresh = judge.evaluate(receipt.candidate, measure=False, dtype=dtype)
    found = compare(before, after, fresh)
    if args.json:
        print_json({"holds": found.holds, "broken": found.broken, "notes": found.notes, "evaluation": after})
    else:
        _print(receipt, found)
    return Exit.OK if found.holds else Exit.NOT_PASSED


def write_receipt(path: str, candidate: Candidate, evaluation: Evaluation) -> None:
    """Raises Failure where it cannot be written."""
    from coda_synth.runs.receipt import receipt_data

    try:
        Path(path).write_text(json.dumps(receipt_data(candidate, evaluation), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}", Exit.ENVIRONMENT) from None


def _receipt(name: str) -> Receipt:
    from coda_synth.runs.receipt import ReceiptError, read_receipt

    try:
        return read_receipt(Path(name))
    except OSError as error:
        raise Failure(f"cannot read {name}: {os.strerror(error.errno) if error.errno else error}") from None
    except ReceiptError as error:
        raise Failure(str(error)) from None


def _print(receipt: Receipt, found: Comparison) -> None:
    before = receipt.evaluation
    from coda_synth.agent.cli_view import console

    said = f"{before.task}, candidate {before.candidate}, seed {before.seed}: {before.verdict}"
    screen = console()
    for line in (
        f"{said}, {'it holds' if found.holds else 'it does NOT hold'}",
        *(f"  broken: {line}" for line in found.broken),
        *(f"  note: {line}" for line in found.notes),
    ):
        screen.print(line, markup=False, soft_wrap=True)

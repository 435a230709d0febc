"""`coda-synth evaluate`: judge one candidate file. Also how any command reads a candidate's text."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure, must_be_writable
from coda_synth.agent.cli_found import note_counters
from coda_synth.agent.cli_tasks import known_target, known_task
from coda_synth.evaluator.evaluation import Candidate, Evaluation

LARGEST_CANDIDATE = 1 << 20  # bytes; the worked candidates are under 3 kB


def evaluate(args: argparse.Namespace) -> Exit:
    """Prints the evaluation; OK if the candidate passed."""
    if args.receipt:
        must_be_writable(args.receipt, "the receipt ")
    candidate, evaluation = judged(args, args.file)
    from coda_synth.agent.cli_receipt import write_receipt
    from coda_synth.agent.cli_report import report
    from coda_synth.agent.cli_view import console, print_json
    from coda_synth.evaluator.evaluation import Verdict

    try:
        if args.receipt:  # first: a reader who goes away takes no judgement with him
            write_receipt(args.receipt, candidate, evaluation)
    finally:  # where it cannot be written, the verdict is not lost
        if args.json:
            print_json(evaluation)
        else:
            screen = console()
            for part in report(evaluation, candidate.source, "<stdin>" if args.file == "-" else args.file):
                screen.print(part)
    if args.receipt and not args.json:
        screen.print(f"Receipt: {args.receipt}", markup=False, soft_wrap=True)
    return Exit.OK if evaluation.verdict is Verdict.PASSED else Exit.NOT_PASSED


def judged(args: argparse.Namespace, file: str) -> tuple[Candidate, Evaluation]:
    """Reads a candidate's file and judges it; bad input is found before anything heavy is loaded."""
    settings = config.of(args)
    known_target(settings.target)
    task = known_task(args.task)
    candidate = Candidate(task=task, source=candidate_text(file))
    from coda_synth.agent.cli_view import progress
    from coda_synth.evaluator.judge import Judge

    measure = not getattr(args, "no_measure", False)
    made = Judge(settings.device, settings.target, settings.seed, counters=settings.counters)
    with progress(args) as screen, made as judge:
        note_counters(judge, measure)
        evaluation = judge.evaluate(candidate, measure=measure, on_stage=lambda stage: screen.say(f"{task}: {stage}"))
    return candidate, evaluation


def candidate_text(name: str) -> str:
    """The text of a candidate file, or of stdin for "-"; raises Failure for anything that can hold no program."""
    try:
        data = sys.stdin.buffer.read(LARGEST_CANDIDATE + 1) if name == "-" else _file(Path(name))
    except OSError as error:
        raise Failure(f"cannot read {name}: {os.strerror(error.errno) if error.errno else error}") from None
    if len(data) > LARGEST_CANDIDATE:
        raise Failure(f"{name} is larger than {LARGEST_CANDIDATE // 1024} kB: that is no candidate")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failure(f"{name} is not UTF-8 text") from None
    if not text.strip():
        raise Failure(f"{name} is empty; `coda-synth prompt TASK` shows what a candidate looks like")
    return text


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_CANDIDATE + 1)

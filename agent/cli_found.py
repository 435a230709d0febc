"""Which runs of the record a person means; what cannot be read is said in one line, and the others are gone on with."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coda_synth.agent import config

if TYPE_CHECKING:
    from coda_synth.evaluator.judge import Judge
    from coda_synth.runs.store import Record, Store


def store_of(args: argparse.Namespace) -> Store:
    """The record that the settings name."""
    from coda_synth.runs.store import Store

    return Store(Path(config.of(args).runs))


def runs_option(args: argparse.Namespace) -> str:
    """What the next command needs to find the same record, as a shell reads it."""
    return f" --runs {shlex.quote(str(args.runs))}" if args.runs else ""


def one_run(args: argparse.Namespace, name: str) -> Record:
    """The run that is named, or the latest ("latest") of those that can be read; raises StoreError."""
    from coda_synth.runs.store import StoreError
    from coda_synth.runs.survey import headless

    store = store_of(args)
    chosen = store.resolve(name)
    if name not in ("", "latest"):
        return store.read(chosen)
    notes = [said for folder, said in headless(store) if folder > chosen]
    for run_id in (newest := store.newest_first()):
        try:
            record = store.read(run_id)
        except StoreError as error:
            if run_id == newest[-1]:
                raise
            notes.append(f"{run_id} is left out: {error}")
        else:
            note([*notes, f"the latest run that can be read is {run_id}"] if notes else [])
            return record
    raise AssertionError("the last one is read or raises")


def every_run(args: argparse.Namespace) -> tuple[Record, ...]:
    """All runs that can be read, oldest first."""
    from coda_synth.runs.survey import survey

    records, notes = survey(store_of(args))
    note(notes)
    return records


def note_counters(judge: Judge, measure: bool = True) -> None:
    """Says that counters were asked for where there will be none: they are of what a GPU measures."""
    if judge.counters and not (measure and judge.has_gpu()):
        why = "torch sees none here" if measure and judge.device != "cpu" else "none measures here, as was asked"
        note([f"no hardware counters: they need a GPU that measures, and {why}"])


def note(lines: Iterable[str]) -> None:
    """On stderr, whatever is asked: it may change what the answer is worth."""
    for line in lines:
        print(f"coda-synth: note: {line}", file=sys.stderr)

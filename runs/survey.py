"""The record as a whole: what of it can be read, and a line for each run that cannot; nothing vanishes in silence."""

from __future__ import annotations

import os
import re

from coda_synth.runs.store import HEAD, Record, Store, StoreError

_RUN = re.compile(r"\d{8}-\d{6}-\w")  # as new_run_id makes them


def survey(store: Store) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """All runs that can be read, oldest first, and what is said of the others."""
    records, notes = [], [said for _, said in headless(store)]
    for run_id in store.ids():
        try:
            records.append(store.read(run_id))
        except StoreError as error:
            notes.append(f"{run_id} is left out: {error}")
    return tuple(records), tuple(notes)


def headless(store: Store) -> tuple[tuple[str, str], ...]:
    """Folders that have the name of a run and no head that can be opened, each with what is said of it."""
    found = []
    for folder in sorted(store.root.glob("*")) if store.root.is_dir() else ():
        if _RUN.match(folder.name):
            try:
                (folder / HEAD).open("rb").close()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                found.append((folder.name, f"{folder} is left out: its {HEAD} cannot be read ({reason})"))
    return tuple(found)

"""A program's launches one at a time, each waited for: what goes wrong is told with the call whose launch it was.

Without it a GPU tells of a bad address some time later, to whoever asks next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from coda_synth.evaluator.buffers import fingerprint
from coda_synth.evaluator.execution import Bound
from coda_synth.evaluator.facts import Fault


def run_only(bound: Bound, number: int) -> None:
    """Runs one launch of the program, counted from 0, on what those before it left behind, and waits for it."""
    if number == 0:
        bound.reset()
    places, names = itertools.count(), vars(bound.module)

    def launched(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if next(places) == number:
            kernel[grid](*arguments, **options)

    plain, names["_launched"] = names["_launched"], launched
    names["_REPEATS"].clear()  # of earlier calls, which would run them all
    try:
        bound.launch()
    finally:
        names["_launched"] = plain
        names["_REPEATS"].clear()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def traced(bound: Bound, faults: Sequence[Fault]) -> list[Fault]:
    """The faults with the call whose launch shows each first. bound: like the one that showed them, and fresh."""
    seen = [_seen(bound, fault) for fault in faults]
    calls = [""] * len(faults)
    for number, launch in enumerate(bound.generated.launches if any(seen) else ()):
        run_only(bound, number)
        for place, shows in enumerate(seen):
            if shows and not calls[place] and shows():
                calls[place] = launch.call
    told = zip(faults, calls, strict=True)
    return [replace(fault, call=call, value=_value(bound, fault, call)) if call else fault for fault, call in told]


def _seen(bound: Bound, fault: Fault) -> Callable[[], bool] | None:
    """What tells whether a fault has happened yet; None where no memory shows it."""
    guarded = {**bound.inputs, **bound.buffers}.get(fault.tensor)
    if guarded is None:
        return None
    if fault.rule == "WritesOutside":
        return lambda: not guarded.intact()
    if fault.rule == "ChangesInput":
        before = fingerprint(guarded.tensor)
        return lambda: fingerprint(guarded.tensor) != before
    return None


def _value(bound: Bound, fault: Fault, call: str) -> str:
    """Which of the call's values the tensor holds, if it is the call's own."""
    return next((b.value for b in bound.generated.buffers if (b.name, b.call) == (fault.tensor, call)), "")

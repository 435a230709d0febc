"""Schedules of one program against each other on one device: every lowering in buffers of its own, all on the same
inputs, in bursts by turns. A buffer that launches add to is put back before every run, untimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from coda_synth.coda_api.generated import Generated
from coda_synth.evaluator.execution import Bound, bind
from coda_synth.evaluator.inputs import Inputs
from coda_synth.evaluator.measured import Sample
from coda_synth.evaluator.race import Clock, Lap, race


class Contest:
    """The contestants that have entered, by name, and the inputs that all of them read."""

    def __init__(self) -> None:
        self.entered: dict[str, Bound] = {}
        self._inputs: Inputs = {}

    def enter(self, name: str, generated: Generated, made: Callable[[], Inputs], device: str) -> None:
        """Binds a lowering and runs it once, so that a kernel that does not launch is known before the race. made: the
        inputs, asked for once a contest."""
        self._inputs = self._inputs or made()
        bound = bind(generated, self._inputs, device)
        if self.entered:
            first = next(iter(self.entered.values()))
            bound = replace(bound, inputs=first.inputs, kept=first.kept)
        bound.restore()
        bound.launch()
        if device == "cuda":
            torch.cuda.synchronize()
        self.entered[name] = bound

    def leave(self) -> None:
        """Ends the contest; its memory is free."""
        self.entered, self._inputs = {}, {}

    def race(self, names: Sequence[str], seconds: float, clock: Clock) -> dict[str, Sample]:
        """Milliseconds of the whole program by contestant; they take turns in the order of `names`."""
        laps = {name: [Lap(self.entered[name].launch, self.entered[name].restore)] for name in names}
        return race(laps, seconds, clock)

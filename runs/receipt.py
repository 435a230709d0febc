"""A receipt: all that it takes to repeat a judgement elsewhere, and the comparison of the two."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coda_synth.evaluator.evaluation import Baseline, Candidate, Check, Evaluation, Timing
from coda_synth.evaluator.serial import SerialError, from_data, to_data

from coda_synth import __version__

LARGEST = 16 << 20  # bytes of a receipt's file
SLOWER = 1.05  # a repeated time up to this much above the receipt's is the same result
SEEDS = 1 << 62  # what a random generator takes
_SAME_NUMBERS = ("torch", "triton", "python")  # with these equal, a check's error ratio is equal to the last bit


class ReceiptError(Exception):
    """The file holds no receipt; one sentence that says why."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """evaluation.environment has versions, device, clocks, timer, and hashes of the task and the generated code."""

    made_by: str
    candidate: Candidate
    evaluation: Evaluation

    def __post_init__(self) -> None:
        if self.candidate.id != self.evaluation.candidate or self.candidate.task != self.evaluation.task:
            raise ValueError(f"its evaluation is not of its candidate, {self.candidate.id} for {self.candidate.task}")
        if not 0 <= self.evaluation.seed < SEEDS:
            raise ValueError(f"{self.evaluation.seed} is no seed")
        for timing in self.evaluation.timings:
            told: tuple[Timing | Baseline, ...] = (timing, *timing.baselines)
            for what in told:
                if not 0 < what.low_ms <= what.median_ms <= what.high_ms < math.inf:
                    raise ValueError(f"its times at {timing.shape} are none: a median lies in its interval, above 0 ms")


@dataclass(frozen=True, slots=True)
class Comparison:
    """broken: what does not hold any more. notes: what could not be repeated here, or differs and may."""

    broken: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.broken


def receipt_data(candidate: Candidate, evaluation: Evaluation) -> dict[str, Any]:
    """As JSON values; whoever carries a receipt may add keys of its own."""
    data: dict[str, Any] = to_data(Receipt(f"coda-synth {__version__}", candidate, evaluation))
    return {**data, "candidate": {**data["candidate"], "id": candidate.id}}


def read_receipt(path: Path) -> Receipt:
    """Raises ReceiptError for anything that is no receipt, OSError where the file cannot be read."""
    with path.open("rb") as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ReceiptError(f"{path} is larger than {LARGEST >> 20} MB: that is no receipt")
    try:
        found: Receipt = from_data(Receipt, json.loads(text))
    except (ValueError, SerialError, TypeError, RecursionError) as error:
        raise ReceiptError(f"{path} is no receipt: {error}") from None
    return found


def compare(before: Evaluation, after: Evaluation, fresh: Evaluation | None = None) -> Comparison:
    """What of `before` the repetition `after` confirms; both are of one candidate, with one seed. fresh: a judgement on
    a seed that nobody chose, since one that was chosen may be the only one on which a candidate passes."""
    broken, notes = [*_verdicts(before, after)], [*_surroundings(before, after)]
    if not broken:
        broken += _checks(before, after, notes)
        broken += _timings(before, after, notes)
    if fresh and fresh.verdict is not before.verdict:
        broken.append(f"on the fresh seed {fresh.seed} the verdict is {fresh.verdict}: {fresh.diagnostics[0]}")
    for name, what in (("task_hash", "the task's source"), ("generated_hash", "the generated code")):
        was, now = before.environment.get(name), after.environment.get(name)
        if was != now:
            place = broken if name == "task_hash" else notes
            place.append(f"{what} is another one than the receipt's ({was} then, {now} now)")
    return Comparison(tuple(broken), tuple(notes))


def _verdicts(before: Evaluation, after: Evaluation) -> Iterator[str]:
    if before.verdict is not after.verdict:
        why = f": {after.diagnostics[0]}" if after.diagnostics else ""
        yield f"the verdict was {before.verdict} and is {after.verdict}{why}"


def _surroundings(before: Evaluation, after: Evaluation) -> Iterator[str]:
    for name in ("version", *_SAME_NUMBERS, "device", "driver", "cuda"):
        was, now = (e.environment.get(name, "none") for e in (before, after))
        if was != now:
            yield f"{name}: {was} then, {now} here"


def _checks(before: Evaluation, after: Evaluation, notes: list[str]) -> Iterator[str]:
    """The same inputs must give the same error ratios where the same arithmetic ran. A stage that ran here on other
    inputs than the receipt's was never asked for its seed."""
    now = {_key(check): check for check in after.checks}
    missing = [check for check in before.checks if _key(check) not in now]
    if missing:
        notes.append(f"{len(missing)} of {len(before.checks)} checks were not repeated, as {missing[0].stage} ones")
    drawn = {_inputs(check) for check in after.checks}
    for stage in dict.fromkeys(check.stage for check in after.checks):
        own = [check for check in before.checks if check.stage == stage]
        foreign = sum(_inputs(check) not in drawn for check in own)
        if foreign > len(own) / 2:
            yield f"{foreign} of its {len(own)} checks of the stage {stage} are none that the seed {before.seed} gives"
    equal = all(before.environment.get(n) == after.environment.get(n) for n in (*_SAME_NUMBERS, "version", "device"))
    for check in before.checks:
        again = now.get(_key(check))
        if again and again.error_ratio != check.error_ratio:
            said = f"{check.stage}, {check.style}, seed {check.seed}: {check.error_ratio:.6g} of the allowed error"
            said = f"{said} then, {again.error_ratio:.6g} here"
            if equal:
                yield said
            else:
                notes.append(said)


def _inputs(check: Check) -> tuple[object, ...]:
    """What a seed alone decides; forms and sizes differ from one device to the next."""
    return check.stage, check.style, check.seed


def _key(check: Check) -> tuple[object, ...]:
    return check.stage, check.style, check.seed, check.form, tuple(sorted(check.sizes.items()))


def _timings(before: Evaluation, after: Evaluation, notes: list[str]) -> Iterator[str]:
    now = {(t.shape, t.device): t for t in after.timings}
    for timing in before.timings:
        again = now.get((timing.shape, timing.device))
        if again is None:
            notes.append(f"{timing.shape}: {timing.median_ms:.4g} ms on {timing.device} was not measured again here")
        elif again.low_ms > timing.median_ms * SLOWER:
            yield f"{timing.shape}: {_time(timing)} then, {_time(again)} here"
        elif slow := _slow_peers(timing, again):
            yield f"{timing.shape}: {slow[0]} is faster than was said: {_time(timing)} then, {_time(again)} here"
        else:
            notes.append(f"{timing.shape}: {_time(timing)} then, {_time(again)} here")


def _slow_peers(before: Timing, after: Timing) -> list[str]:
    """Baselines that took longer then than they do here: a speedup is as much theirs as the candidate's."""
    now = {baseline.name: baseline for baseline in after.baselines}
    return [b.name for b in before.baselines if b.name in now and b.median_ms > now[b.name].high_ms * SLOWER]


def _time(timing: Timing) -> str:
    peers = "".join(f", {b.name} {b.median_ms:.4g}" for b in timing.baselines)
    return f"{timing.median_ms:.4g} ms [{timing.low_ms:.4g}, {timing.high_ms:.4g}]{peers}"

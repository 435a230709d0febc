"""How far the cost model's pick is from the schedule that was measured best, on every kernel measured under several.

    python benchmarks/model.py [FILE.json ...]

Needs no GPU: the measurements are those kept in benchmarks/results. Schedules that the model cannot tell apart (within
0.1 %) share the blame: a row's loss is their mean, its worst case the slowest of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.coda_api.cost import program_cost
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks.arguments import read_by

MEASURED = Path(__file__).resolve().parent / "results" / "schedules-h200-2026-11-30.json"
_TIED = 1.001


@dataclass(frozen=True, slots=True)
class Row:
    """modelled, measured: times by schedule, each over the smallest."""

    task: str
    sizes: Mapping[str, int]
    modelled: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def picks(self) -> list[float]:
        """Measured times of what the model cannot tell from its best."""
        return [seen for said, seen in zip(self.modelled, self.measured, strict=True) if said <= _TIED]

    @property
    def loss(self) -> float:
        return mean(self.picks) - 1

    @property
    def worst(self) -> float:
        return max(self.picks) - 1


def rows(path: Path = MEASURED) -> list[Row]:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if not kept["rows"]:
        raise ValueError("it holds no rows")
    return [_row(entry, kept["device"]) for entry in kept["rows"]]


def _row(entry: Mapping[str, Any], name: str) -> Row:
    typed = signature(task(entry["task"]))
    program = read(worked_candidate(entry["task"]), typed)
    said = []
    for run in entry["over_bare"]:
        schedule = Schedule().with_hints(run["schedule"])
        schedules = {call.name: schedule for call in program.live_calls() if isinstance(call.unit, Kernel)}
        said.append(program_cost(program, typed, entry["sizes"], schedules, device(name)).seconds)
    seen = [1 / run["ratio"] for run in entry["over_bare"]]
    return Row(entry["task"], entry["sizes"], _over_least(said), _over_least(seen))


def _over_least(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(t / min(times) for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost model's picks against the schedules that were measured best")
    measured = read_by(rows, f"a file of measurements like {MEASURED.name}")
    parser.add_argument("files", nargs="*", type=measured, default=[], help=f"{MEASURED.name} by default")
    found = [row for own in parser.parse_args().files or [rows()] for row in own]
    print(f"{'task':32s}{'sizes':30s}{'loss':>7s}{'worst':>7s}  modelled / measured, over the least")
    for row in found:
        sizes = " ".join(map(str, row.sizes.values()))
        both = "  ".join(f"{a:.3f}/{b:.3f}" for a, b in zip(row.modelled, row.measured, strict=True))
        print(f"{row.task:32s}{sizes:30s}{row.loss:7.1%}{row.worst:7.1%}  {both}")
    best = sum(row.worst == 0 for row in found)
    print(
        f"the pick is the measured best in {best} of {len(found)}; mean loss {mean(r.loss for r in found):.1%},"
        f" at worst {max(r.worst for r in found):.1%}"
    )


if __name__ == "__main__":
    main()

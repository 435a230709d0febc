"""What overlapping launches gain: every task with and without, in one race, and whether both give the same bits.

    python benchmarks/overlap.py [TASK ...] [--shape 8b] [--seconds 2] [--runs 200]

Both are lowered alike but for that, read the same inputs and take turns in short bursts, launched one by one and as a
CUDA graph; the ratio is of times without over times with, above 1 where overlapping is faster. Before it, `runs` calls
with overlap, each into poisoned buffers, must give the bits of one without; a task whose bits differ is not timed. The
inputs change in place from call to call, so that nobody gets away with reading what lay somewhere a call ago.
Waits: of each launch, "-" for one that does not overlap with the one before; "portable" kernels never do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.coda_api.generated import Generated
from coda_synth.evaluator.contest import Contest
from coda_synth.evaluator.execution import Bound, rerun
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.race import Lap, rounds
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import DeviceClock, captured
from coda_synth.tasks.catalog import task, task_names
from coda_synth.tasks.spec import TaskSpec

from benchmarks import gap
from benchmarks.arguments import count, duration, task_name
from benchmarks.contest import lowered, machine


def both(spec: TaskSpec, sizes: Mapping[str, int], device: str) -> dict[str, Generated]:
    """The worked candidate's text with and without."""
    return {name: lowered(spec, sizes, device, False, overlap=name == "with") for name in ("without", "with")}


def waits(made: Generated) -> str:
    """ "q -, k end, v end" """
    return ", ".join(
        f"{one.call} {'portable' if not one.gluon else one.overlap.waits if one.overlap.early else '-'}"
        for one in made.launches
    )


def unlike(contest: Contest, runs: int) -> int:
    """How many of `runs` calls with overlap give other bits than one without, on two sets of inputs by turns."""
    without, overlapping = contest.entered["without"], contest.entered["with"]  # which share their inputs' memory
    read = {n: g.tensor for n, g in without.inputs.items() if g.tensor.is_floating_point() and n not in without.kept}
    sets = [{n: t.clone() for n, t in read.items()}, {n: t.flip(0) for n, t in read.items()}]

    def on(which: int, bound: Bound) -> dict[str, int]:
        for name, value in sets[which].items():
            read[name].copy_(value)
        return rerun(bound)

    expected = [on(which, without) for which in (0, 1)]
    return sum(on(run % 2, overlapping) != expected[run % 2] for run in range(runs))


def raced(contest: Contest, seconds: float) -> list[str]:
    """Launched one by one and as graphs: milliseconds without and with, and their ratio."""
    clock, said = DeviceClock(), []
    for how, run in (("launched", lambda bound: bound.launch), ("as a graph", lambda bound: captured(bound.launch))):
        laps = {name: [Lap(run(bound), bound.restore)] for name, bound in contest.entered.items()}
        found = rounds(laps, seconds, clock)
        gained = gap.ratio(found["without"], found["with"])
        ms = " ".join(f"{gap.figure(found[name]).value:9.4f}" for name in ("without", "with"))
        said.append(f"  {how:10s} {ms} {gained.value:8.4f}  {gained.low:.4f}-{gained.high:.4f}")
    return said


def measured(name: str, options: argparse.Namespace) -> bool:
    """Prints a task's rows; whether its bits are right."""
    spec = task(name)
    sizes = spec.time_shapes.get(options.shape) or next(iter(spec.time_shapes.values()))
    made = both(spec, sizes, "cuda")
    if not any(one.overlap.early for one in made["with"].launches):
        return True
    contest, case = Contest(), Case("device", sizes, 1, "normal", "auto")
    for how, generated in made.items():
        contest.enter(how, generated, lambda: make_inputs(spec, signature(spec), case, "cuda"), "cuda")
    print(f"{name}: {waits(made['with'])}")
    wrong = unlike(contest, options.runs)
    print(
        *([f"  WRONG: {wrong} of {options.runs} calls give other bits"] if wrong else raced(contest, options.seconds)),
        sep="\n",
    )
    contest.leave()
    torch.cuda.empty_cache()
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="what overlapping launches gain")
    parser.add_argument("tasks", nargs="*", type=task_name, help="all by default")
    parser.add_argument("--shape", default="", help="the headline's where a task has none of this name")
    parser.add_argument("--seconds", type=duration, default=2.0, help="of each race")
    parser.add_argument("--runs", type=count, default=200, help="calls whose bits are compared")
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.exit("launches overlap on Hopper alone, and there is no H100 or H200 here")
    print(f"{machine('cuda')}; ms without and with, their ratio, and its 95 % interval")
    right = [measured(name, options) for name in options.tasks or task_names()]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())

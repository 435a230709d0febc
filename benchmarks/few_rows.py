"""Products of few rows against cuBLAS: in one launch, with K cut in pieces by either mainloop, and in a stream.

    python benchmarks/few_rows.py [--rows 1 16 64 128 256] [--products 6144x4096 ...] [--seconds 2] [--json FILE]

Each product is y = x w^T with so many rows, N columns and K: the schedule that lower() chooses by itself, and of every
kind the one that the cost model calls fastest, all in one race with torch.mm (cuBLAS), on the same inputs, as CUDA
graphs. Ratios are torch.mm's time over ours, with their 95 % intervals: above 1 ours is faster. Before it each runs
several times from poisoned buffers, must give the same bits and is held against fp64. `--device cpu --tiny` shows that
it runs, in the interpreter and the simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import count, duration, on_cpu, output

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.coda_api.cost import program_cost
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule, as_hints
from coda_synth.coda_api.schedule_space import shapes
from coda_synth.evaluator.contest import Contest
from coda_synth.evaluator.execution import rerun
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.race import Lap, Run
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import captured
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks import gap
from benchmarks.contest import clock_of, machine, times, worst_row

NAME, ROWS = "linear_nt", (1, 16, 64, 96, 128, 192, 256, 320)
PRODUCTS = ("6144x4096", "4096x4096", "28672x4096", "4096x14336", "1024x4096", "5120x13824", "2048x16384", "7168x18432")
TINY = [
    Schedule(block_m=64, block_n=64, block_k=32, stages=2, warps=4 if kind == "hopper" else 8, mainloop=kind)
    for kind in ("portable", "hopper", "pingpong")
]
SMALL = [  # beside the tuner's shapes: as many stages as fit, for the reading of a weight
    *(Schedule(m, n, stages=8, warps=4, mainloop="portable") for m in (16, 32) for n in (32, 64, 128)),
    *(Schedule(64, n, stages=8, warps=4, mainloop=kind) for n in (32, 64) for kind in ("portable", "hopper")),
    *(Schedule(m, n, stages=8, mainloop="pingpong") for m, n in ((64, 128), (128, 64))),
]
SPEC, SIG = task(NAME), signature(task(NAME))
PROGRAM = read(worked_candidate(NAME), SIG)
ON = device("H200")
_WORST = 0.01  # of a row's norm: what bf16 leaves, twice over


def modelled_us(schedule: Schedule, sizes: Mapping[str, int]) -> float:
    return 1e6 * program_cost(PROGRAM, SIG, sizes, {"a": schedule}, ON).seconds


def kind_of(schedule: Schedule) -> str:
    """What a contestant is called."""
    if schedule.split_k == 1:
        return "one launch"
    if schedule.cut == "stream":
        return "stream"
    return "portable pieces" if schedule.mainloop == "portable" else "hopper pieces"


def contestants(sizes: Mapping[str, int], tiny: bool) -> dict[str, Schedule]:
    """The schedule of each kind that the model calls fastest and that lowers, and the default."""
    plain = TINY if tiny else [*SMALL, *(s for s in shapes(ON) if s.split_k == 1)]
    cuts = [(n, cut) for n in ((2,) if tiny else (2, 4, 8, 16, 32)) for cut in ("even", "stream")]
    tried = [*plain, *(replace(s, split_k=n, cut=cut) for s, (n, cut) in product(plain, cuts))]
    found = {"default": TINY[1] if tiny else lower(PROGRAM, SIG, sizes, hopper=True).schedules["a"]}
    for schedule in sorted(tried, key=lambda s: modelled_us(s, sizes)):
        if kind_of(schedule) not in found and lowers(schedule, sizes):
            found[kind_of(schedule)] = schedule
    return found


def lowers(schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    try:
        lower(PROGRAM, SIG, sizes, form="hopper", schedules={"a": schedule})
    except LoweringError:
        return False
    return True


def entered(sizes: Mapping[str, int], options: argparse.Namespace) -> tuple[Contest, dict[str, Schedule]]:
    contest, chosen = Contest(), contestants(sizes, options.tiny)
    case = Case("device", sizes, 1, "normal", "auto")
    for name, schedule in chosen.items():
        made = lower(
            PROGRAM, SIG, sizes, form="hopper", schedules={"a": schedule}, processors=3 if options.tiny else ON.sms
        )
        contest.enter(name, made, lambda: make_inputs(SPEC, SIG, case, options.device), options.device)
    return contest, chosen


def faults(contest: Contest, repeats: int) -> list[str]:
    """Who gives other bits from call to call, or errs by more than bf16 leaves."""
    inputs = next(iter(contest.entered.values())).inputs
    exact = inputs["x"].tensor.double() @ inputs["w"].tensor.double().T
    said = []
    for name, bound in contest.entered.items():
        bits = rerun(bound)
        unlike = sum(rerun(bound) != bits for _ in range(repeats - 1))
        error = worst_row(bound.outputs()["y"], exact)
        said += [f"  WRONG: {name} gives other bits in {unlike} of {repeats - 1} calls"] if unlike else []
        said += [f"  WRONG: {name} errs by {error:.1e}"] if not error <= _WORST else []
    return said


def raced(contest: Contest, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each in every round, torch.mm among them."""
    first = next(iter(contest.entered.values()))
    x, w, y = first.inputs["x"].tensor, first.inputs["w"].tensor, torch.empty_like(first.outputs()["y"])
    runs: dict[str, Run] = {name: bound.launch for name, bound in contest.entered.items()}
    runs["torch.mm"] = lambda: torch.mm(x, w.T, out=y)
    if options.device == "cuda":
        runs = {name: captured(run) for name, run in runs.items()}
    return times({name: [Lap(run)] for name, run in runs.items()}, options.seconds, clock_of(options.device))


def row_of(sizes: Mapping[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """Races one product, prints its rows, and gives them as data."""
    contest, chosen = entered(sizes, options)
    wrong = faults(contest, options.repeats)
    found = raced(contest, options)
    contest.leave()
    print(f"{sizes['T']} x {sizes['F']} x {sizes['D']}: torch.mm {1e3 * gap.figure(found['torch.mm']).value:.1f} us")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    for name, schedule in chosen.items():
        faster = gap.ratio(found["torch.mm"], found[name])
        said = f"  {name:16s} {faster.value:6.3f} [{faster.low:.3f}, {faster.high:.3f}]"
        print(f"{said}  modelled {modelled_us(schedule, sizes):6.1f} us  {as_hints(schedule)}")
    hints = {name: as_hints(schedule) for name, schedule in chosen.items()}
    modelled = {name: modelled_us(schedule, sizes) for name, schedule in chosen.items()}
    return {"sizes": dict(sizes), "schedules": hints, "modelled_us": modelled, "rounds": found, "wrong": wrong}


def sizes_of(options: argparse.Namespace) -> list[dict[str, int]]:
    if options.tiny:
        return [{"T": 72, "F": 136, "D": 200}]
    cut = [tuple(map(int, one.split("x"))) for one in options.products]
    return [{"T": rows, "F": n, "D": k} for n, k in cut for rows in options.rows]


def _product(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not NxK, as {PRODUCTS[0]} is")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="products of few rows against cuBLAS")
    parser.add_argument("--rows", type=count, nargs="+", default=ROWS)
    parser.add_argument("--products", type=_product, nargs="+", default=PRODUCTS, metavar="NxK", help="columns and K")
    parser.add_argument("--seconds", type=duration, default=2.0, help="of each race")
    parser.add_argument("--repeats", type=count, default=20, help="calls whose bits are compared")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one small product in three single runs each")
    parser.add_argument("--json", type=output, metavar="FILE")
    options = parser.parse_args()
    if options.device == "cuda" and (not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0)):
        sys.exit("pieces of Hopper's mainloops run on an H100 or H200, and there is none here; try --device cpu --tiny")
    if options.tiny:
        options.seconds, options.repeats = 0.0, 2
    clock_of(options.device)
    print(f"{machine(options.device)}; torch.mm's time over ours, its 95 % interval, and what the model says")
    rows = [row_of(sizes, options) for sizes in sizes_of(options)]
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1))
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

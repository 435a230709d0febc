"""What one call of a generated launch costs the host: the first, one on new memory, and one on memory it has seen.

    python benchmarks/host.py [TASK ...]

On a GPU, with problems so small that the device keeps up: calls are enqueued and only the time until launch returns is
taken, the median of several rounds that end in a wait which is not. A call on memory that an earlier call was given
repeats that one's launches; aim: under 10 microseconds a launch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.evaluator.execution import bind
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task

from benchmarks.arguments import task_name
from benchmarks.contest import lowered, machine

TASKS = ("linear_residual", "linear_swiglu", "residual_rmsnorm", "llama_unit_forward", "llama_unit_backward")
AIM_US = 10.0
_QUEUED = 256  # launches in flight at most: a full queue would make the host wait
_ROUNDS = 15


def call_us(call: Callable[[], object], calls: int, wait: Callable[[], object]) -> float:
    """Microseconds of the host in one call."""
    rounds = []
    for _ in range(_ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append(1e6 * (time.perf_counter() - start) / calls)
    wait()
    return median(rounds)


def measured(name: str) -> tuple[int, float, float, float]:
    """Launches of a call; microseconds of the first call, of one on memory not seen before, and of one seen."""
    spec, sig = task(name), signature(task(name))
    sizes = {symbol: 128 if symbol == "T" else 256 for symbol in next(iter(spec.time_shapes.values()))}
    made = lowered(spec, sizes, "cuda", tiny=False)
    bound = bind(made, make_inputs(spec, sig, Case("device", sizes, 1, "normal", "auto"), "cuda"), "cuda")
    start = time.perf_counter()
    bound.launch()
    first = 1e6 * (time.perf_counter() - start)
    module, given = bound.module, bound.arguments

    def unseen() -> None:
        module._REPEATS.clear()
        module.launch(**given)

    calls = max(1, _QUEUED // len(made.launches))
    new = call_us(unseen, calls, torch.cuda.synchronize)
    return len(made.launches), first, new, call_us(lambda: module.launch(**given), calls, torch.cuda.synchronize)


def main() -> int:
    parser = argparse.ArgumentParser(description="the host's share of a call")
    parser.add_argument("tasks", nargs="*", type=task_name, default=TASKS, help="five by default")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("what a call costs the host can only be measured with a GPU to launch on, and there is none here")
    print(f"{machine('cuda')}; microseconds of the host in one call")
    print(f"{'task':34s}{'launches':>9s}{'first':>12s}{'new memory':>12s}{'seen':>8s}{'a launch':>10s}")
    slow = 0
    for name in options.tasks:
        launches, first, new, seen = measured(name)
        slow += seen / launches > AIM_US
        print(f"{name:34s}{launches:9d}{first:12.0f}{new:12.1f}{seen:8.1f}{seen / launches:10.2f}", flush=True)
    print(f"{slow} above {AIM_US:.0f} microseconds a launch")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())

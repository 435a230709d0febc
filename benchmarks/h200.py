"""Operators against bare cuBLAS, eager PyTorch and torch.compile on one Hopper GPU, interleaved in one process.

    python benchmarks/h200.py [TASK ...] [--shape llama3-8b] [--seconds 2] [--autotune] [--json FILE]

For every task: the worked candidate with the schedules that the lowering chooses; its error against the reference in
float64 (worst row, relative norm), and that over eager's own; its time; and every peer's time over it, so that above 1
we are faster. bound: the cost model's floor at datasheet peaks over our time. Nothing here judges: `coda-synth
evaluate` does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.coda_api import cost
from coda_synth.coda_api.devices import UnknownDevice, device
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.baselines import bare_gemm
from coda_synth.evaluator.execution import bind
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.inputs import exact, make_inputs
from coda_synth.evaluator.race import Lap, race
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import DeviceClock
from coda_synth.tasks.catalog import task, task_names, worked_candidate

PEERS = ("bare_gemm", "eager", "compile", "max_autotune")


def worst_row(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative norm of a row's error; a row of zeros counts by its absolute error."""
    a, e = (v.double().reshape(v.shape[0] if v.dim() > 1 else 1, -1) for v in (actual, expected))
    scale = e.norm(dim=1)
    return float(((a - e).norm(dim=1) / torch.where(scale > 0, scale, 1.0)).max())


def errors(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    return max(worst_row(actual[name], expected[name]) for name in expected)


def peers(spec: Any, sizes: Mapping[str, int], inputs: Any, autotune: bool) -> dict[str, Callable[[], object]]:
    """What a candidate is timed against, each run once so that it is compiled."""
    found: dict[str, Callable[[], object]] = {"bare_gemm": bare_gemm(spec, sizes, torch.bfloat16)}
    modes: dict[str, Any] = {"eager": spec.reference, "compile": torch.compile(spec.reference, dynamic=False)}
    if autotune:
        mode = "max-autotune-no-cudagraphs"
        modes["max_autotune"] = torch.compile(spec.reference, dynamic=False, mode=mode)
    for name, function in modes.items():

        def run(function: Any = function) -> object:
            with torch.no_grad() if not spec.name.endswith("backward") else torch.enable_grad():
                return function(**inputs)

        try:
            run()
            found[name] = run
        except Exception as error:
            print(f"{spec.name}: no {name}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
            torch.cuda.empty_cache()
    return found


def measured(name: str, shape: str, seconds: float, autotune: bool) -> dict[str, Any]:
    """One task at one shape."""
    torch._dynamo.reset()
    spec, sig = task(name), signature(task(name))
    sizes = spec.time_shapes[shape]
    program = read(worked_candidate(name), sig)
    made = lower(program, sig, sizes, hopper=torch.cuda.get_device_capability() == (9, 0))
    inputs = make_inputs(spec, sig, Case("device", sizes, 1, "normal", "auto"), "cuda")
    bound = bind(made, inputs, "cuda")
    bound.launch()
    torch.cuda.synchronize()
    ours = {n: v.clone() for n, v in bound.outputs().items()}
    expected = spec.reference(**exact(inputs))
    error = errors(ours, expected)
    eager_error = errors(spec.reference(**inputs), expected)
    del expected, ours
    torch.cuda.empty_cache()
    others = peers(spec, sizes, inputs, autotune)
    laps = {"ours": [Lap(bound.launch, bound.restore)], **{n: [Lap(run)] for n, run in others.items()}}
    samples = race(laps, seconds, DeviceClock())
    try:
        floor = 1e3 * cost.bound_s(sig, spec.gemms, sizes, device(torch.cuda.get_device_name()))
    except UnknownDevice:
        floor = math.nan
    time = samples["ours"].median_ms
    return {
        "task": name,
        "shape": shape,
        "sizes": dict(sizes),
        "form": made.form,
        "schedules": {call: str(s) for call, s in made.schedules.items()},
        "error": error,
        "eager_error": eager_error,
        "ms": time,
        "interval_ms": [samples["ours"].low_ms, samples["ours"].high_ms],
        "bound": floor / time,
        **{peer: samples[peer].median_ms / time for peer in PEERS if peer in samples},
    }


def line(row: Mapping[str, Any]) -> str:
    ratios = "".join(f"{row[p]:9.3f}" if p in row else "        -" for p in PEERS)
    against = row["error"] / row["eager_error"] if row["eager_error"] else math.inf if row["error"] else 1.0
    return f"{row['task']:34s}{row['error']:9.1e}{against:8.2f}{row['ms']:9.3f}{ratios}{row['bound']:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="operators against their peers on one GPU")
    parser.add_argument("tasks", nargs="*", help="all by default")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--seconds", type=float, default=2.0, help="of racing for each task")
    parser.add_argument("--autotune", action="store_true", help="max-autotune as a peer too; slow to compile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.shape}, times of peers over ours")
    heads = "".join(f"{head:>9s}" for head in ("bare", "eager", "compile", "autotune"))
    print(f"{'task':34s}{'error':>9s}{'/eager':>8s}{'ms':>9s}{heads}{'bound':>8s}")
    rows = []
    for name in options.tasks or task_names():
        try:
            rows.append(measured(name, options.shape, options.seconds, options.autotune))
            print(line(rows[-1]), flush=True)
        except Exception as error:
            print(f"{name:34s} failed: {type(error).__name__}: {str(error)[:160]}", flush=True)
        torch.cuda.empty_cache()
    for peer in PEERS:
        found = [row[peer] for row in rows if peer in row]
        if found:
            print(f"geometric mean over {peer}: {math.exp(sum(map(math.log, found)) / len(found)):.3f} of {len(found)}")
    if options.json:
        state = driver_state("clocks.sm,power.draw,driver_version")
        head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "state": state}
        options.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Kernels under both Hopper mainloops, in short bursts and in long ones, against the bare cuBLAS GEMM of their shape.

    python benchmarks/mainloops.py [TASK[.CALL] ...] [--shape llama3-8b] [--tokens 16384] [--seconds 4] [--json FILE]
    python benchmarks/mainloops.py --device cpu --tiny

By default the products of a whole unit, forward and backward. short: one launch at a time, each behind a flush of L2,
as other benchmarks have it; long: as many in a row as take a hundredth of a second, eight times over, so that the card
runs at the clock that its power limit leaves to this kernel. What is printed is bare over ours. coda_api's
default_schedules.py follows these figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import check_shape, count, duration, on_cpu, output, task_name

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Call, Kernel, Program, Signature
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.execution import bind
from coda_synth.evaluator.race import Clock, Lap
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks import gap
from benchmarks.contest import TINY, clock_of, machine, one_line, repeated, times, tiny_sizes
from benchmarks.targets import alone, drawn

UNIT = ("llama_unit_forward", "llama_unit_backward")
_TURNS = Schedule(block_n=128, stages=5, mainloop="pingpong", slice_n=32)
_SHARED = Schedule(mainloop="hopper")
SCHEDULES = {
    "in turns": _TURNS,
    "in turns, slices of 16": replace(_TURNS, slice_n=16),
    "in turns, 16 rows a group": replace(_TURNS, group_m=16),
    "shared": _SHARED,
    "shared, 16 rows a group": replace(_SHARED, group_m=16),
}
_LONG_MS = 10.0  # about, of the launches of one long lap together


def products(name: str, call: str) -> Iterator[tuple[Call, Program, Signature]]:
    """Every product of a worked candidate, or the one of this name, as a program of its own."""
    needs = signature(task(name))
    program = read(worked_candidate(name), needs)
    for own in program.live_calls():
        if isinstance(own.unit, Kernel) and own.unit.gemm and call in ("", own.name):
            yield own, *alone(program, needs, own, ())


def texts(program: Program, needs: Signature, sizes: Mapping[str, int], tiny: bool) -> dict[str, Generated]:
    """By schedule, where a kernel can have it; the default is named beside the one that it equals."""
    if tiny:
        return {"default": lower(program, needs, sizes, schedules={"a": TINY}, processors=3)}
    found: dict[str, Generated] = {}
    for name, schedule in SCHEDULES.items():
        try:
            found[name] = lower(program, needs, sizes, hopper=True, schedules={"a": schedule})
        except LoweringError:  # no room for it
            continue
    default = lower(program, needs, sizes, hopper=True)
    for name, made in found.items():
        if made.source == default.source:
            return {f"default: {name}": made, **{other: text for other, text in found.items() if other != name}}
    return {"default": default, **found}


def measured(
    own: Call, program: Program, needs: Signature, options: argparse.Namespace, clock: Clock
) -> dict[str, Any]:
    """One product under its schedules: milliseconds of a launch, short and long, in every round."""
    sizes = _sizes(program.name, own, options)
    kernel = own.unit
    assert isinstance(kernel, Kernel) and kernel.gemm
    m, n, k = (dim.size(sizes) for dim in (kernel.rows, kernel.cols, kernel.gemm.inner))
    given = {i.name: drawn(i, sizes, options.device) for i in needs.inputs}
    a, b = (torch.randn(s, device=options.device).bfloat16() / k**0.5 for s in ((m, k), (n, k)))
    out = torch.empty(m, n, dtype=torch.bfloat16, device=options.device)
    runs: dict[str, Callable[[], object]] = {"bare": lambda: torch.mm(a, b.t(), out=out)}
    for name, made in texts(program, needs, sizes, options.tiny).items():
        runs[name] = bind(made, given, options.device).launch
        runs[name]()
    bare_ms = clock.laps([Lap(runs["bare"])] * 3)[2]
    often = 1 if options.tiny else max(1, round(_LONG_MS / bare_ms))
    launches = {f"{name}, {kind}": n for name in runs for kind, n in (("short", 1), ("long", often))}
    laps = {key: [Lap(repeated(runs[key.rpartition(", ")[0]], n))] for key, n in launches.items()}
    rounds = times(laps, options.seconds, clock)
    return {
        "task": program.name,
        "call": own.name,
        "bare": [m, n, k],
        "rounds": {key: [ms / launches[key] for ms in found] for key, found in rounds.items()},
    }


def _sizes(name: str, call: Call, options: argparse.Namespace) -> dict[str, int]:
    """Of the kernel's own symbols."""
    spec = task(name)
    sizes = tiny_sizes(spec) if options.tiny else dict(spec.time_shapes[options.shape])
    sizes |= {"T": options.tokens} if options.tokens and not options.tiny else {}
    return {symbol: dim.size(sizes) for symbol, dim in call.binding.items()}


def lines(row: Mapping[str, Any]) -> list[str]:
    rounds = row["rounds"]
    said = [f"{row['task']}.{row['call']} {','.join(map(str, row['bare']))}"]
    for name in dict.fromkeys(key.rpartition(", ")[0] for key in rounds):
        if name != "bare":
            ratios = [gap.ratio(rounds[f"bare, {kind}"], rounds[f"{name}, {kind}"]) for kind in ("short", "long")]
            said.append(f"  {name:40s}" + "".join(f"{r.value:8.3f} [{r.low:.3f}, {r.high:.3f}]" for r in ratios))
    return said


def main() -> int:
    options = _options()
    clock = clock_of(options.device)
    print(f"{machine(options.device)}; {clock.name}")
    print(f"{'time of the bare GEMM over ours':42s}{'short':>8s}{'':16s}{'long':>8s}")
    rows, failed = [], 0
    for name, call in options.kernels:
        for own, program, needs in products(name, call):
            try:
                rows.append(measured(own, program, needs, options, clock))
                print("\n".join(lines(rows[-1])), flush=True)
            except Exception as error:  # one kernel must not end the table
                failed += 1
                print(f"{name}.{own.name} failed: {one_line(error)}", flush=True)
            if options.device == "cuda":
                torch.cuda.empty_cache()
            if options.json:
                options.json.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1) + "\n")
    return int(failed > 0)


def _kernel(text: str) -> tuple[str, str]:
    """TASK or TASK.CALL"""
    name, dot, call = text.partition(".")
    if dot and call not in (names := [own.name for own, *_ in products(task_name(name), "")]):
        raise argparse.ArgumentTypeError(f"{name} has no product {call!r}; it has {', '.join(names)}")
    return task_name(name), call


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kernels under both mainloops, in short bursts and in long ones")
    parser.add_argument("kernels", nargs="*", type=_kernel, metavar="TASK[.CALL]", help="the units' by default")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--tokens", type=count, help="instead of the shape's")
    parser.add_argument("--seconds", type=duration, help="of racing for each product")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes; on a CPU always")
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    options.kernels = options.kernels or [(name, "") for name in UNIT]
    options.tiny = options.tiny or options.device == "cpu"
    options.seconds = options.seconds if options.seconds is not None else 0.0 if options.tiny else 4.0
    if not options.tiny:
        check_shape(parser, [name for name, _ in options.kernels], options.shape)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; --device cpu --tiny shows that it runs")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""What an epilogue costs: kernels and whole tasks against the bare cuBLAS GEMM of their shape, beside targets.

    python benchmarks/targets.py [NAME ...] [--seconds 2] [--json FILE]
    python benchmarks/targets.py --device cpu --tiny

A row is a worked candidate, perhaps with some of its outputs alone, or one of its kernels alone. "vs bare": time of the
one bare GEMM of that shape over ours, interleaved; 1 means that what surrounds it is free. "bytes allow": the same for
a program that takes no longer than its GEMM or its least bytes at the rate of a large copy, whichever is more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import duration, on_cpu, one_of, output

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.coda_api import cost
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import (
    Call,
    InputSpec,
    Kernel,
    OutputSpec,
    Program,
    Ref,
    Signature,
    TypeKind,
)
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.storage import ref_dtype, stored_dtype
from coda_synth.evaluator.execution import bind
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import Inputs, make_inputs
from coda_synth.evaluator.parts import peaks
from coda_synth.evaluator.race import Clock, Lap
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks import gap
from benchmarks.contest import TINY, clock_of, machine, one_line, times

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """bare: M, N and K of the GEMM to compare with. call: one kernel of the task's candidate alone, "" for all of it;
    outputs: those that are kept, () for all. target: the ratio that is aimed at."""

    name: str
    task: str
    sizes: Sizes
    bare: tuple[int, int, int]
    target: float
    call: str = ""
    outputs: tuple[str, ...] = ()


def _linear(m: int, n: int, k: int) -> Row:
    return Row("bare GEMM", "linear_nt", {"T": m, "D": k, "F": n}, (m, n, k), 0.97)


def _residual(m: int, n: int, k: int, target: float) -> Row:
    return Row("residual", "linear_residual", {"T": m, "D": n, "K": k}, (m, n, k), target)


def _statistic(m: int, n: int, k: int, target: float) -> Row:
    return Row("residual, statistic, 2nd output", "residual_rmsnorm", {"T": m, "D": n, "K": k}, (m, n, k), target)


def _gated(m: int, f: int, k: int, target: float, stored: bool) -> Row:
    name, outputs = ("stored", ()) if stored else ("not stored", ("act",))
    sizes = {"T": m, "D": k, "A": k, "F": f, "Q": k}
    said = f"row scale, SwiGLU, z {name}"
    return Row(said, "llama_unit_forward", sizes, (m, 2 * f, k), target, "b", outputs)


def _rope(name: str, m: int, h: int, k: int) -> Row:
    return Row(name, name, {"T": m, "D": k, "HQ": 32, "HK": 8, "H": h}, (m, 48 * h, k), 0.97)


def _gelu(m: int, n: int, k: int) -> Row:
    return Row("bias, gelu", "linear_bias_gelu", {"T": m, "D": k, "F": n}, (m, n, k), 0.97)


def _swiglu_backward(m: int, n: int, k: int, target: float) -> Row:
    outputs = ("dz", "act", "s")
    return Row("SwiGLU backward, dW apart", "swiglu_backward", {"T": m, "D": k, "F": n}, (m, n, k), target, "", outputs)


def _rmsnorm_backward(m: int, n: int, k: int, target: float) -> Row:
    outputs = ("dx", "dgamma")
    sizes = {"T": m, "D": n, "E": k}
    return Row("RMSNorm backward, dW apart", "rmsnorm_backward", sizes, (m, n, k), target, "", outputs)


ROWS = (
    *(_linear(*s) for s in ((8192, 4096, 4096), (8192, 6144, 4096), (8192, 28672, 4096), (8192, 4096, 14336))),
    *(_linear(*s) for s in ((8192, 8192, 8192), (4096, 4096, 4096))),
    _residual(8192, 4096, 4096, 0.98),
    _residual(16384, 2048, 2048, 0.95),
    _statistic(8192, 4096, 4096, 0.95),
    _statistic(16384, 2048, 2048, 0.92),
    _statistic(8192, 4096, 14336, 0.98),
    _gated(8192, 14336, 4096, 1.05, stored=False),
    _gated(16384, 5632, 2048, 1.02, stored=False),
    _gated(8192, 14336, 4096, 1.01, stored=True),
    _gated(16384, 5632, 2048, 1.00, stored=True),
    _gelu(8192, 6144, 4096),
    _gelu(16384, 3072, 2048),
    *(_rope(name, *s) for name in ("linear_rope", "qknorm_rope") for s in ((8192, 128, 4096), (16384, 64, 2048))),
    Row(
        "LM head, cross-entropy",
        "lm_head_cross_entropy",
        {"T": 8192, "D": 4096, "V": 128256},
        (8192, 128256, 4096),
        0.97,
    ),
    _swiglu_backward(8192, 14336, 4096, 0.88),
    _swiglu_backward(16384, 8192, 2048, 0.83),
    _rmsnorm_backward(8192, 4096, 28672, 0.95),
    _rmsnorm_backward(16384, 2048, 16384, 0.92),
)


# ---- parts of a program ----------------------------------------------------------------------------------------------


def kept(program: Program, needs: Signature, outputs: Sequence[str]) -> tuple[Program, Signature]:
    """A program with some of its outputs; what nobody reads then is not computed."""
    chosen = tuple(o for o in needs.outputs if o.name in outputs)
    return replace(program, outputs={o.name: program.outputs[o.name] for o in chosen}), replace(needs, outputs=chosen)


def alone(program: Program, needs: Signature, call: Call, outputs: Sequence[str]) -> tuple[Program, Signature]:
    """One kernel call as a program: everything that it reads is an input. Its symbols are the kernel's own."""
    kernel = call.unit
    assert isinstance(kernel, Kernel)
    given = {name: v for name, v in kernel.outputs.items() if name in (outputs or program.live_outputs(call))}
    binding = {symbol: Dim.parse(symbol) for symbol in call.binding}
    only = Call("a", kernel, {p.name: Ref(input=p.name) for p in kernel.params}, binding, call.line)
    inputs = tuple(
        InputSpec(p.name, p.type, ref_dtype(program, needs, call.args[p.name]), "activation") for p in kernel.params
    )
    specs = tuple(
        OutputSpec(name, tuple(d for d in (v.rows, v.cols) if d), stored_dtype(program, needs, call, name))
        for name, v in given.items()
    )
    refs = {name: Ref(call="a", output=name) for name in given}
    made = Program(program.name, kernel.params, (only,), refs, {kernel.name: kernel}, "", program.source)
    return made, Signature(program.name, inputs, specs, needs.dtype)


def part(row: Row, sizes: Sizes) -> tuple[Program, Signature, Sizes]:
    """What a row runs, what it must give, and the sizes of its symbols."""
    needs = signature(task(row.task))
    program = read(worked_candidate(row.task), needs)
    if not row.call:
        return *kept(program, needs, row.outputs or [o.name for o in needs.outputs]), sizes
    call = next(c for c in program.calls if c.name == row.call)
    return *alone(program, needs, call, row.outputs), {s: d.size(sizes) for s, d in call.binding.items()}


# ---- the race --------------------------------------------------------------------------------------------------------


def measured(row: Row, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    sizes, device = (_tiny(row) if options.tiny else row.sizes), options.device
    program, needs, local = part(row, sizes)
    if row.call:
        inputs: Inputs = {i.name: drawn(i, local, device) for i in needs.inputs}
    else:
        inputs = make_inputs(task(row.task), needs, Case("device", sizes, 1, "normal", "auto"), device)
    schedules = {c.name: TINY for c in program.live_calls() if isinstance(c.unit, Kernel)} if options.tiny else {}
    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    made = lower(program, needs, local, hopper=hopper, schedules=schedules)
    bound = bind(made, inputs, device)
    bound.launch()
    m, n, k = (64, 64, 64) if options.tiny else row.bare
    a, b = (torch.randn(shape, device=device).bfloat16() / k**0.5 for shape in ((m, k), (n, k)))
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    laps = {"ours": [Lap(bound.launch, bound.restore)], "bare": [Lap(lambda: torch.mm(a, b.t(), out=out))]}
    found = times(laps, options.seconds, clock)
    ratio, ours, bare = gap.ratio(found["bare"], found["ours"]), gap.figure(found["ours"]), gap.figure(found["bare"])
    least_ms = 1e3 * cost.task_bytes(needs, local) / peaks(device, "bfloat16", clock)[0]
    said = {"ms": ours.value, "bare_ms": bare.value, "bytes_allow": bare.value / max(bare.value, least_ms)}
    schedule = {call: str(s) for call, s in made.schedules.items()}
    head = {"name": row.name, "task": row.task, "bare": list(row.bare), "form": made.form, "schedules": schedule}
    return {**head, **said, "vs_bare": [ratio.value, ratio.low, ratio.high], "target": row.target, "rounds": found}


def drawn(spec: InputSpec, sizes: Sizes, device: str) -> torch.Tensor | float:
    """Of the size of one; positions and targets are small whole numbers."""
    shape = tuple(d.size(sizes) for d in spec.type.dims)
    if not shape:
        return 1.0
    if spec.type.kind is TypeKind.INDEX:
        return torch.arange(shape[0], device=device)
    made = torch.randn(shape, device=device)
    return (made / shape[-1] ** 0.5 if len(shape) == 2 else made).to(getattr(torch, spec.dtype))


def _tiny(row: Row) -> Sizes:
    return task(row.task).check_shapes[1]


def line(found: Mapping[str, Any]) -> str:
    ratio, low, high = found["vs_bare"]
    shape = ",".join(map(str, found["bare"]))
    met = "met" if ratio >= found["target"] else f"{found['target'] - ratio:.3f} short"
    said = f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
    return (
        f"{found['name']:32s} {shape:18s}{found['ms']:8.3f}{found['bare_ms']:8.3f}  {said:22s}{found['target']:5.2f}"
        f"  {met:12s}{found['bytes_allow']:6.3f}"
    )


def main() -> int:
    options = _options()
    clock = clock_of(options.device)
    print(f"{machine(options.device)}; {clock.name}")
    heads = f"{'ms':>8s}{'bare ms':>8s}  {'vs bare':22s}target  {'':10s}bytes allow"
    print(f"{'':32s} {'M, N, K':18s}{heads}")
    rows, failed = [], 0
    for row in ROWS:
        if options.names and row.name not in options.names and row.task not in options.names:
            continue
        try:
            rows.append(measured(row, options, clock))
            print(line(rows[-1]), flush=True)
        except Exception as error:  # one row must not end the table
            failed += 1
            print(f"{row.name:32s} {row.bare} failed: {one_line(error)}", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1) + "\n")
    if plain := [row["vs_bare"][0] for row in rows if row["name"] == "bare GEMM"]:
        print(f"bare GEMM: geometric mean {gap.geometric_mean(plain):.3f} of {len(plain)}, least {min(plain):.3f}")
    return int(failed > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kernels against the bare GEMM of their shape")
    known = one_of("row or task", dict.fromkeys(name for row in ROWS for name in (row.name, row.task)))
    parser.add_argument("names", nargs="*", type=known, help="names of rows, or tasks; all by default")
    parser.add_argument("--seconds", type=duration, help="of racing for each row")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes; on a CPU always")
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    options.tiny = options.tiny or options.device == "cpu"
    options.seconds = options.seconds if options.seconds is not None else 0.0 if options.tiny else 2.0
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; --device cpu --tiny shows that it runs")
    return options


if __name__ == "__main__":
    sys.exit(main())

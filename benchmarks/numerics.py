"""Where the algebra moves a rounding, what does it cost? Every task's worked candidate beside eager PyTorch.

Prints, as a Markdown table, errors in bf16 against float64, ours and eager's: of the worst row, as a 2-norm relative to
the exact row's, for activations of several scales and kinds; for such incoming gradients in a backward task, since what
its forward saved belongs together. Ours is the program's meaning in float32 arithmetic, with roundings where its
kernels store. Fails where an output of ours exceeds FACTOR times the larger of eager's error and of the least that bf16
allows: the exact operands of every product, and the exact result, rounded once each.

Needs no GPU. Run: python benchmarks/numerics.py [task ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator.correctness import declared_dtypes, declared_inputs, exact_outputs
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import TaskSpec
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.arguments import task_name

FACTOR = 1.2
DTYPE = torch.bfloat16
SIZES = {
    "T": 64,
    "D": 250,
    "F": 192,
    "K": 128,
    "A": 128,
    "Q": 256,
    "V": 512,
    "N": 256,
    "HQ": 4,
    "HK": 2,
    "H": 64,
    "E": 192,
}
SEEDS = range(3)

Tensors = Mapping[str, torch.Tensor]
Change = Callable[[str, torch.Tensor], torch.Tensor]


# ---- inputs ----------------------------------------------------------------------------------------------------------


def scaled(by: float) -> Change:
    return lambda name, x: x * by


def constant(name: str, x: torch.Tensor) -> torch.Tensor:
    """Each row holds one number; where a projection y is added to a stream x, the stream alone."""
    return torch.zeros_like(x) if name.startswith("y") else x[:, :1].expand_as(x)


def half_zero(name: str, x: torch.Tensor) -> torch.Tensor:
    """Every other row is zero."""
    return x * (torch.arange(len(x)) % 2)[:, None]


def spiked(name: str, x: torch.Tensor) -> torch.Tensor:
    """One entry a row is ten thousand times the others."""
    rows = torch.arange(len(x))
    x = x * 1e-2
    x[rows, rows * 7 % x.shape[1]] = 1e2
    return x


def off_centre(name: str, x: torch.Tensor) -> torch.Tensor:
    """The stream's mean is 100 times its deviation."""
    return x + 100.0 if name == "x" else x * 0.1


CASES: dict[str, Change] = {
    "1e-3": scaled(1e-3),
    "1": scaled(1.0),
    "1e3": scaled(1e3),
    "constant rows": constant,
    "zero rows": half_zero,
    "one spike": spiked,
    "one spike, D = 256": spiked,
    "one spike, D = 1024": spiked,
    "mean 100 sigma": off_centre,
}


# Normalised, a row of one spike is sqrt(D): a power of two where D is a power of four, which no rounding touches.
WIDTHS = {"one spike, D = 256": 256, "one spike, D = 1024": 1024}


def cases_of(spec: TaskSpec) -> tuple[str, ...]:
    if not any(_free(spec, entry.name) for entry in spec.inputs if entry.role == "activation"):
        return ("1",)
    normed = "norm" in spec.name or "unit" in spec.name
    unfit = {case for case in CASES if case in WIDTHS and not normed}
    unfit |= set() if spec.name == "residual_layernorm_linear" else {"mean 100 sigma"}
    return tuple(case for case in CASES if case not in unfit)


def inputs_of(spec: TaskSpec, case: str, seed: int) -> dict[str, Any]:
    sizes = {symbol: SIZES[symbol] for symbol in spec.check_shapes[0]}
    sizes |= {"D": WIDTHS[case]} if case in WIDTHS else {}
    change = CASES[case]
    made = spec.make_inputs(sizes, torch.Generator().manual_seed(seed), "normal")
    for entry in spec.inputs:
        value = made[entry.name]
        free = entry.role == "activation" and _free(spec, entry.name)
        if free and isinstance(value, torch.Tensor) and value.dim() == 2:
            rows_first = entry.dims[0] == "T"
            changed = change(entry.name, value if rows_first else value.T.clone())
            made[entry.name] = (changed if rows_first else changed.T).contiguous()
    return declared_inputs(spec, made, DTYPE)


def _free(spec: TaskSpec, name: str) -> bool:
    """Whether a tensor may be anything: what a forward has saved for a backward belongs together."""
    return not spec.name.endswith("backward") or name == "e" or name.startswith("d")


# ---- three ways to compute a task ------------------------------------------------------------------------------------


class OperandsRounded(TorchDispatchMode):
    """Inside, everything is as exact as its inputs, but for the operands of matrix products, rounded once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            *bias, a, b = args
            args = (*bias, a.to(DTYPE).to(a.dtype), b.to(DTYPE).to(b.dtype))
        return func(*args, **(kwargs or {}))


def stored(outputs: Tensors, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
    return {name: value.to(dtypes[name]) for name, value in outputs.items()}


def worst_row(outputs: Tensors, exact: Tensors, vectors: bool = False) -> dict[str, float]:
    """By output the largest relative error of a row; of an element where an output has one number a row, or, with
    `vectors`, of that output as a whole: gradients' sums, which cancel."""
    found = {}
    for name, value in exact.items():
        count = len(value) if value.dim() > 1 or value.dim() and not vectors else 1
        rows = value.reshape(count, -1)
        error = (outputs[name].double().reshape(rows.shape) - rows).norm(dim=1)
        size = rows.norm(dim=1)
        found[name] = float(torch.where(error == 0, 0.0, error / size).max())
    return found


def errors(spec: TaskSpec, case: str, seed: int, candidate: str = "") -> dict[str, tuple[float, float, float]]:
    """By output: the (worked) candidate's, eager's, and the least that rounding once costs."""
    inputs, dtypes = inputs_of(spec, case, seed), declared_dtypes(spec, DTYPE)
    exact = exact_outputs(spec, inputs)
    sig = signature(spec)
    program = read(candidate or worked_candidate(spec.name), sig)
    ours = evaluate(program, sig, inputs, dtype=torch.float32, block=(32, 64), rounding=True)
    with torch.no_grad():
        eager = spec.reference(**inputs)
    with OperandsRounded():
        once = stored(exact_outputs(spec, inputs), dtypes)
    vectors = spec.name.endswith("backward")
    found = [worst_row(run, exact, vectors) for run in (ours, eager, once)]
    return {name: (found[0][name], found[1][name], found[2][name]) for name in exact}


# ---- the table -------------------------------------------------------------------------------------------------------


def excess(found: tuple[float, float, float]) -> float:
    """Ours over what the rule takes for the measure."""
    ours, eager, once = found
    return ours / max(eager, once, 1e-30)


def row_of(spec: TaskSpec) -> tuple[list[str], list[str]]:
    """The cells of a task's row, and a sentence for each case that breaks the rule."""
    cells, broken = [], []
    chosen = cases_of(spec)
    for case in CASES:
        if case not in chosen:
            cells.append("")
            continue
        runs = [errors(spec, case, seed) for seed in SEEDS]
        merged = {name: tuple(max(run[name][i] for run in runs) for i in range(3)) for name in runs[0]}
        cells.append(" / ".join(f"{max(found[i] for found in merged.values()):.1e}" for i in (0, 1)))
        for name, found in merged.items():
            if excess(found) > FACTOR:
                ours, eager, once = (f"{value:.2e}" for value in found)
                broken.append(f"{spec.name}, {case}: {name} has {ours}, eager {eager}, rounded once {once}")
    return cells, broken


def main() -> int:
    parser = argparse.ArgumentParser(description="errors in bf16 of worked candidates, beside eager's")
    parser.add_argument("tasks", nargs="*", type=task_name, help="all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| task | {' | '.join(CASES)} |")
    print(f"|---|{'---|' * len(CASES)}")
    broken = []
    for name in options.tasks or task_names():
        cells, faults = row_of(task(name))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        broken += faults
    for line in broken:
        print(f"over {FACTOR}: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

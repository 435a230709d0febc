"""What a candidate is timed against, at its own precision and inputs: cuBLAS alone, PyTorch eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.inputs import Inputs
from coda_synth.tasks.spec import Sizes, TaskSpec

Run = Callable[[], object]
NAMES = ("bare_gemm", "eager", "compile")


def bare_gemm(task: TaskSpec, sizes: Sizes, dtype: torch.dtype) -> Run:
    """The task's GEMMs alone, one torch.mm each, weights as nn.Linear keeps them: the bound to approach."""
    calls = []
    for gemm in task.gemms:
        m, n, k = (Dim.parse(d).size(sizes) for d in gemm)
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        b = torch.randn(n, k, device="cuda", dtype=dtype) / k**0.5
        calls.append((a, b, torch.empty(m, n, device="cuda", dtype=dtype)))

    def run() -> None:
        for a, b, out in calls:
            torch.mm(a, b.t(), out=out)

    return run


def eager(task: TaskSpec, inputs: Inputs) -> Run:
    """The task's reference as its author wrote it."""

    def run() -> object:
        with torch.no_grad():
            return task.reference(**inputs)

    return run


def compiled(task: TaskSpec, inputs: Inputs, compiler: Callable[..., object]) -> Run:
    """The reference through torch.compile. compiler: made once for all sets, by `compiler_of`."""

    def run() -> object:
        with torch.no_grad():
            return compiler(**inputs)

    return run


def compiler_of(task: TaskSpec) -> Callable[..., object]:
    return torch.compile(task.reference, dynamic=False)  # type: ignore[no-any-return]


def line_up(task: TaskSpec, sizes: Sizes, inputs: Inputs, sets: int) -> tuple[dict[str, list[Run]], list[str]]:
    """Every baseline that works here, one run per set of inputs, and a note for each that does not."""
    dtype = next(v.dtype for v in inputs.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
    copies = [inputs, *(_cloned(inputs) for _ in range(sets - 1))]
    compiler = compiler_of(task)
    makers: Mapping[str, Callable[[Inputs], Run]] = {
        "bare_gemm": lambda _: bare_gemm(task, sizes, dtype),
        "eager": lambda own: eager(task, own),
        "compile": lambda own: compiled(task, own, compiler),
    }
    found: dict[str, list[Run]] = {}
    notes = []
    for name, maker in makers.items():
        try:
            runs = [maker(own) for own in copies]
            for run in runs:
                run()
            torch.cuda.synchronize()
            found[name] = runs
        except Exception as error:  # a baseline that this machine cannot run is missing from the table, and said to be
            notes.append(f"the baseline {name} is missing: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            torch.cuda.empty_cache()
    return found, notes


def _cloned(inputs: Inputs) -> Inputs:
    return {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}

"""What a candidate is timed against, at its own precision and inputs: cuBLAS alone, PyTorch eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.inputs import Inputs
from coda_synth.tasks.spec import Sizes, TaskSpec, Tensors

Reference = Callable[[], Tensors]
NAMES = ("bare_gemm", "eager", "compile")


def bare_gemm(task: TaskSpec, sizes: Sizes, dtype: torch.dtype, device: str = "cuda") -> Callable[[], None]:
    """The task's GEMMs alone, one torch.mm each, weights as nn.Linear keeps them: the bound to approach."""
    calls = []
    for gemm in task.gemms:
        m, n, k = (Dim.parse(d).size(sizes) for d in gemm)
        a = torch.randn(m, k, device=device, dtype=dtype)
        b = torch.randn(n, k, device=device, dtype=dtype) / k**0.5
        calls.append((a, b, torch.empty(m, n, device=device, dtype=dtype)))

    def run() -> None:
        for a, b, out in calls:
            torch.mm(a, b.t(), out=out)

    return run


def references(task: TaskSpec, inputs: Sequence[Inputs]) -> tuple[dict[str, list[Reference]], list[str]]:
    """The task's reference as its author wrote it and through torch.compile, one callable for each set of inputs, and
    a note for each that does not run here."""
    torch._dynamo.reset()  # its cache of shapes is short, and over it compiled code would silently be eager
    versions: dict[str, Callable[..., Tensors]] = {"eager": task.reference}
    if torch.cuda.is_available():
        versions["compile"] = torch.compile(task.reference, dynamic=False)
    found: dict[str, list[Reference]] = {}
    notes = []
    for name, function in versions.items():
        try:
            runs = [_bound(function, own) for own in inputs]
            for run in runs:
                run()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # what fails on the device must fail here
            found[name] = runs
        except Exception as error:  # a baseline that this machine cannot run is missing from the table, and said to be
            said = (str(error).splitlines() or [""])[0][:200]
            notes.append(f"the baseline {name} is missing: {type(error).__name__}: {said}")
            torch.cuda.empty_cache()
    return found, notes


def _bound(function: Callable[..., Tensors], inputs: Inputs) -> Reference:
    def run() -> Tensors:
        with torch.no_grad():
            return function(**inputs)

    return run


def line_up(
    task: TaskSpec, sizes: Sizes, sets: Sequence[Inputs], device: str
) -> tuple[dict[str, Sequence[Callable[[], object]]], list[str]]:
    """Every baseline that works here, one run for each set of inputs, and notes on those that do not."""
    dtype = next(v.dtype for v in sets[0].values() if isinstance(v, torch.Tensor) and v.is_floating_point())
    found, notes = references(task, sets)
    return {"bare_gemm": [bare_gemm(task, sizes, dtype, device) for _ in sets], **found}, notes

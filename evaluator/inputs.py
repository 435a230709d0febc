"""A case's inputs from its seed: the same bits in every child that makes them.

A real shape is made on the GPU where it is used; what its task computes from what it drew (a saved product) is then the
same in every process on that GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext

import torch
from coda_synth.coda_api.program import Signature
from coda_synth.evaluator.drawing import LARGE, Drawing
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.tasks.spec import TaskSpec

Inputs = dict[str, torch.Tensor | float]


def make_inputs(task: TaskSpec, signature: Signature, case: Case, device: str = "cpu") -> Inputs:
    """The inputs as a candidate gets them: floats rounded to the dtypes of the signature, contiguous, on `device`."""
    generator = torch.Generator().manual_seed(case.seed)
    with Drawing("cuda" if torch.cuda.is_available() else "cpu") if _is_large(signature, case) else nullcontext():
        made = task.make_inputs(case.sizes, generator, case.style)
    return {spec.name: _placed(made[spec.name], spec.dtype, device) for spec in signature.inputs}


def _is_large(signature: Signature, case: Case) -> bool:
    """Whether the case is for a GPU and has an input of so many elements that a CPU should not draw them."""
    return case.stage == "device" and any(
        math.prod(d.size(case.sizes) for d in spec.type.dims) >= LARGE for spec in signature.inputs
    )


def _placed(value: torch.Tensor | float | int, dtype: str, device: str) -> torch.Tensor | float:
    if not isinstance(value, torch.Tensor):
        return float(value)
    kind = getattr(torch, dtype)
    return value.to(kind if value.is_floating_point() else value.dtype).to(device).contiguous()


def exact(inputs: Mapping[str, torch.Tensor | float]) -> Inputs:
    """The same values with every float tensor in float64."""
    return {
        name: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for name, v in inputs.items()
    }


def of_rows(inputs: Mapping[str, torch.Tensor | float], signature: Signature, row: str, rows: list[int]) -> Inputs:
    """The inputs of these rows alone: every tensor that has the row dim first is indexed by them."""
    has_row = {spec.name for spec in signature.inputs if spec.type.dims and str(spec.type.dims[0]) == row}
    return {name: v[rows] if name in has_row and isinstance(v, torch.Tensor) else v for name, v in inputs.items()}


def rolled(inputs: Mapping[str, torch.Tensor | float], facts: TaskFacts, shift: int) -> Inputs:
    """The same at other addresses, the rows of every tensor that has the row dim moved down by `shift`."""
    has_row = {s.name for s in facts.signature.inputs if s.type.dims and str(s.type.dims[0]) == facts.row}
    return {
        n: (v.roll(shift, 0) if n in has_row else v.clone()) if isinstance(v, torch.Tensor) else v
        for n, v in inputs.items()
    }

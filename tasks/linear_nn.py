"""A product of two matrices as they lie: rows of x, columns of w; weights stored [in, out]."""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return {"y": x @ w}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {"x": draws.activation((t, d), generator, style), "w": draws.weight((f, d), generator, style).T.contiguous()}


TASK = TaskSpec(
    name="linear_nn",
    summary="y = x w",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w", ("D", "F"), role="weight"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"),),
)

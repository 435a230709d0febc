"""A product over the rows of both matrices, as in a weight's gradient; x stored [in, tokens]."""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return {"y": x.T @ w}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style).T.contiguous(),
        "w": draws.weight((f, d), generator, style).T.contiguous(),
    }


TASK = TaskSpec(
    name="linear_tn",
    summary="y = x^T w",
    reference=reference,
    inputs=(
        TaskInput("x", ("D", "T")),
        TaskInput("w", ("D", "F"), role="weight"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"),),
)

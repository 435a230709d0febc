"""A gated residual: a projection of y says, through a sigmoid, how much of v enters the stream x."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_OUT, TIME_OUT
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> Tensors:
    gate = torch.sigmoid(F.linear(y, w, b))
    return {"out": x + gate * v}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, k = sizes["T"], sizes["D"], sizes["K"]
    return {
        "y": draws.activation((t, k), generator, style),
        "w": draws.weight((d, k), generator, style),
        "b": draws.bias(d, generator, style),
        "v": draws.activation((t, d), generator, style),
        "x": draws.residual((t, d), generator, style),
    }


TASK = TaskSpec(
    name="linear_sigmoid_gate",
    summary="out = x + sigmoid(y w^T + b) * v",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w", ("D", "K"), role="weight"),
        TaskInput("b", ("D",), role="weight"),
        TaskInput("v", ("T", "D")),
        TaskInput("x", ("T", "D")),
    ),
    outputs=(TaskOutput("out", ("T", "D")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_OUT,
    time_shapes=TIME_OUT,
    gemms=(("T", "D", "K"),),
)

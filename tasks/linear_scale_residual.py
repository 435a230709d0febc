"""A projection with a bias, scaled feature by feature (layer scale) and added to the residual stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_OUT, TIME_OUT
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, gamma: torch.Tensor, x: torch.Tensor) -> Tensors:
    return {"out": x + gamma * F.linear(y, w, b)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, k = sizes["T"], sizes["D"], sizes["K"]
    return {
        "y": draws.activation((t, k), generator, style),
        "w": draws.weight((d, k), generator, style),
        "b": draws.bias(d, generator, style),
        "gamma": draws.gain(d, generator),
        "x": draws.residual((t, d), generator, style),
    }


TASK = TaskSpec(
    name="linear_scale_residual",
    summary="out = x + gamma * (y w^T + b)",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w", ("D", "K"), role="weight"),
        TaskInput("b", ("D",), role="weight"),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("x", ("T", "D")),
    ),
    outputs=(TaskOutput("out", ("T", "D")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_OUT,
    time_shapes=TIME_OUT,
    gemms=(("T", "D", "K"),),
)

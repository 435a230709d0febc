"""A linear layer with a bias, then squared ReLU: the first half of an MLP without gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return {"y": F.relu(F.linear(x, w, b)).square()}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style),
        "w": draws.weight((f, d), generator, style),
        "b": draws.bias(f, generator, style),
    }


TASK = TaskSpec(
    name="linear_bias_relu2",
    summary="y = relu(x w^T + b)^2",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w", ("F", "D"), role="weight"),
        TaskInput("b", ("F",), role="weight"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"),),
)

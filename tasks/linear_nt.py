"""A linear layer without anything: weights stored [out, in], as nn.Linear does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    return {"y": F.linear(x, w)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {"x": draws.activation((t, d), generator, style), "w": draws.weight((f, d), generator, style)}


TASK = TaskSpec(
    name="linear_nt",
    summary="y = x w^T",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w", ("F", "D"), role="weight"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"),),
)

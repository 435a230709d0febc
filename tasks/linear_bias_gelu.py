"""A linear layer with a bias, then GELU: the first half of an MLP without gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return {"y": F.gelu(F.linear(x, w, b))}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style),
        "w": draws.weight((f, d), generator, style),
        "b": draws.bias(f, generator, style),
    }


TASK = TaskSpec(
    name="linear_bias_gelu",
    summary="y = gelu(x w^T + b), with the exact (erf) GELU",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w", ("F", "D"), role="weight"),
        TaskInput("b", ("F",), role="weight"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "F": 41},
        {"T": 33, "D": 64, "F": 80},
        {"T": 48, "D": 48, "F": 48},
        {"T": 5, "D": 7, "F": 3},
        {"T": 1, "D": 1, "F": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "F": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "F": 8192},
        "odd": {"T": 7919, "D": 3000, "F": 8008},
    },
    gemms=(("T", "F", "D"),),
)

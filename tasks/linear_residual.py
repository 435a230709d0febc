"""An output or down projection added to the residual stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(y: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> Tensors:
    return {"out": x + F.linear(y, w)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, k = sizes["T"], sizes["D"], sizes["K"]
    return {
        "y": draws.activation((t, k), generator, style),
        "w": draws.weight((d, k), generator, style),
        "x": draws.residual((t, d), generator, style),
    }


TASK = TaskSpec(
    name="linear_residual",
    summary="out = x + y w^T",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w", ("D", "K"), role="weight"),
        TaskInput("x", ("T", "D")),
    ),
    outputs=(TaskOutput("out", ("T", "D")),),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 41, "K": 53},
        {"T": 33, "D": 80, "K": 64},
        {"T": 48, "D": 48, "K": 48},
        {"T": 5, "D": 3, "K": 7},
        {"T": 1, "D": 1, "K": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "K": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "K": 8192},
        "odd": {"T": 7919, "D": 3000, "K": 8008},
    },
    gemms=(("T", "D", "K"),),
)

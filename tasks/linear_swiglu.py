"""Gate and up projection with SwiGLU: the first half of a Llama MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> Tensors:
    gate = F.linear(x, w_gate)
    up = F.linear(x, w_up)
    return {"act": F.silu(gate) * up}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style),
        "w_gate": draws.weight((f, d), generator, style),
        "w_up": draws.weight((f, d), generator, style),
    }


TASK = TaskSpec(
    name="linear_swiglu",
    summary="act = silu(x w_gate^T) * (x w_up^T)",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w_gate", ("F", "D"), role="weight"),
        TaskInput("w_up", ("F", "D"), role="weight"),
    ),
    outputs=(TaskOutput("act", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "F": 41},
        {"T": 33, "D": 64, "F": 40},
        {"T": 48, "D": 48, "F": 48},
        {"T": 5, "D": 7, "F": 3},
        {"T": 1, "D": 1, "F": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "F": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "F": 8192},
        "odd": {"T": 7919, "D": 3000, "F": 8008},
    },
    gemms=(("T", "2*F", "D"),),
)

"""Gate and up projection with GEGLU: the first half of a gated MLP with the exact (erf) GELU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> Tensors:
    gate = F.linear(x, w_gate)
    up = F.linear(x, w_up)
    return {"act": F.gelu(gate) * up}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style),
        "w_gate": draws.weight((f, d), generator, style),
        "w_up": draws.weight((f, d), generator, style),
    }


TASK = TaskSpec(
    name="linear_geglu",
    summary="act = gelu(x w_gate^T) * (x w_up^T), with the exact (erf) GELU",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w_gate", ("F", "D"), role="weight"),
        TaskInput("w_up", ("F", "D"), role="weight"),
    ),
    outputs=(TaskOutput("act", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "2*F", "D"),),
)

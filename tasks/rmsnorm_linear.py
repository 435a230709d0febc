"""RMSNorm, then a linear layer, where no GEMM before it can carry the norm's sum of squares.

So pointwise passes over x are the expected answer: one leaves the sums, one stores the normalised operand. (The GEMM
can apply the row's scale instead, for one pass fewer and a rounding that rows of one spike feel: docs/numerics.md.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * gamma


def reference(x: torch.Tensor, gamma: torch.Tensor, w: torch.Tensor, eps: float) -> Tensors:
    return {"y": F.linear(rms_norm(x, gamma, eps), w)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "x": draws.activation((t, d), generator, style),
        "gamma": draws.gain(d, generator),
        "w": draws.weight((f, d), generator, style),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="rmsnorm_linear",
    summary="y = (rmsnorm(x) * gamma) w^T; pointwise passes for the norm are expected",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("w", ("F", "D"), role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(TaskOutput("y", ("T", "F")),),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"),),
)

"""Output projection and residual, and what the next norm needs: the scaled operand and the row's statistic.

RMSNorm scales a row by one number, which the GEMM after it can apply to its product: so h is x * gamma, not yet
normalised, and rstd goes to that GEMM.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_OUT, TIME_OUT
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rms_scale(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / rms of every row, [T, 1], in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    return torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def reference(y: torch.Tensor, w_o: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, eps: float) -> Tensors:
    x = x + F.linear(y, w_o)
    return {"x": x, "h": x * gamma, "rstd": rms_scale(x, eps).squeeze(-1)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, k = sizes["T"], sizes["D"], sizes["K"]
    return {
        "y": draws.activation((t, k), generator, style),
        "w_o": draws.weight((d, k), generator, style),
        "x": draws.residual((t, d), generator, style),
        "gamma": draws.gain(d, generator),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="residual_rmsnorm",
    summary="x = x + y w_o^T; h = x * gamma; rstd = 1 / sqrt(mean(x^2) + eps); returns x, h and rstd",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w_o", ("D", "K"), role="weight"),
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(TaskOutput("x", ("T", "D")), TaskOutput("h", ("T", "D")), TaskOutput("rstd", ("T",), dtype="float32")),
    make_inputs=make_inputs,
    check_shapes=CHECK_OUT,
    time_shapes=TIME_OUT,
    gemms=(("T", "D", "K"),),
)

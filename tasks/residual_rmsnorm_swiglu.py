"""From the attention output to the MLP's activation: output projection, residual, RMSNorm, gate and up, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * gamma


def reference(
    y: torch.Tensor,
    w_o: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    eps: float,
) -> Tensors:
    x = x + F.linear(y, w_o)
    h = rms_norm(x, gamma, eps)
    gate = F.linear(h, w_gate)
    up = F.linear(h, w_up)
    return {"x": x, "act": F.silu(gate) * up}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f, k = sizes["T"], sizes["D"], sizes["F"], sizes["K"]
    return {
        "y": draws.activation((t, k), generator, style),
        "w_o": draws.weight((d, k), generator, style),
        "x": draws.residual((t, d), generator, style),
        "gamma": draws.gain(d, generator),
        "w_gate": draws.weight((f, d), generator, style),
        "w_up": draws.weight((f, d), generator, style),
        "eps": (1e-4, 1e-5, 1e-6)[int(torch.randint(0, 3, (1,), generator=generator))],
    }


TASK = TaskSpec(
    name="residual_rmsnorm_swiglu",
    summary="x = x + y w_o^T; h = rmsnorm(x) * gamma; act = silu(h w_gate^T) * (h w_up^T); returns x and act",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w_o", ("D", "K"), role="weight"),
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("w_gate", ("F", "D"), role="weight"),
        TaskInput("w_up", ("F", "D"), role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(TaskOutput("x", ("T", "D")), TaskOutput("act", ("T", "F"))),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "F": 41, "K": 29},
        {"T": 33, "D": 80, "F": 40, "K": 64},
        {"T": 48, "D": 48, "F": 48, "K": 48},
        {"T": 5, "D": 7, "F": 3, "K": 9},
        {"T": 1, "D": 1, "F": 1, "K": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "F": 14336, "K": 4096},
        "llama3-1b": {"T": 8192, "D": 2048, "F": 8192, "K": 2048},
        "odd": {"T": 7919, "D": 3000, "F": 8008, "K": 2504},
    },
    gemms=(("T", "D", "K"), ("T", "2*F", "D")),
)

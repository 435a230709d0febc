"""Output projection and residual, then LayerNorm with weight and bias, and the linear layer after it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(
    y: torch.Tensor,
    w_o: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    eps: float,
) -> Tensors:
    x = x + F.linear(y, w_o)
    h = F.layer_norm(x, (x.shape[-1],), gamma, beta, eps)
    return {"x": x, "z": F.linear(h, w, b)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f, k = sizes["T"], sizes["D"], sizes["F"], sizes["K"]
    mean = torch.randn((t, 1), generator=generator) * draws.SCALES.get(style, 1.0)  # rows that are not centred
    return {
        "y": draws.activation((t, k), generator, style),
        "w_o": draws.weight((d, k), generator, style),
        "x": draws.residual((t, d), generator, style) + (mean.round() if style == "integers" else mean),
        "gamma": draws.gain(d, generator),
        "beta": draws.bias(d, generator, "normal"),
        "w": draws.weight((f, d), generator, style),
        "b": draws.bias(f, generator, "normal"),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="residual_layernorm_linear",
    summary="x = x + y w_o^T; z = (layernorm(x) * gamma + beta) w^T + b; returns x and z",
    reference=reference,
    inputs=(
        TaskInput("y", ("T", "K")),
        TaskInput("w_o", ("D", "K"), role="weight"),
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("beta", ("D",), role="weight"),
        TaskInput("w", ("F", "D"), role="weight"),
        TaskInput("b", ("F",), role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(TaskOutput("x", ("T", "D")), TaskOutput("z", ("T", "F"))),
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
    gemms=(("T", "D", "K"), ("T", "F", "D")),
)

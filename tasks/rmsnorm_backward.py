"""The backward of RMSNorm and the linear layer after it, z = (x * r * gamma) w^T, from dz.

r (one over the row's rms) was saved. s = <z, dz> / D was made where z and dz were at hand, by the kernel that made dz:
it equals the row mean that the norm's backward takes of dnormed * normed, so nothing here has to be summed along a row
of the new product. dx is added to dres, the gradient that came along the residual stream. y, the normed operand, was
not saved; it is made anew for the gradient of w.
"""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(
    dz: torch.Tensor,
    w: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor,
    r: torch.Tensor,
    s: torch.Tensor,
    dres: torch.Tensor,
) -> Tensors:
    r, s = r.unsqueeze(-1), s.unsqueeze(-1)
    dy = dz @ w
    xhat = x.to(r.dtype) * r
    dx = r * ((dy * gamma).to(r.dtype) - xhat * s)
    y = xhat.to(x.dtype) * gamma
    return {"dx": dres + dx.to(x.dtype), "y": y, "dgamma": (dy.to(r.dtype) * xhat).sum(0), "dw": dz.T @ y}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, e = sizes["T"], sizes["D"], sizes["E"]
    dz = draws.stored(draws.activation((t, e), generator, style))
    w = draws.stored(draws.weight((e, d), generator, style))
    x = draws.stored(draws.beside((t, d), generator, style))
    gamma = draws.stored(draws.gain(d, generator))
    r = torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + draws.epsilon(generator))
    normed = x.double() * r * gamma
    s = (draws.product(dz, w.T) * normed).sum(-1) / d
    dres = draws.residual((t, d), generator, style)
    return {"dz": dz, "w": w, "x": x, "gamma": gamma, "r": r.squeeze(-1).float(), "s": s.float(), "dres": dres}


TASK = TaskSpec(
    name="rmsnorm_backward",
    summary="of z = y w^T, y = x * r * gamma, r = 1 / rms(x): dx = dres + r * (dz w * gamma - x * r * s), where s = "
    "<z, dz> / D is given; y; dgamma = sum of dz w * x * r over the tokens; dw = dz^T y",
    reference=reference,
    inputs=(
        TaskInput("dz", ("T", "E")),
        TaskInput("w", ("E", "D"), role="weight"),
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("r", ("T",), dtype="float32"),
        TaskInput("s", ("T",), dtype="float32"),
        TaskInput("dres", ("T", "D")),
    ),
    outputs=(
        TaskOutput("dx", ("T", "D")),
        TaskOutput("y", ("T", "D")),
        TaskOutput("dgamma", ("D",), dtype="float32"),
        TaskOutput("dw", ("E", "D")),
    ),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "E": 41},
        {"T": 40, "D": 80, "E": 64},
        {"T": 48, "D": 48, "E": 48},
        {"T": 5, "D": 7, "E": 3},
        {"T": 1, "D": 1, "E": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "E": 28672},
        "llama3-1b": {"T": 8192, "D": 2048, "E": 16384},
        "odd": {"T": 7919, "D": 3000, "E": 8008},
    },
    gemms=(("T", "D", "E"), ("E", "D", "T")),
)

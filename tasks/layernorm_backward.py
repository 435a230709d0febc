"""The backward of LayerNorm and the biased linear layer after it, z = (xhat * gamma + beta) w^T + b, from dz.

mu and r (mean and one over the deviation of each row of x) were saved, and so was z: the two row means that the norm's
backward needs are sums over dz, z and vectors that follow from the weights. Where no producer of dz has made them, a
pointwise pass over dz and z is the expected answer. dx is added to dres, the gradient that came along the residual.
"""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(
    dz: torch.Tensor,
    z: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mu: torch.Tensor,
    r: torch.Tensor,
    dres: torch.Tensor,
) -> Tensors:
    mu, r, d = mu.unsqueeze(-1), r.unsqueeze(-1), x.shape[-1]
    wide = w.to(r.dtype)
    v, c = (wide * gamma).sum(-1), (wide * beta).sum(-1) + b  # what gamma, and what beta and b, give to z
    s1 = (dz.to(r.dtype) * v).sum(-1, keepdim=True) / d
    s2 = (dz.to(r.dtype) * (z.to(r.dtype) - c)).sum(-1, keepdim=True) / d
    dy = dz @ w
    xhat = (x.to(r.dtype) - mu) * r
    dx = r * ((dy * gamma).to(r.dtype) - s1 - xhat * s2)
    y = xhat.to(x.dtype) * gamma + beta
    return {
        "dx": dres + dx.to(x.dtype),
        "dgamma": (dy.to(r.dtype) * xhat).sum(0),
        "dbeta": dy.sum(0, dtype=r.dtype),
        "dw": dz.T @ y,
        "db": dz.sum(0, dtype=r.dtype),
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, e = sizes["T"], sizes["D"], sizes["E"]
    w = draws.stored(draws.weight((e, d), generator, style))
    b = draws.stored(draws.bias(e, generator, "normal"))
    x = draws.stored(draws.beside((t, d), generator, style) + 0.5)
    gamma = draws.stored(draws.gain(d, generator))
    beta = draws.stored(draws.bias(d, generator, "normal"))
    wide = x.double()
    mu = wide.mean(-1, keepdim=True)
    r = torch.rsqrt((wide - mu).pow(2).mean(-1, keepdim=True) + draws.epsilon(generator))
    return {
        "dz": draws.activation((t, e), generator, style),
        "z": draws.product(((wide - mu) * r * gamma + beta).float(), w) + b,
        "w": w,
        "b": b,
        "x": x,
        "gamma": gamma,
        "beta": beta,
        "mu": mu.squeeze(-1).float(),
        "r": r.squeeze(-1).float(),
        "dres": draws.residual((t, d), generator, style),
    }


TASK = TaskSpec(
    name="layernorm_backward",
    summary="of z = y w^T + b, y = xhat * gamma + beta, xhat = (x - mu) * r: with dy = dz w, dx = dres + r * (dy * "
    "gamma - mean(dy * gamma) - xhat * mean(dy * gamma * xhat)), the means as sums over dz * (w gamma) and over "
    "dz * (z - w beta - b), divided by D; dgamma, dbeta, db (sums over the tokens); dw = dz^T y",
    reference=reference,
    inputs=(
        TaskInput("dz", ("T", "E")),
        TaskInput("z", ("T", "E")),
        TaskInput("w", ("E", "D"), role="weight"),
        TaskInput("b", ("E",), role="weight"),
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("beta", ("D",), role="weight"),
        TaskInput("mu", ("T",), dtype="float32"),
        TaskInput("r", ("T",), dtype="float32"),
        TaskInput("dres", ("T", "D")),
    ),
    outputs=(
        TaskOutput("dx", ("T", "D")),
        TaskOutput("dgamma", ("D",), dtype="float32"),
        TaskOutput("dbeta", ("D",), dtype="float32"),
        TaskOutput("dw", ("E", "D")),
        TaskOutput("db", ("E",), dtype="float32"),
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
        "llama3-8b": {"T": 8192, "D": 4096, "E": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "E": 8192},
        "odd": {"T": 7919, "D": 3000, "E": 8008},
    },
    gemms=(("T", "D", "E"), ("E", "D", "T")),
)

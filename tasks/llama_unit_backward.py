"""The backward of llama_unit_forward, from the gradients of its results qkv and x2, with what the forward saved.

Saved are y0, x1, x2, z1, qkv and the norms' scales r1 and r2; the operands of the weights' gradients (both normed rows
and the activation) are made anew. A norm's backward needs one number a row, <z, dz> / D with z the output of the GEMM
after the norm: for the second norm it is the row sum of qkv * dqkv, since a rotation keeps it.
Layouts as in llama_unit_forward: rows of w1 and columns of z1 interleaved, pairs of adjacent columns of qkv rotated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UNIT, TIME_UNIT
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, Q]; cos, sin: [T, Q/2], one angle for each pair of adjacent columns."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def swiglu(z: torch.Tensor) -> torch.Tensor:
    gate, up = z.unflatten(-1, (-1, 2)).unbind(-1)
    act: torch.Tensor = F.silu(gate) * up
    return act


def row_mean(a: torch.Tensor, b: torch.Tensor, r: torch.Tensor, d: int) -> torch.Tensor:
    """<a, b> / d of each row, in the dtype of r."""
    return (a.to(r.dtype) * b.to(r.dtype)).sum(-1) / d


def norm_backward(
    dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, r: torch.Tensor, s: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x and gamma, and the normed rows."""
    r, s = r.unsqueeze(-1), s.unsqueeze(-1)
    xhat = x.to(r.dtype) * r
    dx = r * ((dy * gamma).to(r.dtype) - xhat * s)
    return dx.to(x.dtype), (dy.to(r.dtype) * xhat).sum(0), xhat.to(x.dtype) * gamma


def reference(
    dqkv: torch.Tensor,
    dx2: torch.Tensor,
    y0: torch.Tensor,
    x1: torch.Tensor,
    r1: torch.Tensor,
    z1: torch.Tensor,
    x2: torch.Tensor,
    r2: torch.Tensor,
    qkv: torch.Tensor,
    w_o: torch.Tensor,
    gamma1: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    gamma2: torch.Tensor,
    w_qkv: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
) -> Tensors:
    d = x1.shape[-1]
    angles = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    dz2 = rotate(dqkv, angles.cos().to(dqkv.dtype), -angles.sin().to(dqkv.dtype))
    dx, dgamma2, h2 = norm_backward(dz2 @ w_qkv, x2, gamma2, r2, row_mean(qkv, dqkv, r2, d))
    e2 = dx2 + dx
    with torch.enable_grad():
        leaf = z1.detach().requires_grad_()
        act = swiglu(leaf)
        (dz1,) = torch.autograd.grad(act, leaf, e2 @ w2)
    dx, dgamma1, h1 = norm_backward(dz1 @ w1, x1, gamma1, r1, row_mean(z1, dz1, r1, d))
    e1 = e2 + dx
    return {
        "dx0": e1,
        "dy0": e1 @ w_o,
        "dw_o": e1.T @ y0,
        "dgamma1": dgamma1,
        "dw1": dz1.T @ h1,
        "dw2": e2.T @ act.detach(),
        "dgamma2": dgamma2,
        "dw_qkv": dz2.T @ h2,
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    """The gradients are drawn in the style asked for; what was saved comes from a forward on ordinary inputs, rounded
    where a program would store it."""
    t, d, a, f, q = (sizes[s] for s in "TDAFQ")
    keep = draws.stored
    w_o, w1 = keep(draws.weight((d, a), generator, style)), keep(draws.weight((2 * f, d), generator, style))
    w2, w_qkv = keep(draws.weight((d, f), generator, style)), keep(draws.weight((q, d), generator, style))
    gamma1, gamma2 = keep(draws.gain(d, generator)), keep(draws.gain(d, generator))
    pos, inv_freq = draws.positions(t, generator), draws.packed_frequencies(q // 2, generator)
    eps = draws.epsilon(generator)
    y0 = keep(draws.beside((t, a), generator, style))
    x1 = keep(draws.beside((t, d), generator, style) + draws.product(y0, w_o))
    r1 = torch.rsqrt(x1.pow(2).mean(-1) + eps)
    z1 = keep(draws.product(x1 * r1[:, None] * gamma1, w1))
    x2 = keep(x1 + draws.product(keep(swiglu(z1)), w2))
    r2 = torch.rsqrt(x2.pow(2).mean(-1) + eps)
    angles = torch.outer(pos.double(), inv_freq.double())
    z2 = draws.product(x2 * r2[:, None] * gamma2, w_qkv)
    qkv = keep(rotate(z2, angles.cos().float(), angles.sin().float()))
    return {
        "dqkv": draws.activation((t, q), generator, style),
        "dx2": draws.residual((t, d), generator, style),
        "y0": y0,
        "x1": x1,
        "r1": r1,
        "z1": z1,
        "x2": x2,
        "r2": r2,
        "qkv": qkv,
        "w_o": w_o,
        "gamma1": gamma1,
        "w1": w1,
        "w2": w2,
        "gamma2": gamma2,
        "w_qkv": w_qkv,
        "pos": pos,
        "inv_freq": inv_freq,
    }


TASK = TaskSpec(
    name="llama_unit_backward",
    summary="the gradients of llama_unit_forward's x0, y0, weights and norm weights, from those of qkv and x2, with "
    "y0, x1, r1, z1, x2, r2 and qkv saved",
    reference=reference,
    inputs=(
        TaskInput("dqkv", ("T", "Q")),
        TaskInput("dx2", ("T", "D")),
        TaskInput("y0", ("T", "A")),
        TaskInput("x1", ("T", "D")),
        TaskInput("r1", ("T",), dtype="float32"),
        TaskInput("z1", ("T", "2*F")),
        TaskInput("x2", ("T", "D")),
        TaskInput("r2", ("T",), dtype="float32"),
        TaskInput("qkv", ("T", "Q")),
        TaskInput("w_o", ("D", "A"), role="weight"),
        TaskInput("gamma1", ("D",), role="weight"),
        TaskInput("w1", ("2*F", "D"), role="weight"),
        TaskInput("w2", ("D", "F"), role="weight"),
        TaskInput("gamma2", ("D",), role="weight"),
        TaskInput("w_qkv", ("Q", "D"), role="weight"),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("Q/2",), dtype="float32", role="weight"),
    ),
    outputs=(
        TaskOutput("dx0", ("T", "D")),
        TaskOutput("dy0", ("T", "A")),
        TaskOutput("dw_o", ("D", "A")),
        TaskOutput("dgamma1", ("D",), dtype="float32"),
        TaskOutput("dw1", ("2*F", "D")),
        TaskOutput("dw2", ("D", "F")),
        TaskOutput("dgamma2", ("D",), dtype="float32"),
        TaskOutput("dw_qkv", ("Q", "D")),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_UNIT,
    time_shapes=TIME_UNIT,
    gemms=(
        ("T", "D", "Q"),
        ("Q", "D", "T"),
        ("T", "F", "D"),
        ("D", "F", "T"),
        ("T", "D", "2*F"),
        ("2*F", "D", "T"),
        ("T", "A", "D"),
        ("D", "A", "T"),
    ),
)

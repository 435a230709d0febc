"""The backward of RMSNorm over every head of queries and keys, then rotate-half rotary embedding (values pass through).

q and k are the projections before the norm, which the forward must save. A norm does not see the scale of its head, so
<q, dz_q> and <k, dz_k> are zero but for eps: the statistic that an RMSNorm before the projections needs of each row is
the values' alone. No GEMM makes the incoming gradients here, so a pass over them is the expected answer.
"""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def heads_backward(
    dy: torch.Tensor, z: torch.Tensor, gamma: torch.Tensor, angles: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of z and gamma, of norm and rotation. dy, z: [T, heads*H]; angles: [T, 1, H]."""
    dy = dy.unflatten(-1, (-1, len(gamma)))
    cos, sin = angles.cos().to(dy.dtype), angles.sin().to(dy.dtype)
    dn = dy * cos - rotate_half(dy) * sin  # the rotation back
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        xhat = normalised(leaf.unflatten(-1, (-1, len(gamma))), eps)
        (dz,) = torch.autograd.grad(xhat, leaf, dn * gamma)
    return dz, (dn.to(angles.dtype) * xhat.detach()).sum((0, 1))


def reference(
    dq: torch.Tensor,
    dk: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    g_q: torch.Tensor,
    g_k: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
    eps: float,
) -> Tensors:
    freqs = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    angles = torch.cat((freqs, freqs), dim=-1).unsqueeze(1)
    dz_q, dg_q = heads_backward(dq, q, g_q, angles, eps)
    dz_k, dg_k = heads_backward(dk, k, g_k, angles, eps)
    return {"dz_q": dz_q, "dz_k": dz_k, "dg_q": dg_q, "dg_k": dg_k}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, h = sizes["T"], sizes["H"]
    q, kv = (t, sizes["HQ"] * h), (t, sizes["HK"] * h)
    return {
        "dq": draws.activation(q, generator, style),
        "dk": draws.residual(kv, generator, style),
        "q": draws.beside(q, generator, style),
        "k": draws.beside(kv, generator, style),
        "g_q": draws.gain(h, generator),
        "g_k": draws.gain(h, generator),
        "pos": draws.positions(t, generator),
        "inv_freq": draws.inverse_frequencies(h // 2, generator),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="qknorm_rope_backward",
    summary="of y = rope(rmsnorm(z) * g), per head of H columns, for z = q and z = k: dz_q, dz_k; dg_q, dg_k, sums "
    "over tokens and heads",
    reference=reference,
    inputs=(
        TaskInput("dq", ("T", "HQ*H")),
        TaskInput("dk", ("T", "HK*H")),
        TaskInput("q", ("T", "HQ*H")),
        TaskInput("k", ("T", "HK*H")),
        TaskInput("g_q", ("H",), role="weight"),
        TaskInput("g_k", ("H",), role="weight"),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("H/2",), dtype="float32", role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(
        TaskOutput("dz_q", ("T", "HQ*H")),
        TaskOutput("dz_k", ("T", "HK*H")),
        TaskOutput("dg_q", ("H",), dtype="float32"),
        TaskOutput("dg_k", ("H",), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "HQ": 3, "HK": 1, "H": 16},
        {"T": 33, "HQ": 4, "HK": 2, "H": 16},
        {"T": 32, "HQ": 1, "HK": 1, "H": 32},
        {"T": 5, "HQ": 3, "HK": 3, "H": 32},
        {"T": 1, "HQ": 1, "HK": 1, "H": 16},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "HQ": 32, "HK": 8, "H": 128},
        "llama3-1b": {"T": 8192, "HQ": 32, "HK": 8, "H": 64},
        "odd": {"T": 7919, "HQ": 25, "HK": 5, "H": 64},
    },
    gemms=(),
)

"""From one Llama layer's attention output to the next one's rotated queries, keys and values; attention is outside.

Output projection, residual, RMSNorm, SwiGLU MLP, residual, RMSNorm, QKV projection, RoPE. Besides the results it
returns what the backward needs and cannot make anew in an epilogue: x1, z1 and the scales r1 and r2 (x2 and qkv are
results). w1 holds gate and up rows interleaved (g0, u0, g1, u1, ...), and z1 its columns likewise. w_qkv holds the rows
of all query, key and value heads; pairs of adjacent columns of qkv rotate by pos * inv_freq, and value columns have
frequency 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UNIT, TIME_UNIT
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rms_scale(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / rms of every row, [T], in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    return torch.rsqrt(wide.pow(2).mean(-1) + eps)


def normed(x: torch.Tensor, r: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return (x.to(r.dtype) * r.unsqueeze(-1)).to(x.dtype) * gamma


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, Q]; cos, sin: [T, Q/2], one angle for each pair of adjacent columns."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def reference(
    y0: torch.Tensor,
    x0: torch.Tensor,
    w_o: torch.Tensor,
    gamma1: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    gamma2: torch.Tensor,
    w_qkv: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
    eps: float,
) -> Tensors:
    x1 = x0 + F.linear(y0, w_o)
    r1 = rms_scale(x1, eps)
    z1 = F.linear(normed(x1, r1, gamma1), w1)
    gate, up = z1.unflatten(-1, (-1, 2)).unbind(-1)
    x2 = x1 + F.linear(F.silu(gate) * up, w2)
    r2 = rms_scale(x2, eps)
    angles = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    cos, sin = angles.cos().to(x0.dtype), angles.sin().to(x0.dtype)
    qkv = rotate(F.linear(normed(x2, r2, gamma2), w_qkv), cos, sin)
    return {"x1": x1, "r1": r1, "z1": z1, "x2": x2, "r2": r2, "qkv": qkv}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, a, f, q = (sizes[s] for s in "TDAFQ")
    return {
        "y0": draws.activation((t, a), generator, style),
        "x0": draws.residual((t, d), generator, style),
        "w_o": draws.weight((d, a), generator, style),
        "gamma1": draws.gain(d, generator),
        "w1": draws.weight((2 * f, d), generator, style),
        "w2": draws.weight((d, f), generator, style),
        "gamma2": draws.gain(d, generator),
        "w_qkv": draws.weight((q, d), generator, style),
        "pos": draws.positions(t, generator),
        "inv_freq": draws.packed_frequencies(q // 2, generator),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="llama_unit_forward",
    summary="x1 = x0 + y0 w_o^T; z1 = rmsnorm(x1) w1^T; x2 = x1 + (silu(z1[:, 0::2]) * z1[:, 1::2]) w2^T; "
    "qkv = rope(rmsnorm(x2) w_qkv^T) over adjacent pairs; r1 and r2 are the norms' scales, 1 / rms",
    reference=reference,
    inputs=(
        TaskInput("y0", ("T", "A")),
        TaskInput("x0", ("T", "D")),
        TaskInput("w_o", ("D", "A"), role="weight"),
        TaskInput("gamma1", ("D",), role="weight"),
        TaskInput("w1", ("2*F", "D"), role="weight"),
        TaskInput("w2", ("D", "F"), role="weight"),
        TaskInput("gamma2", ("D",), role="weight"),
        TaskInput("w_qkv", ("Q", "D"), role="weight"),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("Q/2",), dtype="float32", role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(
        TaskOutput("x1", ("T", "D")),
        TaskOutput("r1", ("T",), dtype="float32"),
        TaskOutput("z1", ("T", "2*F")),
        TaskOutput("x2", ("T", "D")),
        TaskOutput("r2", ("T",), dtype="float32"),
        TaskOutput("qkv", ("T", "Q")),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_UNIT,
    time_shapes=TIME_UNIT,
    gemms=(("T", "D", "A"), ("T", "2*F", "D"), ("T", "D", "F"), ("T", "Q", "D")),
    saved=("x1", "r1", "z1", "x2", "r2", "qkv"),
    backward="llama_unit_backward",
)

"""RMSNorm, then query, key and value projections with rotate-half rotary embedding; grouped-query attention.

No GEMM before it can carry the norm's sum of squares, so one pointwise pass over x is the expected answer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_HEADS, TIME_HEADS
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # x.float(), except that float64 stays float64
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * gamma


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotary_angles(pos: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """[T, 1, H]: both halves of a head turn by the same angles, in every head."""
    freqs = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    return torch.cat((freqs, freqs), dim=-1).unsqueeze(1)


def apply_rotary(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """heads: [T, heads, H] -> [T, heads*H]."""
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    return (heads * cos + rotate_half(heads) * sin).flatten(1)


def reference(
    x: torch.Tensor,
    gamma: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
    eps: float,
) -> Tensors:
    h = rms_norm(x, gamma, eps)
    q, k, v = F.linear(h, w_q), F.linear(h, w_k), F.linear(h, w_v)
    angles = rotary_angles(pos, inv_freq)
    head = angles.shape[-1]
    return {
        "q": apply_rotary(q.unflatten(-1, (-1, head)), angles),
        "k": apply_rotary(k.unflatten(-1, (-1, head)), angles),
        "v": v,
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, half = sizes["T"], sizes["D"], sizes["H"] // 2
    q, kv = sizes["HQ"] * sizes["H"], sizes["HK"] * sizes["H"]
    return {
        "x": draws.activation((t, d), generator, style),
        "gamma": draws.gain(d, generator),
        "w_q": draws.weight((q, d), generator, style),
        "w_k": draws.weight((kv, d), generator, style),
        "w_v": draws.weight((kv, d), generator, style),
        "pos": draws.positions(t, generator),
        "inv_freq": draws.inverse_frequencies(half, generator),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="rmsnorm_qkv_rope",
    summary="h = rmsnorm(x) * gamma; q = rope(h w_q^T), k = rope(h w_k^T), v = h w_v^T; a pointwise pass is expected",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("gamma", ("D",), role="weight"),
        TaskInput("w_q", ("HQ*H", "D"), role="weight"),
        TaskInput("w_k", ("HK*H", "D"), role="weight"),
        TaskInput("w_v", ("HK*H", "D"), role="weight"),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("H/2",), dtype="float32", role="weight"),
        TaskInput("eps", dtype="float32", role="scalar"),
    ),
    outputs=(TaskOutput("q", ("T", "HQ*H")), TaskOutput("k", ("T", "HK*H")), TaskOutput("v", ("T", "HK*H"))),
    make_inputs=make_inputs,
    check_shapes=CHECK_HEADS,
    time_shapes=TIME_HEADS,
    gemms=(("T", "HQ*H", "D"), ("T", "HK*H", "D"), ("T", "HK*H", "D")),
)

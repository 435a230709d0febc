"""Query, key and value projections, RMSNorm over every head of queries and keys, then rotate-half rotary embedding."""

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
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    g_q: torch.Tensor,
    g_k: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
    eps: float,
) -> Tensors:
    angles = rotary_angles(pos, inv_freq)
    q = F.linear(x, w_q).unflatten(-1, (-1, len(g_q)))
    k = F.linear(x, w_k).unflatten(-1, (-1, len(g_k)))
    return {
        "q": apply_rotary(rms_norm(q, g_q, eps), angles),
        "k": apply_rotary(rms_norm(k, g_k, eps), angles),
        "v": F.linear(x, w_v),
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, h = sizes["T"], sizes["D"], sizes["H"]
    q, kv = sizes["HQ"] * h, sizes["HK"] * h
    return {
        "x": draws.activation((t, d), generator, style),
        "w_q": draws.weight((q, d), generator, style),
        "w_k": draws.weight((kv, d), generator, style),
        "w_v": draws.weight((kv, d), generator, style),
        "g_q": draws.gain(h, generator),
        "g_k": draws.gain(h, generator),
        "pos": draws.positions(t, generator),
        "inv_freq": draws.inverse_frequencies(h // 2, generator),
        "eps": draws.epsilon(generator),
    }


TASK = TaskSpec(
    name="qknorm_rope",
    summary="q = rope(rmsnorm(x w_q^T) * g_q), k = rope(rmsnorm(x w_k^T) * g_k), norms over each head; v = x w_v^T",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w_q", ("HQ*H", "D"), role="weight"),
        TaskInput("w_k", ("HK*H", "D"), role="weight"),
        TaskInput("w_v", ("HK*H", "D"), role="weight"),
        TaskInput("g_q", ("H",), role="weight"),
        TaskInput("g_k", ("H",), role="weight"),
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

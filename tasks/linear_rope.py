"""Query, key and value projections with rotate-half rotary embedding of queries and keys; grouped-query attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

LAST_POSITION = 131_071


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, heads*H]; cos, sin: [T, H]."""
    heads = x.view(len(x), -1, cos.shape[-1])
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (heads * cos + rotate_half(heads) * sin).flatten(1)


def reference(
    x: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    pos: torch.Tensor,
    inv_freq: torch.Tensor,
) -> Tensors:
    freqs = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    angles = torch.cat((freqs, freqs), dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return {
        "q": apply_rotary(F.linear(x, w_q), cos, sin),
        "k": apply_rotary(F.linear(x, w_k), cos, sin),
        "v": F.linear(x, w_v),
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, half = sizes["T"], sizes["D"], sizes["H"] // 2
    q, kv = sizes["HQ"] * sizes["H"], sizes["HK"] * sizes["H"]
    pos = torch.randint(0, LAST_POSITION + 1, (t,), generator=generator)
    pos[0], pos[-1] = 0, LAST_POSITION
    theta = (10_000.0, 500_000.0)[int(torch.randint(0, 2, (1,), generator=generator))]
    return {
        "x": draws.activation((t, d), generator, style),
        "w_q": draws.weight((q, d), generator, style),
        "w_k": draws.weight((kv, d), generator, style),
        "w_v": draws.weight((kv, d), generator, style),
        "pos": pos,
        "inv_freq": theta ** (-torch.arange(half) / half),
    }


TASK = TaskSpec(
    name="linear_rope",
    summary="q = rope(x w_q^T), k = rope(x w_k^T), v = x w_v^T; the two halves of a head rotate",
    reference=reference,
    inputs=(
        TaskInput("x", ("T", "D")),
        TaskInput("w_q", ("HQ*H", "D"), role="weight"),
        TaskInput("w_k", ("HK*H", "D"), role="weight"),
        TaskInput("w_v", ("HK*H", "D"), role="weight"),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("H/2",), dtype="float32", role="weight"),
    ),
    outputs=(TaskOutput("q", ("T", "HQ*H")), TaskOutput("k", ("T", "HK*H")), TaskOutput("v", ("T", "HK*H"))),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "HQ": 3, "HK": 1, "H": 16},
        {"T": 33, "D": 64, "HQ": 4, "HK": 2, "H": 16},
        {"T": 32, "D": 32, "HQ": 1, "HK": 1, "H": 32},
        {"T": 5, "D": 7, "HQ": 3, "HK": 3, "H": 32},
        {"T": 1, "D": 1, "HQ": 1, "HK": 1, "H": 16},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "HQ": 32, "HK": 8, "H": 128},
        "llama3-1b": {"T": 8192, "D": 2048, "HQ": 32, "HK": 8, "H": 64},
        "odd": {"T": 7919, "D": 3000, "HQ": 25, "HK": 5, "H": 64},
    },
    gemms=(("T", "HQ*H", "D"), ("T", "HK*H", "D"), ("T", "HK*H", "D")),
)

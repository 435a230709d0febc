"""The backward of rotary embedding on a packed projection, with the statistic of the norm before it.

qkv holds the rotated query and key heads and the plain value heads side by side; each pair of adjacent columns rotates
by pos * inv_freq, and value columns have frequency 0. A rotation's transpose is the rotation back. zdz is the row sum
of z * dz that the backward of the RMSNorm before the projection needs: rotations keep products of rows, so it is the
sum of qkv * dqkv, and the projection before the rotation need not be saved.
"""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, Q]; cos, sin: [T, Q/2], one angle for each pair of adjacent columns."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def reference(dqkv: torch.Tensor, qkv: torch.Tensor, pos: torch.Tensor, inv_freq: torch.Tensor) -> Tensors:
    angles = torch.outer(pos.to(inv_freq.dtype), inv_freq)
    cos, sin = angles.cos().to(qkv.dtype), angles.sin().to(qkv.dtype)
    products = qkv.to(inv_freq.dtype) * dqkv.to(inv_freq.dtype)
    return {"dz": rotate(dqkv, cos, -sin), "zdz": products.sum(-1)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, q = sizes["T"], sizes["Q"]
    return {
        "dqkv": draws.activation((t, q), generator, style),
        "qkv": draws.residual((t, q), generator, style),
        "pos": draws.positions(t, generator),
        "inv_freq": draws.packed_frequencies(q // 2, generator),
    }


TASK = TaskSpec(
    name="rope_backward",
    summary="of qkv = z with each pair of columns (2i, 2i+1) rotated by pos * inv_freq[i]: dz = dqkv rotated back; zdz "
    "= row sum of qkv * dqkv",
    reference=reference,
    inputs=(
        TaskInput("dqkv", ("T", "Q")),
        TaskInput("qkv", ("T", "Q")),
        TaskInput("pos", ("T",), dtype="int64"),
        TaskInput("inv_freq", ("Q/2",), dtype="float32", role="weight"),
    ),
    outputs=(TaskOutput("dz", ("T", "Q")), TaskOutput("zdz", ("T",), dtype="float32")),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "Q": 58},
        {"T": 40, "Q": 80},
        {"T": 48, "Q": 48},
        {"T": 5, "Q": 6},
        {"T": 1, "Q": 2},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "Q": 6144},
        "llama3-1b": {"T": 8192, "Q": 3072},
        "odd": {"T": 7919, "Q": 5000},
    },
    gemms=(),
)

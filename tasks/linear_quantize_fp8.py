"""A linear layer whose result leaves as fp8: e4m3 codes, and a float32 scale for every group of 128 columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

GROUP = 128
LARGEST = 448.0  # of e4m3


def reference(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    z = F.linear(x, w)
    groups = z.to(torch.promote_types(z.dtype, torch.float32)).unflatten(-1, (-1, GROUP))  # .float(), or float64
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST
    codes = (groups / scale).to(torch.float8_e4m3fn)
    return {"codes": codes.flatten(1), "scale": scale.squeeze(-1)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, n = sizes["T"], sizes["D"], sizes["N"]
    return {"x": draws.activation((t, d), generator, style), "w": draws.weight((n, d), generator, style)}


TASK = TaskSpec(
    name="linear_quantize_fp8",
    summary="z = x w^T; scale = max(|z|, 1e-12) / 448 over each 128 columns; codes = e4m3(z / scale)",
    reference=reference,
    inputs=(TaskInput("x", ("T", "D")), TaskInput("w", ("N", "D"), role="weight")),
    outputs=(
        TaskOutput("codes", ("T", "N"), dtype="float8_e4m3fn"),
        TaskOutput("scale", ("T", "N/128"), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "N": 256},
        {"T": 24, "D": 64, "N": 384},
        {"T": 128, "D": 128, "N": 128},
        {"T": 5, "D": 7, "N": 128},
        {"T": 1, "D": 1, "N": 128},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "N": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "N": 8192},
        "odd": {"T": 7919, "D": 3000, "N": 8064},
    },
    gemms=(("T", "N", "D"),),
)

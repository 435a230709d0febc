"""A linear layer whose result leaves as fp8: e4m3 codes, and one float32 scale a row.

A row's largest magnitude is known only when every tile of the row is done. So the expected answer is a GEMM that stores
its product and partial maxima, a finisher that makes the scales, and a pointwise pass that makes the codes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

LARGEST = 448.0  # of e4m3


def reference(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    z = F.linear(x, w)
    z = z.to(torch.promote_types(z.dtype, torch.float32))  # .float(), except that float64 stays float64
    scale = z.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST
    return {"codes": (z / scale).to(torch.float8_e4m3fn), "scale": scale.squeeze(-1)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, n = sizes["T"], sizes["D"], sizes["N"]
    return {"x": draws.activation((t, d), generator, style), "w": draws.weight((n, d), generator, style)}


TASK = TaskSpec(
    name="linear_quantize_fp8_rowwise",
    summary="z = x w^T; scale = max(|z|, 1e-12) / 448 over each row; codes = e4m3(z / scale); a pointwise pass is due",
    reference=reference,
    inputs=(TaskInput("x", ("T", "D")), TaskInput("w", ("N", "D"), role="weight")),
    outputs=(TaskOutput("codes", ("T", "N"), dtype="float8_e4m3fn"), TaskOutput("scale", ("T",), dtype="float32")),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "N": 41},
        {"T": 33, "D": 64, "N": 80},
        {"T": 48, "D": 48, "N": 48},
        {"T": 5, "D": 7, "N": 3},
        {"T": 1, "D": 1, "N": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "N": 14336},
        "llama3-1b": {"T": 8192, "D": 2048, "N": 8192},
        "odd": {"T": 7919, "D": 3000, "N": 8008},
    },
    gemms=(("T", "N", "D"),),
)

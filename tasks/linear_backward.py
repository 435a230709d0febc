"""The backward of a linear layer with a bias: the gradient goes on, and the layer's own gradients are added up.

dw is a float32 gradient that several backward passes add to (micro-batches, a tied weight), so it is an in-place input.
No GEMM makes dy here, so db needs a pass of its own over it; a GEMM that makes dy can carry db as partials.
"""

from __future__ import annotations

import torch
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, dw: torch.Tensor) -> Tensors:
    return {
        "dx": dy @ w,
        "dw": dw + (dy.T @ x).to(dw.dtype),
        "db": dy.sum(0, dtype=dw.dtype),
    }


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "dy": draws.activation((t, f), generator, style),
        "x": draws.residual((t, d), generator, style),
        "w": draws.weight((f, d), generator, style),
        "dw": draws.accumulated((f, d), t, generator, style),
    }


TASK = TaskSpec(
    name="linear_backward",
    summary="of y = x w^T + b: dx = dy w; dw = dw + dy^T x, in place; db = sum of dy over the tokens",
    reference=reference,
    inputs=(
        TaskInput("dy", ("T", "F")),
        TaskInput("x", ("T", "D")),
        TaskInput("w", ("F", "D"), role="weight"),
        TaskInput("dw", ("F", "D"), dtype="float32", role="in_place"),
    ),
    outputs=(
        TaskOutput("dx", ("T", "D")),
        TaskOutput("dw", ("F", "D"), dtype="float32"),
        TaskOutput("db", ("F",), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "D", "F"), ("F", "D", "T")),
)

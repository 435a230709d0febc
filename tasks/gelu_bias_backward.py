"""The backward of a GELU MLP's activation, from the gradient e of the down projection's output.

z is the first projection's output with its bias b added. act, which was not saved, is made anew for the gradient of
w_down. s = <z - b, dz> / D is the statistic that the backward of an RMSNorm before the first projection needs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def reference(e: torch.Tensor, w_down: torch.Tensor, z: torch.Tensor, b: torch.Tensor) -> Tensors:
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        act = F.gelu(leaf)
        (dz,) = torch.autograd.grad(act, leaf, e @ w_down)
    act = act.detach()
    wide = torch.promote_types(z.dtype, torch.float32)
    s = ((z.to(wide) - b.to(wide)) * dz.to(wide)).sum(-1) / e.shape[-1]
    return {"dz": dz, "act": act, "db": dz.sum(0, dtype=wide), "s": s, "dw_down": e.T @ act}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "e": draws.activation((t, d), generator, style),
        "w_down": draws.weight((d, f), generator, style),
        "z": draws.beside((t, f), generator, style),
        "b": draws.bias(f, generator, style),
    }


TASK = TaskSpec(
    name="gelu_bias_backward",
    summary="dz = (e w_down) * gelu'(z); act = gelu(z); db = sum of dz over the tokens; s = <z - b, dz> / D of each "
    "row; dw_down = e^T act",
    reference=reference,
    inputs=(
        TaskInput("e", ("T", "D")),
        TaskInput("w_down", ("D", "F"), role="weight"),
        TaskInput("z", ("T", "F")),
        TaskInput("b", ("F",), role="weight"),
    ),
    outputs=(
        TaskOutput("dz", ("T", "F")),
        TaskOutput("act", ("T", "F")),
        TaskOutput("db", ("F",), dtype="float32"),
        TaskOutput("s", ("T",), dtype="float32"),
        TaskOutput("dw_down", ("D", "F")),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"), ("D", "F", "T")),
)

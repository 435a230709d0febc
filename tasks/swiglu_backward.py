"""The backward of SwiGLU between the MLP's two GEMMs, from the gradient e of the down projection's output.

z holds gate and up columns interleaved (g0, u0, g1, u1, ...), as one GEMM with interleaved weights makes them; dz has
the same layout. act, which was not saved, is made anew for the gradient of w_down. s = <z, dz> / D is the statistic
that the backward of the RMSNorm before the gate and up projections needs of every row: no later kernel sees z and dz.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_UP, TIME_UP
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors


def swiglu(z: torch.Tensor) -> torch.Tensor:
    gate, up = z.unflatten(-1, (-1, 2)).unbind(-1)
    act: torch.Tensor = F.silu(gate) * up
    return act


def reference(e: torch.Tensor, w_down: torch.Tensor, z: torch.Tensor) -> Tensors:
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        act = swiglu(leaf)
        (dz,) = torch.autograd.grad(act, leaf, e @ w_down)
    act = act.detach()
    wide = torch.promote_types(z.dtype, torch.float32)
    s = (z.to(wide) * dz.to(wide)).sum(-1) / e.shape[-1]
    return {"dz": dz, "act": act, "s": s, "dw_down": e.T @ act}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, f = sizes["T"], sizes["D"], sizes["F"]
    return {
        "e": draws.activation((t, d), generator, style),
        "w_down": draws.weight((d, f), generator, style),
        "z": draws.beside((t, 2 * f), generator, style),
    }


TASK = TaskSpec(
    name="swiglu_backward",
    summary="dact = e w_down; of act = silu(z[:, 0::2]) * z[:, 1::2]: dz, interleaved like z; act; s = <z, dz> / D of "
    "each row; dw_down = e^T act",
    reference=reference,
    inputs=(
        TaskInput("e", ("T", "D")),
        TaskInput("w_down", ("D", "F"), role="weight"),
        TaskInput("z", ("T", "2*F")),
    ),
    outputs=(
        TaskOutput("dz", ("T", "2*F")),
        TaskOutput("act", ("T", "F")),
        TaskOutput("s", ("T",), dtype="float32"),
        TaskOutput("dw_down", ("D", "F")),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_UP,
    time_shapes=TIME_UP,
    gemms=(("T", "F", "D"), ("D", "F", "T")),
)

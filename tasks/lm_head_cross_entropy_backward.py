"""The backward of the LM head and its loss, from the log-sum-exp of each row that the forward kept.

The logits are made anew, not saved. dz is the gradient of the sum of the tokens' losses; alpha, what one token's loss
counts in the loss at hand (the incoming gradient over the number of kept tokens), scales everything else linearly and
is applied once, in the GEMMs that use dz. s = <z, dz> / D is the statistic for the backward of an RMSNorm before the
head, also without alpha. A token whose target is -100 gives nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_HEAD, TIME_HEAD
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

IGNORED = -100
CHUNK = 1024  # rows whose logits are made at once


def reference(h: torch.Tensor, w: torch.Tensor, lse: torch.Tensor, target: torch.Tensor, alpha: float) -> Tensors:
    logits = F.linear(h, w).to(lse.dtype)
    kept = (target != -100).unsqueeze(-1)
    onehot = torch.arange(len(w), device=h.device) == target.unsqueeze(-1)
    log_p = logits - lse.unsqueeze(-1)
    log_p = torch.minimum(log_p, torch.ones_like(log_p))  # above 0 only where rounded logits meet an exact lse
    dz = torch.where(kept, log_p.exp() - onehot.to(lse.dtype), 0.0)
    s = (logits * dz).sum(-1) / h.shape[-1]
    dz = dz.to(h.dtype)
    return {"dz": dz, "s": s, "dh": alpha * (dz @ w), "dw": alpha * (dz.T @ h)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, v = sizes["T"], sizes["D"], sizes["V"]
    h = draws.stored(draws.beside((t, d), generator, style))
    w = draws.stored(draws.weight((v, d), generator, style))
    target = torch.randint(0, v, (t,), generator=generator)
    target[torch.rand(t, generator=generator) < 0.2] = IGNORED
    target[-1] = v - 1
    lse = torch.cat([torch.logsumexp(draws.product(rows, w), -1) for rows in h.split(CHUNK)])
    alpha = float(torch.rand((), generator=generator)) + 0.5
    return {"h": h, "w": w, "lse": lse, "target": target, "alpha": alpha}


TASK = TaskSpec(
    name="lm_head_cross_entropy_backward",
    summary="z = h w^T; dz = exp(z - lse) - onehot(target), 0 for rows whose target is -100; s = <z, dz> / D of each "
    "row; dh = alpha * dz w; dw = alpha * dz^T h",
    reference=reference,
    inputs=(
        TaskInput("h", ("T", "D")),
        TaskInput("w", ("V", "D"), role="weight"),
        TaskInput("lse", ("T",), dtype="float32"),
        TaskInput("target", ("T",), dtype="int64"),
        TaskInput("alpha", dtype="float32", role="scalar"),
    ),
    outputs=(
        TaskOutput("dz", ("T", "V")),
        TaskOutput("s", ("T",), dtype="float32"),
        TaskOutput("dh", ("T", "D")),
        TaskOutput("dw", ("V", "D")),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_HEAD,
    time_shapes=TIME_HEAD,
    gemms=(("T", "V", "D"), ("T", "D", "V"), ("V", "D", "T")),
)

"""The LM head with soft-capped logits, and its loss: per token, logsumexp, and the mean over what is not ignored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_HEAD, TIME_HEAD
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

IGNORED = -100


def reference(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor, cap: float) -> Tensors:
    logits = F.linear(h, w)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # .float(), except that float64 stays
    logits = cap * torch.tanh(logits / cap)
    lse = torch.logsumexp(logits, dim=-1)
    kept = target != -100
    chosen = logits.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    loss = torch.where(kept, lse - chosen, 0.0)
    return {"loss": loss, "lse": lse, "mean": loss.sum() / kept.sum().clamp(min=1)}


def make_inputs(sizes: Sizes, generator: torch.Generator, style: str) -> dict[str, torch.Tensor | float | int]:
    t, d, v = sizes["T"], sizes["D"], sizes["V"]
    target = torch.randint(0, v, (t,), generator=generator)
    target[torch.rand(t, generator=generator) < 0.2] = IGNORED
    if style != "adversarial_rows":  # there, a batch may be ignored altogether
        target[-1] = v - 1
    return {
        "h": draws.activation((t, d), generator, style),
        "w": draws.weight((v, d), generator, style),
        "target": target,
        "cap": (1.5, 3.0, 6.0)[int(torch.randint(0, 3, (1,), generator=generator))],  # of the logits' scale
    }


TASK = TaskSpec(
    name="lm_head_softcap_cross_entropy",
    summary="z = cap * tanh(h w^T / cap); lse, loss and mean of z as in lm_head_cross_entropy",
    reference=reference,
    inputs=(
        TaskInput("h", ("T", "D")),
        TaskInput("w", ("V", "D"), role="weight"),
        TaskInput("target", ("T",), dtype="int64"),
        TaskInput("cap", dtype="float32", role="scalar"),
    ),
    outputs=(
        TaskOutput("loss", ("T",), dtype="float32"),
        TaskOutput("lse", ("T",), dtype="float32"),
        TaskOutput("mean", (), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_HEAD,
    time_shapes=TIME_HEAD,
    gemms=(("T", "V", "D"),),
)

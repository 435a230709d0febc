"""The LM head and its loss, with the logits kept for whoever needs them: a sampler, or a backward that reads them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.shapes import CHECK_HEAD, TIME_HEAD
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

IGNORED = -100


def reference(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Tensors:
    stored = F.linear(h, w)
    logits = stored.to(torch.promote_types(stored.dtype, torch.float32))  # .float(), except that float64 stays
    lse = torch.logsumexp(logits, dim=-1)
    kept = target != -100
    chosen = logits.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    loss = torch.where(kept, lse - chosen, 0.0)
    return {"logits": stored, "loss": loss, "lse": lse, "mean": loss.sum() / kept.sum().clamp(min=1)}


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
    }


TASK = TaskSpec(
    name="lm_head_cross_entropy_logits",
    summary="as lm_head_cross_entropy, and returns the logits h w^T as well",
    reference=reference,
    inputs=(
        TaskInput("h", ("T", "D")),
        TaskInput("w", ("V", "D"), role="weight"),
        TaskInput("target", ("T",), dtype="int64"),
    ),
    outputs=(
        TaskOutput("logits", ("T", "V")),
        TaskOutput("loss", ("T",), dtype="float32"),
        TaskOutput("lse", ("T",), dtype="float32"),
        TaskOutput("mean", (), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=CHECK_HEAD,
    time_shapes=TIME_HEAD,
    gemms=(("T", "V", "D"),),
)

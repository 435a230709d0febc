"""The LM head and its loss: per-token cross-entropy, logsumexp, and the mean over the tokens that are not ignored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec, Tensors

IGNORED = -100


def reference(h: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Tensors:
    logits = F.linear(h, w)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # .float(), except that float64 stays
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
    }


TASK = TaskSpec(
    name="lm_head_cross_entropy",
    summary="z = h w^T; lse = logsumexp(z); loss = lse - z[target], 0 where target is -100; mean over the other tokens",
    reference=reference,
    inputs=(
        TaskInput("h", ("T", "D")),
        TaskInput("w", ("V", "D"), role="weight"),
        TaskInput("target", ("T",), dtype="int64"),
    ),
    outputs=(
        TaskOutput("loss", ("T",), dtype="float32"),
        TaskOutput("lse", ("T",), dtype="float32"),
        TaskOutput("mean", (), dtype="float32"),
    ),
    make_inputs=make_inputs,
    check_shapes=(
        {"T": 37, "D": 53, "V": 101},
        {"T": 33, "D": 64, "V": 80},
        {"T": 48, "D": 48, "V": 48},
        {"T": 5, "D": 7, "V": 3},
        {"T": 1, "D": 1, "V": 1},
    ),
    time_shapes={
        "llama3-8b": {"T": 8192, "D": 4096, "V": 128256},
        "llama3-1b": {"T": 8192, "D": 2048, "V": 128256},
        "odd": {"T": 7919, "D": 3000, "V": 50257},
    },
    gemms=(("T", "V", "D"),),
)

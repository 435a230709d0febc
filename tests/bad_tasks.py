"""Tasks that should not exist: each is degenerate in one way that published benchmarks were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from coda_synth.tasks import draws
from coda_synth.tasks.spec import TaskInput, TaskOutput, TaskSpec

SHAPES = ({"T": 24, "F": 20, "K": 40}, {"T": 5, "F": 3, "K": 7})


def _inputs(sizes: Any, generator: torch.Generator, style: str) -> dict[str, Any]:
    t, f, k = sizes["T"], sizes["F"], sizes["K"]
    return {"x": draws.activation((t, k), generator, style), "w": draws.weight((f, k), generator, style)}


def _positive(sizes: Any, generator: torch.Generator, style: str) -> dict[str, Any]:
    """Uniform on [0, 1), as a popular benchmark draws them: long sums are all alike."""
    t, f, k = sizes["T"], sizes["F"], sizes["K"]
    return {"x": torch.rand((t, k), generator=generator), "w": torch.rand((f, k), generator=generator)}


def spec(reference: Callable[..., Any], **more: Any) -> TaskSpec:
    made = {
        "name": "bad",
        "summary": "",
        "reference": reference,
        "inputs": (TaskInput("x", ("T", "K")), TaskInput("w", ("F", "K"), role="weight")),
        "outputs": (TaskOutput("y", ("T", "F")),),
        "make_inputs": _inputs,
        "check_shapes": SHAPES,
        "time_shapes": {"only": {"T": 64, "F": 64, "K": 64}},
        "gemms": (("T", "F", "K"),),
    }
    return TaskSpec(**{**made, **more})


_calls = [0]


def _counts_calls(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    _calls[0] += 1
    return {"y": F.linear(x, w) + _calls[0]}


def _in_place(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    y = F.linear(x, w)
    x.mul_(2.0)
    return {"y": y}


def _row_sum(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": F.linear(x, w).sum(-1)}


def _wide_baseline(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    return {"y": F.linear(x.to(wide), w.to(wide)).to(x.dtype)}


def _narrow_baseline(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    narrow = (lambda v: v.to(torch.float8_e4m3fn).to(v.dtype)) if x.dtype == torch.bfloat16 else (lambda v: v)
    return {"y": F.linear(narrow(x.clamp(-448, 448)), narrow(w))}


# What lint must find, and words of the evidence.
BAD: dict[str, tuple[TaskSpec, str, str]] = {
    "zero by construction": (
        spec(lambda x, w: {"y": torch.relu(F.linear(x, w).abs() * 0)}),
        "UnderTolerance",
        "zeros pass for y",
    ),
    "constant whatever comes in": (
        spec(lambda x, w: {"y": torch.tanh(F.linear(x, w).abs() * 0 + 1e4)}),
        "ConstantOutput",
        "within tolerance",
    ),
    "the law of large numbers": (
        spec(
            lambda x, w: {"y": F.linear(x, w)},
            make_inputs=_positive,
            check_shapes=({"T": 4, "F": 4, "K": 50_000}, {"T": 1, "F": 1, "K": 1}),
        ),
        "ConstantOutput",
        "for these inputs and for others",
    ),
    "a difference that cancels": (
        spec(lambda x, w: {"y": (F.linear(x, w) + 1e6) - 1e6}),
        "UnderTolerance",
        "the allowed error",
    ),
    "the sum over N": (spec(_row_sum, outputs=(TaskOutput("y", ("T",)),)), "GemvInDisguise", "w can be replaced"),
    "an input that nothing reads": (
        spec(lambda x, w: {"y": x.cumsum(-1)}, outputs=(TaskOutput("y", ("T", "K")),)),
        "DeadOperator",
        "the input w does not matter",
    ),
    "dropout": (spec(lambda x, w: {"y": F.dropout(F.linear(x, w), 0.5)}), "Randomness", "mask"),
    "a state between calls": (spec(_counts_calls), "HiddenState", "kept between calls"),
    "an input changed in place": (spec(_in_place), "HiddenState", "changes its input x"),
    "overflow": (spec(lambda x, w: {"y": F.linear(x, w).exp().exp()}), "Overflow", "not finite"),
    "overflow in fp16 alone": (
        spec(lambda x, w: {"y": F.linear(x, w) * 1e4 / 1e4}, dtypes=("float16",)),
        "Overflow",
        "in float16",
    ),
    "a baseline in another precision": (spec(_wide_baseline), "BaselinePrecision", "float32 operands"),
    "a baseline below its own tolerance": (spec(_narrow_baseline), "BaselinePrecision", "allowed error"),
    "another dtype than declared": (
        spec(lambda x, w: {"y": F.linear(x, w).to(torch.promote_types(x.dtype, torch.float32))}),
        "BaselinePrecision",
        "declares bfloat16",
    ),
}

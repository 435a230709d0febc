"""The type of a task: what to compute, for which shapes, how inputs are made and how close a result must come."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class TaskInput:
    """One input. dims: as the language writes them ("T", "2*F"); () for a scalar.

    dtype: "activation" (the evaluation's dtype), "float32" or "int64" (an Index). role: "activation"; "weight" (may
    enter a preparation; a fresh one is made between evaluations); "scalar" (a Python float); "in_place" (a float32
    matrix that a program may overwrite with itself plus something: a gradient that gradients are added to).
    """

    name: str
    dims: tuple[str, ...] = ()
    dtype: str = "activation"
    role: str = "activation"


@dataclass(frozen=True)
class TaskOutput:
    """One output. dtype: "activation" or "float32"."""

    name: str
    dims: tuple[str, ...]
    dtype: str = "activation"


@dataclass(frozen=True)
class TaskSpec:
    """One operator.

    reference(**inputs) -> {output name: tensor}: plain PyTorch, works at any float dtype.
    make_inputs(sizes, generator, style) -> {input name: float32/int64 tensor or float} on the CPU; styles: STYLES.
    check_shapes: small, odd and minimal shapes; time_shapes: label -> sizes, the first is the headline shape.
    gemms: (M, N, K) in dims, the bare GEMMs that the best rearrangement needs (merged where weights can be merged).
    """

    name: str
    summary: str
    reference: Callable[..., Tensors]
    inputs: tuple[TaskInput, ...]
    outputs: tuple[TaskOutput, ...]
    make_inputs: Callable[[Sizes, torch.Generator, str], dict[str, torch.Tensor | float | int]]
    check_shapes: tuple[Sizes, ...]
    time_shapes: Mapping[str, Sizes]
    gemms: tuple[tuple[str, str, str], ...]
    dtypes: tuple[str, ...] = ("bfloat16",)
    saved: tuple[str, ...] = ()
    backward: str | None = None

    @property
    def source(self) -> str:
        """The text of the task's module: reference and inputs, as an author would read them."""
        module = inspect.getmodule(self.reference)
        return inspect.getsource(module) if module else inspect.getsource(self.reference)

    @property
    def reference_source(self) -> str:
        """The reference and the functions beside it, without inputs and shapes: what an author of programs is shown."""
        module = inspect.getmodule(self.reference)
        own = [f for f in vars(module).values() if inspect.isfunction(f) and inspect.getmodule(f) is module]
        return "\n\n".join(inspect.getsource(f).rstrip() for f in own if f is not self.make_inputs)


STYLES = ("normal", "skewed", "small", "large", "integers", "one_hot", "repeated_rows", "adversarial_rows")

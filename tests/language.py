"""A signature made from a program's own parameters, so that tests can evaluate programs that belong to no task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from coda_synth.coda_api.program import InputSpec, OutputSpec, Program, Signature, TypeKind
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from torch import Tensor

_ROLES = {TypeKind.SCALAR: "scalar", TypeKind.SIZE: "scalar"}


def signature_of(program: Program, outputs: Mapping[str, str] | None = None, dtype: str = "float32") -> Signature:
    """outputs: declared dtypes that differ from float32. Tensors whose name starts with "w" are weights, and one called
    dw is what fp32 is added to."""
    inputs = tuple(
        InputSpec(p.name, p.type, "float32", "in_place")
        if p.name == "dw"
        else InputSpec(
            p.name,
            p.type,
            "int64" if p.type.kind is TypeKind.INDEX else dtype,
            _ROLES.get(p.type.kind, "weight" if p.name.startswith("w") else "activation"),
        )
        for p in program.params
    )
    declared = outputs or {}
    return Signature(
        program.name,
        inputs,
        tuple(OutputSpec(name, (), declared.get(name, "float32")) for name in program.outputs),
        dtype,
    )


def run(text: str, block: tuple[int, int] = (4, 6), **inputs: Tensor | float) -> dict[str, Tensor]:
    """The float64 meaning of a text under one tiling."""
    program = read(text)
    return evaluate(program, signature_of(program), inputs, block=block)


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = expected.double().abs().max().item() if expected.numel() else 0.0
    return (actual.double() - expected.double()).abs().max().item() / (scale or 1.0)


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)

"""The reference meaning of a program: plain torch, any float dtype, with the tiling that partials see.

In float64 it is the judge's word on a candidate's algebra. With rounding it rounds where generated kernels store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from coda_synth.coda_api.dims import Dim, bind_sizes
from coda_synth.coda_api.meaning import rounded
from coda_synth.coda_api.preparation import prepare
from coda_synth.coda_api.program import (
    Preparation,
    Program,
    Ref,
    Signature,
    TypeKind,
)
from coda_synth.coda_api.storage import stored_dtype
from coda_synth.coda_api.unit_meaning import Partial, UnitMeaning
from torch import Tensor


def evaluate(
    program: Program,
    signature: Signature,
    inputs: Mapping[str, Tensor | float],
    *,
    dtype: torch.dtype = torch.float64,
    block: tuple[int, int] = (16, 16),
    rounding: bool = False,
) -> dict[str, Tensor]:
    """The program's outputs for these inputs, computed in `dtype`.

    block: rows and columns of a tile of the product; rounded up where a tile must hold whole groups. rounding: rounds
    what units store to its stored dtype, and returns outputs in it; without it outputs have `dtype`, and only fp8 casts
    and casts in preparations round. Raises DimSizeError where sizes disagree or a dim is not whole.
    """
    sizes = program_sizes(signature, inputs)
    results: dict[tuple[str, str], Any] = {}
    for call in program.live_calls():
        live = program.live_outputs(call)
        given = {name: _argument(ref, inputs, results) for name, ref in call.args.items() if _known(ref, results)}
        if isinstance(call.unit, Preparation):
            outputs: Mapping[str, Tensor | Partial] = prepare(call, live, given, sizes)
        else:
            outputs = UnitMeaning(call, given, sizes, dtype, block, rounding).outputs(live)
        for name, value in outputs.items():
            kept = stored_dtype(program, signature, call, name)
            results[call.name, name] = _stored(value, kept, rounding)
    return {name: _final(results[ref.call, ref.output], dtype, rounding) for name, ref in program.outputs.items()}  # type: ignore[index]


def program_sizes(signature: Signature, inputs: Mapping[str, Tensor | float]) -> dict[str, int]:
    """The size of every symbol of a task, from its inputs; raises DimSizeError where they disagree."""
    shapes: list[tuple[str, tuple[Dim, ...], tuple[int, ...]]] = []
    for spec in signature.inputs:
        value = inputs[spec.name]
        if spec.type.kind is TypeKind.SIZE:
            shapes.append((spec.name, spec.type.dims, (int(value),)))
        elif isinstance(value, Tensor) and spec.type.dims:
            shapes.append((spec.name, spec.type.dims, tuple(value.shape)))
    return bind_sizes(shapes)


def _known(ref: Ref, results: Mapping[tuple[str, str], Any]) -> bool:
    """Not so for what only a dead value reads: nobody computed it."""
    return ref.call is None or (ref.call, ref.output) in results


def _argument(ref: Ref, inputs: Mapping[str, Tensor | float], results: Mapping[tuple[str, str], Any]) -> Any:
    if ref.input is not None:
        return inputs[ref.input]
    return results[ref.call, ref.output] if ref.call and ref.output else ref.number


def _stored(value: Tensor | Partial, dtype: str, rounding: bool) -> Tensor | Partial:
    if isinstance(value, Partial):
        return Partial(rounded(value.values, dtype), value.lengths) if rounding else value
    return rounded(value, dtype).to(getattr(torch, dtype)) if rounding else value


def _final(value: Tensor, dtype: torch.dtype, rounding: bool) -> Tensor:
    return value if rounding else value.to(dtype)

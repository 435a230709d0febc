"""The meaning of preparations in torch: weights rearranged as they are, and folded in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from coda_synth.coda_api.meaning import ELEMENTWISE, Lengths, blocks, dim_of, rounded, whole_of
from coda_synth.coda_api.program import Call, Preparation, Value, walk
from torch import Tensor


def _interleave(value: Value, lengths: Lengths, a: Tensor, b: Tensor) -> Tensor:
    axis = _axis(value)
    return torch.stack((a, b), axis + 1).flatten(axis, axis + 1)


def _concat(value: Value, lengths: Lengths, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((a, b), _axis(value))


def _join(value: Value, lengths: Lengths, a: Tensor, b: Tensor) -> Tensor:
    axis = _axis(value)
    half = lengths.whole(dim_of(value), dim_of(value, "group") / 2)
    return torch.stack([blocks(x, axis, -1, half) for x in (a, b)], axis + 1).flatten(axis, axis + 2)


def _matvec(value: Value, lengths: Lengths, w: Tensor, v: Tensor) -> Tensor:
    w, v = w.double(), v.double()
    return v @ w if _axis(value) == 0 else w @ v


def _cast(value: Value, lengths: Lengths, x: Tensor) -> Tensor:
    return rounded(x.double(), str(value.attrs["dtype"]))


WORDS: dict[str, Callable[..., Tensor]] = {
    "interleave": _interleave,
    "concat": _concat,
    "join": _join,
    "transpose": lambda value, lengths, w: w.T,
    "matvec": _matvec,
    "cast": _cast,
}


def prepare(
    call: Call, live: tuple[str, ...], inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """The live outputs of a preparation: of the inputs' dtype where only rearranged, else float64."""
    assert isinstance(call.unit, Preparation)
    lengths = Lengths(call, sizes)
    known: dict[int, Tensor] = {}
    outputs = {name: call.unit.outputs[name] for name in live}
    for value in walk(outputs):
        known[id(value)] = _value(value, [known[id(a)] for a in value.args], inputs, lengths)
    return {name: known[id(value)] for name, value in outputs.items()}


def _value(value: Value, args: list[Tensor], inputs: Mapping[str, Any], lengths: Lengths) -> Tensor:
    match value.word:
        case "param":
            given = inputs[str(value.attrs["name"])]
            return given if isinstance(given, Tensor) else torch.tensor(float(given), dtype=torch.float64)
        case "number":
            return torch.tensor(float(value.attrs["value"]), dtype=torch.float64)  # type: ignore[arg-type]
        case "size":
            return torch.tensor(float(lengths.of(dim_of(value))), dtype=torch.float64)
        case word if word in WORDS:
            return WORDS[word](value, lengths, *args)
    aligned = [_aligned(arg, source, value) for arg, source in zip(args, value.args, strict=True)]
    if value.word == "pow":
        return aligned[0].pow(whole_of(value, "exponent"))
    return ELEMENTWISE[value.word](*aligned)


def _aligned(x: Tensor, source: Value, result: Value) -> Tensor:
    """A vector beside a matrix, along the dim whose name it has."""
    x = x.double()
    vector = source.rows is not None and source.cols is None and result.cols is not None
    return x.unsqueeze(1 if source.rows == result.rows else 0) if vector else x


def _axis(value: Value) -> int:
    return whole_of(value, "axis")

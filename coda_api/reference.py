"""The reference meaning of a program: plain torch, any float dtype, with the tiling that partials see.

In float64 it is the judge's word on a candidate's algebra. With rounding it rounds where generated kernels store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from coda_synth.coda_api.dims import Dim, bind_sizes
from coda_synth.coda_api.meaning import ELEMENTWISE, Lengths, rounded
from coda_synth.coda_api.preparation import prepare
from coda_synth.coda_api.program import (
    Call,
    Form,
    Kernel,
    Kind,
    Preparation,
    Program,
    Ref,
    Signature,
    TypeKind,
    Value,
    walk,
)
from coda_synth.coda_api.storage import stored_dtype
from torch import Tensor

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


@dataclass(frozen=True)
class Partial:
    """values: [kept, tiles]; lengths: how many elements each tile reduced, [tiles]."""

    values: Tensor
    lengths: Tensor


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
        given = {name: _argument(ref, inputs, results) for name, ref in call.args.items()}
        live = program.live_outputs(call)
        if isinstance(call.unit, Preparation):
            outputs: Mapping[str, Tensor | Partial] = prepare(call, live, given, sizes)
        else:
            outputs = _Unit(call, given, sizes, dtype, block, rounding).outputs(live)
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


class _Unit:
    """One call of a kernel or finisher. Every value is a tensor of two dims, 1 where a dim is absent."""

    def __init__(
        self,
        call: Call,
        given: Mapping[str, Any],
        sizes: Mapping[str, int],
        dtype: torch.dtype,
        block: tuple[int, int],
        rounding: bool,
    ) -> None:
        self.call, self.given, self.dtype, self.rounding = call, given, dtype, rounding
        self.lengths = Lengths(call, sizes)
        self.block = block
        self.known: dict[int, Any] = {}

    def outputs(self, live: tuple[str, ...]) -> dict[str, Tensor | Partial]:
        outputs = {name: self.call.unit.outputs[name] for name in live}
        if isinstance(self.call.unit, Kernel):
            self.block = self._whole_groups(self.call.unit, outputs)
        for value in walk(outputs):
            self.known[id(value)] = self._evaluate(value)
        return {name: self._shaped(value) for name, value in outputs.items()}

    def _shaped(self, value: Value) -> Tensor | Partial:
        result = self.known[id(value)]
        if isinstance(result, Partial):
            return result
        shape = [self.lengths.of(d) for d in (value.rows, value.cols) if d is not None]
        if len(shape) == 2:
            return result.expand(shape).contiguous()
        return result.reshape(shape)  # type: ignore[no-any-return]

    # -- the tiling

    def _whole_groups(self, kernel: Kernel, outputs: Mapping[str, Value]) -> tuple[int, int]:
        """The block, widened so that a tile holds whole pairs and groups of every value."""
        product = self.lengths.of(kernel.cols)
        step = 1
        for value in walk(outputs):
            group = value.attrs.get("group")
            grouped = value if value.word in ("join", "spread") or group is None else value.args[0]
            if grouped.cols is None or value.form is not Form.TILE or not kernel.cols.symbols & grouped.cols.symbols:
                continue
            columns = self.lengths.of(group) if isinstance(group, Dim) else 1
            for whole, cols in ((columns, grouped.cols), (1, value.cols or grouped.cols)):
                step = math.lcm(step, (whole * Fraction(product, self.lengths.of(cols))).numerator)
        return self.block[0], -(-self.block[1] // step) * step

    def _tiles(self, axis: int, length: int) -> list[tuple[int, int]]:
        """(start, length) of the tiles along an axis of a value that has `length` elements there."""
        assert isinstance(self.call.unit, Kernel)
        product = self.lengths.of((self.call.unit.rows, self.call.unit.cols)[axis])
        step = Fraction(self.block[axis] * length, product)
        assert step.denominator == 1
        return [(start, min(int(step), length - start)) for start in range(0, length, int(step))]

    # -- values

    def _evaluate(self, value: Value) -> Any:
        args = [self.known[id(a)] for a in value.args]
        method = MEANINGS.get(value.word)
        if method:
            return method(self, value, *args)
        if any(isinstance(a, Partial) for a in args):
            values = [a.values if isinstance(a, Partial) else a for a in args]
            return Partial(self._elementwise(value, values), next(a.lengths for a in args if isinstance(a, Partial)))
        return self._elementwise(value, args)

    def _elementwise(self, value: Value, args: list[Tensor]) -> Tensor:
        kinds = {a.kind for a in value.args if a.kind is not Kind.BOOL}
        if value.kind is Kind.FLOAT or (value.word in _COMPARISONS and len(kinds) > 1):
            args = [a if a.dtype is torch.bool else a.to(self.dtype) for a in args]
        if value.word == "pow":
            return args[0] ** int(value.attrs["exponent"])  # type: ignore[call-overload]
        return ELEMENTWISE[value.word](*args)

    def _param(self, value: Value) -> Any:
        given = self.given[str(value.attrs["name"])]
        if isinstance(given, Partial):
            return Partial(given.values.to(self.dtype), given.lengths)
        x = torch.as_tensor(given, dtype=self.dtype if value.kind is Kind.FLOAT else None)
        if value.rows is not None and value.cols is not None:
            return x
        return x.reshape(1, -1) if value.cols is not None else x.reshape(-1, 1)

    def _number(self, value: Value) -> Tensor:
        dtype = torch.int64 if value.kind is Kind.INT else self.dtype
        return torch.full((1, 1), value.attrs["value"], dtype=dtype)  # type: ignore[call-overload, no-any-return]

    def _part(self, value: Value, several: tuple[Any, ...]) -> Any:
        return several[int(value.attrs["index"])]  # type: ignore[call-overload]

    def _size(self, value: Value) -> Tensor:
        return torch.full((1, 1), self._dim(value), dtype=torch.int64)

    def _index(self, value: Value) -> Tensor:
        positions = torch.arange(self._dim(value))
        return positions[:, None] if value.rows is not None else positions[None, :]

    def _dim(self, value: Value) -> int:
        return self.lengths.of(value.attrs["dim"])  # type: ignore[arg-type]

    # -- kernels

    def _gemm(self, value: Value) -> Tensor:
        assert isinstance(self.call.unit, Kernel) and self.call.unit.gemm
        gemm = self.call.unit.gemm
        a, b = (torch.as_tensor(self.given[name], dtype=self.dtype) for name in (gemm.a, gemm.b))
        return (a.T if gemm.a_transposed else a) @ (b.T if gemm.b_transposed else b)

    def _even(self, value: Value, x: Tensor) -> Tensor:
        return x[:, 0::2]

    def _odd(self, value: Value, x: Tensor) -> Tensor:
        return x[:, 1::2]

    def _interleave(self, value: Value, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack(self._same(value, a, b), -1).flatten(1)

    def _low(self, value: Value, x: Tensor) -> Tensor:
        return self._halves(value, x)[0]

    def _high(self, value: Value, x: Tensor) -> Tensor:
        return self._halves(value, x)[1]

    def _halves(self, value: Value, x: Tensor) -> tuple[Tensor, Tensor]:
        group = self._group(value, value.args[0])
        halves = x.unflatten(1, (-1, 2, group // 2))
        return halves[:, :, 0].flatten(1), halves[:, :, 1].flatten(1)

    def _join(self, value: Value, a: Tensor, b: Tensor) -> Tensor:
        half = self._group(value, value) // 2
        a, b = (x.unflatten(1, (-1, half)) for x in self._same(value, a, b))
        return torch.stack((a, b), 2).flatten(1)

    def _same(self, value: Value, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.promote_types(a.dtype, b.dtype)
        left, right = torch.broadcast_tensors(a.to(both), b.to(both))
        return left, right

    def _group(self, value: Value, grouped: Value) -> int:
        """The number of columns of a group, which must divide those of `grouped`, and be even where halves are meant."""
        group: Dim = value.attrs["group"]  # type: ignore[assignment]
        assert grouped.cols is not None
        if value.word in ("low", "high", "join"):
            return 2 * self.lengths.of(group / 2) if self.lengths.whole(grouped.cols, group) else 0
        return self.lengths.whole(grouped.cols, group)

    def _grouped(self, value: Value, x: Tensor) -> Tensor:
        groups = x.to(self.dtype).unflatten(1, (-1, self._group(value, value.args[0])))
        return {"group_sum": groups.sum, "group_max": groups.amax, "group_min": groups.amin}[value.word](2)  # type: ignore[operator, no-any-return]

    def _spread(self, value: Value, x: Tensor) -> Tensor:
        return x.repeat_interleave(self._group(value, value), 1)

    def _cycle(self, value: Value, x: Tensor) -> Tensor:
        assert value.args[0].cols is not None
        small = self.lengths.whole(value.attrs["dim"], value.args[0].cols)  # type: ignore[arg-type]
        return x.repeat(1, self._dim(value) // small)

    def _rotation(self, value: Value, pos: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        angle = 2 * math.pi * (pos.to(self.dtype) * (high.to(self.dtype) + low.to(self.dtype)))
        return angle.cos(), angle.sin()

    def _reduce(self, value: Value, x: Tensor, reduction: Callable[..., Tensor], *others: Tensor) -> Partial:
        """One value per kept element and tile of the reduced axis."""
        source, axis = value.args[0], int(value.attrs["axis"])  # type: ignore[call-overload]
        shape = self.lengths.of(source.rows), self.lengths.of(source.cols)  # type: ignore[arg-type]
        whole = [t.to(self.dtype).expand(shape) for t in (x, *others)]
        tiles = self._tiles(axis, shape[axis])
        parts = [reduction(*(t.narrow(axis, start, length) for t in whole), axis) for start, length in tiles]
        lengths = torch.tensor([length for _, length in tiles], dtype=self.dtype)
        return Partial(torch.stack(parts, -1), lengths)

    def _tile_sum(self, value: Value, x: Tensor) -> Partial:
        return self._reduce(value, x, torch.sum)

    def _tile_max(self, value: Value, x: Tensor) -> Partial:
        return self._reduce(value, x, torch.amax)

    def _tile_min(self, value: Value, x: Tensor) -> Partial:
        return self._reduce(value, x, torch.amin)

    def _tile_moments(self, value: Value, x: Tensor) -> tuple[Partial, Partial]:
        mean = self._reduce(value, x, torch.mean)
        return mean, self._reduce(value, x, lambda t, axis: (t - t.mean(axis, keepdim=True)).square().sum(axis))

    def _tile_logsumexp(self, value: Value, x: Tensor, *v: Tensor) -> Partial | tuple[Partial, Partial]:
        total = self._reduce(value, x, torch.logsumexp)
        return (total, self._reduce(value, x, _weighted_mean, *v)) if v else total

    def _pick(self, value: Value, z: Tensor, t: Tensor) -> Tensor:
        columns = self.lengths.of(value.args[0].cols)  # type: ignore[arg-type]
        inside = (t >= 0) & (t < columns)
        rows = z.to(self.dtype).expand(t.shape[0], columns)
        return torch.where(inside, rows.gather(1, t.clamp(0, columns - 1)), torch.zeros((), dtype=self.dtype))

    def _cast(self, value: Value, x: Any) -> Any:
        dtype = str(value.attrs["dtype"])
        if isinstance(x, Partial):
            return Partial(self._cast(value, x.values), x.lengths)
        exact = not self.rounding and not dtype.startswith("float8")
        return x.to(self.dtype) if exact else rounded(x.to(self.dtype), dtype)

    def _accumulate(self, value: Value, out: Tensor, x: Tensor) -> Tensor:
        return out + x

    # -- finishers

    def _total_sum(self, value: Value, p: Partial) -> Tensor:
        return p.values.sum(1, keepdim=True)

    def _total_max(self, value: Value, p: Partial) -> Tensor:
        return p.values.amax(1, keepdim=True)

    def _total_min(self, value: Value, p: Partial) -> Tensor:
        return p.values.amin(1, keepdim=True)

    def _total_logsumexp(self, value: Value, p: Partial) -> Tensor:
        return torch.logsumexp(p.values, 1, keepdim=True)

    def _total_moments(self, value: Value, mean: Partial, m2: Partial) -> tuple[Tensor, Tensor]:
        """Chan's merge of the tiles' means and squared deviations."""
        weights = mean.lengths / mean.lengths.sum()
        mu = (mean.values * weights).sum(1, keepdim=True)
        between = ((mean.values - mu).square() * weights).sum(1, keepdim=True)
        return mu, m2.values.sum(1, keepdim=True) / mean.lengths.sum() + between

    def _sum(self, value: Value, v: Tensor) -> Tensor:
        return v.to(self.dtype).sum().reshape(1, 1)

    def _fold(self, value: Value, v: Tensor) -> Tensor:
        assert value.args[0].rows is not None
        small = self.lengths.whole(value.args[0].rows, value.attrs["dim"])  # type: ignore[arg-type]
        return v.to(self.dtype).reshape(-1, small).sum(0)[:, None]


MEANINGS: dict[str, Callable[..., Any]] = {
    "param": _Unit._param,
    "number": _Unit._number,
    "part": _Unit._part,
    "size": _Unit._size,
    "index": _Unit._index,
    "gemm": _Unit._gemm,
    "even": _Unit._even,
    "odd": _Unit._odd,
    "interleave": _Unit._interleave,
    "low": _Unit._low,
    "high": _Unit._high,
    "join": _Unit._join,
    "group_sum": _Unit._grouped,
    "group_max": _Unit._grouped,
    "group_min": _Unit._grouped,
    "spread": _Unit._spread,
    "cycle": _Unit._cycle,
    "rotation": _Unit._rotation,
    "tile_sum": _Unit._tile_sum,
    "tile_max": _Unit._tile_max,
    "tile_min": _Unit._tile_min,
    "tile_moments": _Unit._tile_moments,
    "tile_logsumexp": _Unit._tile_logsumexp,
    "pick": _Unit._pick,
    "cast": _Unit._cast,
    "accumulate": _Unit._accumulate,
    "total_sum": _Unit._total_sum,
    "total_max": _Unit._total_max,
    "total_min": _Unit._total_min,
    "total_logsumexp": _Unit._total_logsumexp,
    "total_moments": _Unit._total_moments,
    "sum": _Unit._sum,
    "fold": _Unit._fold,
}


def _weighted_mean(z: Tensor, v: Tensor, axis: int) -> Tensor:
    """The softmax(z)-weighted mean of v; 0 where every z is -inf."""
    weights = torch.exp(z - torch.logsumexp(z, axis, keepdim=True))
    weights = torch.where(z == -math.inf, torch.zeros_like(weights), weights)
    return torch.where(weights > 0, weights * v, torch.zeros_like(v)).sum(axis)

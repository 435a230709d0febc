"""The meaning of one kernel or finisher in torch: every word over whole tensors, and tile by tile where it must."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.meaning import ELEMENTWISE, Lengths, blocks, dim_of, rounded, whole_of
from coda_synth.coda_api.program import Call, Form, Kernel, Kind, Value, walk
from torch import Tensor

_GROUPED: dict[str, Callable[..., Tensor]] = {"group_sum": torch.sum, "group_max": torch.amax, "group_min": torch.amin}
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


@dataclass(frozen=True)
class Partial:
    """values: [kept, tiles]; lengths: how many elements each tile reduced, [tiles]."""

    values: Tensor
    lengths: Tensor


class UnitMeaning:
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
        assert isinstance(result, Tensor)
        return result.expand(shape).contiguous() if len(shape) == 2 else result.reshape(shape)

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
            return args[0].pow(whole_of(value, "exponent"))
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
        number: Any = value.attrs["value"]
        return torch.full((1, 1), number, dtype=dtype)

    def _part(self, value: Value, several: tuple[Any, ...]) -> Any:
        return several[whole_of(value, "index")]

    def _size(self, value: Value) -> Tensor:
        return torch.full((1, 1), self._dim(value), dtype=torch.int64)

    def _index(self, value: Value) -> Tensor:
        positions = torch.arange(self._dim(value))
        return positions[:, None] if value.rows is not None else positions[None, :]

    def _dim(self, value: Value) -> int:
        return self.lengths.of(dim_of(value))

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
        halves = blocks(x, 1, -1, 2, group // 2)
        return halves[:, :, 0].flatten(1), halves[:, :, 1].flatten(1)

    def _join(self, value: Value, a: Tensor, b: Tensor) -> Tensor:
        half = self._group(value, value) // 2
        a, b = (blocks(x, 1, -1, half) for x in self._same(value, a, b))
        return torch.stack((a, b), 2).flatten(1)

    def _same(self, value: Value, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.promote_types(a.dtype, b.dtype)
        shape = max(a.shape[0], b.shape[0]), max(a.shape[1], b.shape[1])
        return a.to(both).expand(shape), b.to(both).expand(shape)

    def _group(self, value: Value, grouped: Value) -> int:
        """The columns of a group, which must divide those of `grouped`, and be even where halves are meant."""
        group = dim_of(value, "group")
        assert grouped.cols is not None
        columns = self.lengths.whole(grouped.cols, group)
        if value.word in ("low", "high", "join"):
            self.lengths.of(group / 2)
        return columns

    def _grouped(self, value: Value, x: Tensor) -> Tensor:
        groups = blocks(x.to(self.dtype), 1, -1, self._group(value, value.args[0]))
        return _GROUPED[value.word](groups, 2)

    def _spread(self, value: Value, x: Tensor) -> Tensor:
        return x.repeat_interleave(self._group(value, value), 1)

    def _cycle(self, value: Value, x: Tensor) -> Tensor:
        assert value.args[0].cols is not None
        small = self.lengths.whole(dim_of(value), value.args[0].cols)
        return x.repeat(1, self._dim(value) // small)

    def _rotation(self, value: Value, pos: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        turns = pos.double() * (
            high.double() + low.double()
        )  # kernels reduce the range exactly, so no dtype may narrow it
        angle = 2 * math.pi * (turns - turns.round())
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)

    def _reduce(self, value: Value, x: Tensor, reduction: Callable[..., Tensor], *others: Tensor) -> Partial:
        """One value per kept element and tile of the reduced axis."""
        source, axis = value.args[0], whole_of(value, "axis")
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
        small = self.lengths.whole(value.args[0].rows, dim_of(value))
        return v.to(self.dtype).reshape(-1, small).sum(0)[:, None]


MEANINGS: dict[str, Callable[..., Any]] = {
    "param": UnitMeaning._param,
    "number": UnitMeaning._number,
    "part": UnitMeaning._part,
    "size": UnitMeaning._size,
    "index": UnitMeaning._index,
    "gemm": UnitMeaning._gemm,
    "even": UnitMeaning._even,
    "odd": UnitMeaning._odd,
    "interleave": UnitMeaning._interleave,
    "low": UnitMeaning._low,
    "high": UnitMeaning._high,
    "join": UnitMeaning._join,
    "group_sum": UnitMeaning._grouped,
    "group_max": UnitMeaning._grouped,
    "group_min": UnitMeaning._grouped,
    "spread": UnitMeaning._spread,
    "cycle": UnitMeaning._cycle,
    "rotation": UnitMeaning._rotation,
    "tile_sum": UnitMeaning._tile_sum,
    "tile_max": UnitMeaning._tile_max,
    "tile_min": UnitMeaning._tile_min,
    "tile_moments": UnitMeaning._tile_moments,
    "tile_logsumexp": UnitMeaning._tile_logsumexp,
    "pick": UnitMeaning._pick,
    "cast": UnitMeaning._cast,
    "accumulate": UnitMeaning._accumulate,
    "total_sum": UnitMeaning._total_sum,
    "total_max": UnitMeaning._total_max,
    "total_min": UnitMeaning._total_min,
    "total_logsumexp": UnitMeaning._total_logsumexp,
    "total_moments": UnitMeaning._total_moments,
    "sum": UnitMeaning._sum,
    "fold": UnitMeaning._fold,
}


def _weighted_mean(z: Tensor, v: Tensor, axis: int) -> Tensor:
    """The softmax(z)-weighted mean of v; 0 where every z is -inf."""
    weights = torch.exp(z - torch.logsumexp(z, axis, keepdim=True))
    weights = torch.where(z == -math.inf, torch.zeros_like(weights), weights)
    return torch.where(weights > 0, weights * v, torch.zeros_like(v)).sum(axis)

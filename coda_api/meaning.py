"""What the elementwise words mean in torch, and how dtypes round. Keyed by the names of the word table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from coda_synth.coda_api.dims import Dim, DimSizeError
from coda_synth.coda_api.program import Call, Value
from coda_synth.coda_api.storage import torch_name
from torch import Tensor
from torch.nn import functional


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    both = torch.promote_types(a.dtype, b.dtype)
    return torch.where(condition, a.to(both), b.to(both))


ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": _where,
    "clamp": lambda x, least, most: torch.minimum(torch.maximum(x, least), most),
    "fma": lambda x, y, z: x * y + z,
    "abs": torch.abs,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "softplus": lambda x: torch.maximum(x, torch.zeros_like(x)) + torch.log1p(torch.exp(-x.abs())),
    "silu": functional.silu,
    "gelu": functional.gelu,
    "ndtr": torch.special.ndtr,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "round": torch.round,
}


def rounded(x: Tensor, dtype: str) -> Tensor:
    """x as the dtype holds it, still in x's own dtype. Rounds to nearest even; fp8 saturates and keeps NaN."""
    target: torch.dtype = getattr(torch, torch_name(dtype))
    if not dtype.startswith("float8"):
        return x.to(target).to(x.dtype)
    most = torch.finfo(target).max
    return x.float().clamp(-most, most).to(target).to(x.dtype)


def dim_of(value: Value, name: str = "dim") -> Dim:
    """A value's attribute that is a dimension: "dim" or "group"."""
    dim = value.attrs[name]
    assert isinstance(dim, Dim)
    return dim


def whole_of(value: Value, name: str) -> int:
    """A value's attribute that is a whole number: "axis", "index" or "exponent"."""
    number = value.attrs[name]
    assert isinstance(number, int)
    return number


def blocks(x: Tensor, axis: int, *lengths: int) -> Tensor:
    """One axis of x taken apart into several; one of the lengths may be -1."""
    return x.reshape(*x.shape[:axis], *lengths, *x.shape[axis + 1 :])


class Lengths:
    """The lengths of a call's local dims."""

    def __init__(self, call: Call, sizes: Mapping[str, int]) -> None:
        self._call, self._sizes = call, sizes

    def of(self, local: Dim) -> int:
        """Raises DimSizeError where the dim is not whole under these sizes."""
        return self._call.dim(local).size(self._sizes)

    def whole(self, local: Dim, part: Dim) -> int:
        """The length of `part`, which must divide that of `local`."""
        length, step = self.of(local), self.of(part)
        if length % step:
            raise DimSizeError(f'{self._call.name}: groups of "{part}" = {step} do not divide "{local}" = {length}')
        return step

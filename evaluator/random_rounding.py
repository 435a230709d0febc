"""Runs a reference at its declared precision, every rounding up or down at random: how far do roundings carry?

This is random-rounding stochastic arithmetic (Vignes, "A stochastic arithmetic for reliable scientific computation",
1993): the spread of a few such runs measures what any honest order of roundings may do to each element, cancellation,
saturation and norms included, without a rule per operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from coda_synth.evaluator.codes import FORMATS, casts
from torch.utils._python_dispatch import TorchDispatchMode

SIGNIFICANT_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
_FP32 = 2.0**-24  # unit roundoff of fp32, in which operations work inside

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
_SUMS = (_aten.sum, _aten.mean, _aten.logsumexp)
_GATES = (_aten.silu, _aten.gelu)  # x times a factor that fp32 knows to 2^-24 of one, not of itself, where it is tiny
_SLOPES = (_aten.silu_backward, _aten.gelu_backward)  # a gradient times such a factor


class RandomRounding(TorchDispatchMode):
    """Inside, each operation is computed in float64 and its result rounded at random to the dtype it would have had.

    What fp32 does inside an operation is noise too: up to sqrt(n) * 2^-24 times the sum of magnitudes for a sum of n
    terms, up to 2^-23 * |x| for silu and gelu (of the gradient for their backward), up to 2^-23 times what layer_norm
    would give without centring (it may scale before it subtracts). Views and in-place operations are left as they are,
    and a cast to fp8 does not round: what matters is how far off the number is that a code is made of.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        declared = func(*args, **(kwargs or {}))
        several = isinstance(declared, (tuple, list))
        if not any(_rounds(d) for d in (declared if several else (declared,))):
            return declared
        if func.is_view or func._schema.is_mutable:
            return declared
        if casts(kwargs or {}):
            return args[0].double()
        wide_args, wide_kwargs = _wide(args), _wide(dict(kwargs or {}))
        exact = func(*wide_args, **wide_kwargs)
        noise = self._inner(func, wide_args, wide_kwargs, exact)
        if not several:
            return self._as(declared, exact + noise)
        first, *rest = exact  # a norm and its statistics, a maximum and its place
        return type(declared)(self._as(d, e) for d, e in zip(declared, (first + noise, *rest), strict=True))

    def _as(self, declared: Any, exact: Any) -> Any:
        """An exact result in the dtype that it would have had; what is no float stays as it was computed there."""
        return self.round(exact, declared.dtype) if _rounds(declared) else declared

    def round(self, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """One of the two neighbours in `dtype`, each as likely; a value that `dtype` holds stays; so does fp8-to-be."""
        if dtype in FORMATS:
            return exact
        step = 1 << (SIGNIFICANT_BITS[torch.float64] - SIGNIFICANT_BITS[dtype])  # of float64's bits
        bits = exact.view(torch.int64)
        below = bits & -step
        up = (self._uniform(exact) < 0.5) & (below != bits)
        return (below + step * up).view(torch.float64).to(dtype)

    def _inner(self, func: Any, args: Any, kwargs: Any, exact: Any) -> torch.Tensor | float:
        """The error of the fp32 arithmetic inside one operation, on its first result."""
        packet = func.overloadpacket
        if packet in _GATES or packet in _SLOPES:
            size = 2 * args[0].abs()
        elif packet in _PRODUCTS:
            size = math.sqrt(args[-1].shape[-2]) * func(*_magnitudes(args), **kwargs)
        elif packet in _SUMS:
            terms = math.sqrt(args[0].numel() / max(1, exact.numel()))
            size = terms * (torch.ones_like(exact) if packet is _aten.logsumexp else func(*_magnitudes(args), **kwargs))
        elif packet is _aten.native_layer_norm:
            exact, _, scale = exact
            size = 2 * (args[0] * scale).abs() * (1.0 if args[2] is None else args[2].abs())
        else:
            return 0.0
        noise: torch.Tensor = _FP32 * size * (2 * self._uniform(exact) - 1)
        return noise

    def _uniform(self, like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=self.generator)


def _rounds(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _wide(value: Any) -> Any:
    """The value with float64 in place of every narrower floating dtype."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, dict):
        return {key: _wide(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_wide(item) for item in value)
    return value


def _magnitudes(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.abs() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)

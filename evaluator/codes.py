"""fp8 results: a code stands for every number that rounds to it, so an error is what lies beyond that interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Fraction bits and the exponent of the smallest normal number.
FORMATS = {torch.float8_e4m3fn: (3, -6), torch.float8_e5m2: (2, -14)}


class Unrounded(TorchDispatchMode):
    """Inside, a cast to fp8 gives the number itself: what a code is held against is known before its rounding."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        return func(*args, **({**given, "dtype": args[0].dtype} if casts(given) else given))


def casts(kwargs: Mapping[str, Any]) -> bool:
    """An operation's keywords that ask for fp8."""
    return kwargs.get("dtype") in FORMATS


def beyond(codes: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far each exact number lies outside the interval that its code stands for, in float64; 0 inside.

    The largest code stands for everything above it too, since what is too large is stored as it.
    """
    held = codes.double()
    magnitude, largest = held.abs(), torch.finfo(dtype).max
    above, below = half_steps(magnitude, dtype)
    toward = torch.where(held == 0, exact.abs(), exact * held.sign())  # the exact number, seen from 0 towards the code
    over = torch.where(magnitude >= largest, -math.inf, toward - (magnitude + above))
    under = torch.where(held == 0, -math.inf, magnitude - below - toward)
    return torch.maximum(over, under).clamp(min=0.0)


def half_steps(magnitude: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the distance from a code to the next larger and to the next smaller one; a power of two is nearer below."""
    bits, smallest = FORMATS[dtype]
    fraction, exponent = torch.frexp(magnitude)
    power = torch.where(magnitude == 0, smallest, (exponent - 1).clamp(min=smallest)).double()
    half = torch.exp2(power - bits - 1)
    return half, torch.where((fraction == 0.5) & (exponent - 1 > smallest), half / 2, half)

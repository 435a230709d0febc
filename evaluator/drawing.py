"""Large random tensors from counters, on whatever device they are wanted: the same bits on a CPU and on a GPU.

A task draws from torch's CPU generator, which is slow for the weights of a real shape, and the generators of other
devices draw other numbers. Inside this mode the generator gives each large draw a key alone; its elements are a hash of
the key and their place (splitmix64), turned into a distribution by a table and by arithmetic that is exact everywhere.
Small tensors are made as ever, on the CPU, and move when they meet one that lies on the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LARGE = 1 << 20  # elements of a tensor that is made on the device
_CHUNK = 1 << 24  # elements made at once
_KNOTS = 1 << 16  # of a table, which is interpolated between them
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.full, torch.arange)


class Drawing(TorchFunctionMode):
    """Inside, tensors of LARGE elements and more are made on `device`, random ones from counters."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _FACTORIES and "device" not in given:
            return func(*args, **given, device=self.device if _large(func, args, given) else "cpu")
        if (generator := given.get("generator")) is not None and (drawn := self._drawn(func, args, given, generator)):
            return drawn[0]
        if func in (torch.Tensor.div, torch.Tensor.__truediv__) and isinstance(args[1], (int, float)):
            return args[0] * (1.0 / args[1])  # a GPU divides by a number so, a CPU does not
        return func(*self._together(args), **given)

    def _drawn(
        self, func: Any, args: tuple[Any, ...], given: dict[str, Any], generator: torch.Generator
    ) -> tuple[torch.Tensor] | None:
        """A large random tensor, or None for what is drawn as ever."""
        rest = {name: value for name, value in given.items() if name != "generator"}
        if func is torch.Tensor.exponential_ and not args[1:] and args[0].numel() >= LARGE:
            return (args[0].copy_(exponential(args[0].shape, _key(generator), self.device)),)
        if func not in (torch.randn, torch.rand, torch.randint) or rest or not _large(func, args, {}):
            return None
        shape = func(*args, device="meta").shape
        if func is torch.randint:
            low, high = args[:2] if len(args) == 3 else (0, args[0])
            return (integers(low, high, shape, _key(generator), self.device),)
        made = normal if func is torch.randn else uniform
        return (made(shape, _key(generator), self.device),)

    def _together(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of one operation on one device: what is small moves to what is not."""
        if len({value.device.type for value in _tensors(args)}) < 2:
            return args
        return tuple(map(self._moved, args))

    def _moved(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        return type(value)(map(self._moved, value)) if isinstance(value, (tuple, list)) and _tensors(value) else value


def normal(shape: Sequence[int], key: int, device: str) -> torch.Tensor:
    """Of mean 0 and deviation 1, as float32; within 4.3 deviations."""
    return _filled(shape, device, torch.float32, lambda at, n: _looked_up(_normal_knots, _words(key, at, n, device)))


def exponential(shape: Sequence[int], key: int, device: str) -> torch.Tensor:
    """Of mean 1, as float32."""
    return _filled(
        shape, device, torch.float32, lambda at, n: _looked_up(_exponential_knots, _words(key, at, n, device))
    )


def uniform(shape: Sequence[int], key: int, device: str) -> torch.Tensor:
    """From 0 to 1, as float32."""
    return _filled(shape, device, torch.float32, lambda at, n: _part(_words(key, at, n, device), 40, 24) * 2.0**-24)


def integers(low: int, high: int, shape: Sequence[int], key: int, device: str) -> torch.Tensor:
    """From low to high - 1, int64."""
    span = high - low
    return _filled(shape, device, torch.int64, lambda at, n: _part(_words(key, at, n, device), 32, 31) % span + low)


def _key(generator: torch.Generator) -> int:
    return int(torch.randint(0, 1 << 62, (), generator=generator))


def _large(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    return bool(func(*args, **given, device="meta").numel() >= LARGE)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    inner = [v for value in values if isinstance(value, (tuple, list)) for v in _tensors(value)]
    return [value for value in values if isinstance(value, torch.Tensor)] + inner


def _filled(
    shape: Sequence[int], device: str, dtype: torch.dtype, made: Callable[[int, int], torch.Tensor]
) -> torch.Tensor:
    result = torch.empty(math.prod(shape), dtype=dtype, device=device)
    for start in range(0, result.numel(), _CHUNK):
        part = result[start : start + _CHUNK]
        part.copy_(made(start, part.numel()))
    return result.view(*shape)


def _looked_up(knots: Callable[[], torch.Tensor], words: torch.Tensor) -> torch.Tensor:
    """Between two knots in proportion; each step is exact or rounded as IEEE says, so alike everywhere."""
    table = knots().to(words.device)
    place, between = _part(words, 48, 16), _part(words, 24, 16) * 2.0**-16
    low = table[place]
    return (table[place + 1] - low) * between + low


def _words(key: int, start: int, count: int, device: str) -> torch.Tensor:
    """64 random bits for each place, as int64 (splitmix64); products wrap."""
    word = torch.arange(start, start + count, dtype=torch.int64, device=device)
    word.add_(1).mul_(_signed(_GOLDEN)).add_(key)
    word.bitwise_xor_(_part(word, 30, 34)).mul_(_signed(_FIRST))
    word.bitwise_xor_(_part(word, 27, 37)).mul_(_signed(_SECOND))
    return word.bitwise_xor_(_part(word, 31, 33))


def _part(words: torch.Tensor, shift: int, bits: int) -> torch.Tensor:
    """`bits` bits above the lowest `shift`."""
    return (words >> shift).bitwise_and_((1 << bits) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@functools.cache
def _normal_knots() -> torch.Tensor:
    inverse = NormalDist().inv_cdf
    return torch.tensor([inverse((i + 0.5) / (_KNOTS + 1)) for i in range(_KNOTS + 1)], dtype=torch.float32)


@functools.cache
def _exponential_knots() -> torch.Tensor:
    return torch.tensor([-math.log((i + 0.5) / (_KNOTS + 1)) for i in range(_KNOTS + 1)], dtype=torch.float32)

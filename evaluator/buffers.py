"""Memory that a candidate's launches touch: the judge's own, poisoned, guarded on both sides, and fingerprinted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

POISON = 0xFF  # as any float type: NaN; as an integer: -1
_ALIGN = 256  # bytes; a multiple of what TMA wants
_CHUNK = 1 << 24  # elements fingerprinted at once
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Guarded:
    """A contiguous tensor inside a larger allocation whose other bytes are POISON."""

    tensor: torch.Tensor
    storage: torch.Tensor  # uint8: band, tensor, band
    band: int

    def intact(self) -> bool:
        """Whether nothing was written before or after the tensor."""
        end = self.band + self.tensor.numel() * self.tensor.element_size()
        return bool((self.storage[: self.band] == POISON).all() and (self.storage[end:] == POISON).all())

    def unwritten(self) -> int:
        """How many elements still are what `poison` left, or were made from such."""
        bits = self.tensor.reshape(-1).view(_BITS[self.tensor.element_size()])
        return int((bits == (POISON if bits.dtype == torch.uint8 else -1)).sum())

    def poison(self) -> None:
        self.storage.fill_(POISON)


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Guarded:
    """A poisoned tensor with a band of at least one row and 4 KiB on each side."""
    itemsize = torch.empty((), dtype=dtype).element_size()
    count = 1
    for length in shape:
        count *= length
    row = shape[-1] * itemsize if shape else itemsize
    band = -(-max(4096, row) // _ALIGN) * _ALIGN
    storage = torch.full((2 * band + count * itemsize,), POISON, dtype=torch.uint8, device=device)
    tensor = storage[band : band + count * itemsize].view(dtype).view(shape)
    return Guarded(tensor, storage, band)


def guarded_copy(value: torch.Tensor, device: str) -> Guarded:
    result = guarded(tuple(value.shape), value.dtype, device)
    result.tensor.copy_(value)
    return result


def fingerprint(tensor: torch.Tensor) -> int:
    """A number that changes when any bit of the tensor does, or when two elements trade places (but for luck)."""
    bits = tensor.contiguous().reshape(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=tensor.device)
        total += (part * (place * 0x9E3779B97F4A7C1 | 1)).sum()  # odd factors; sums wrap
    return int(total)

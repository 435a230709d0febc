"""Tensors as raw bytes for the channel, and back. The only thing here that knows a tensor's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def pack(tensors: Mapping[str, torch.Tensor]) -> tuple[list[dict[str, Any]], tuple[memoryview, ...]]:
    """(what each tensor is, its bytes), in the same order; a tensor on a device is copied to the host."""
    heads, blobs = [], []
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        heads.append({"name": name, "dtype": str(host.dtype).removeprefix("torch."), "shape": list(host.shape)})
        blobs.append(host.reshape(-1).view(torch.uint8).numpy().data)
    return heads, tuple(blobs)


def unpack(heads: Sequence[Mapping[str, Any]], blobs: Sequence[memoryview]) -> dict[str, torch.Tensor]:
    """The inverse of pack, in memory of its own."""
    return {str(head["name"]): _tensor(head, blob) for head, blob in zip(heads, blobs, strict=True)}


def _tensor(head: Mapping[str, Any], blob: memoryview) -> torch.Tensor:
    dtype = getattr(torch, head["dtype"])
    if not len(blob):
        return torch.empty(head["shape"], dtype=dtype)
    # The header before it has any length, so the bytes may start where no element may: copy them to memory of their
    # own.
    return torch.frombuffer(bytearray(blob), dtype=torch.uint8).view(dtype).reshape(head["shape"])

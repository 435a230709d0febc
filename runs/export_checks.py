"""What an exported package checks before it launches. Copied into it word for word, so it knows torch alone."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton decides when kernels are imported, as this is
TMA_BYTES = 16  # what the tensor memory accelerator wants addresses and row lengths to be multiples of


def tensor(name: str, value: object, dims: int, dtype: torch.dtype) -> torch.Tensor:
    """The tensor, contiguous; raises ValueError where it is empty or no tensor of this rank and dtype."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(value).__name__}")
    if value.dim() != dims:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must have {dims} dimensions")
    if value.dtype != dtype:
        raise ValueError(f"{name} is {value.dtype}; it must be {dtype}")
    if 0 in value.shape:  # no launch has a grid of nothing, and a mean over nothing is no number
        raise ValueError(f"{name}.shape[{value.shape.index(0)}] is 0: there is nothing to compute")
    return value.contiguous()


def shape(name: str, value: torch.Tensor, wanted: tuple[int, ...]) -> None:
    """Raises ValueError where a tensor's sizes do not fit the others'."""
    if tuple(value.shape) != wanted:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; with the other tensors it must be {wanted}")


def fixed(name: str, size: int, wanted: int) -> None:
    """Raises ValueError where a size differs from the one that the kernels were generated for."""
    if size != wanted:
        raise ValueError(
            f"{name} is {size}; these kernels were generated for {name} = {wanted}, export again for another"
        )


def together(*tensors: torch.Tensor) -> None:
    """Raises ValueError where the tensors lie on several devices, or on one that runs no kernels."""
    devices = {str(value.device) for value in tensors}
    if len(devices) > 1:
        raise ValueError(f"the tensors lie on {' and '.join(sorted(devices))}; they must lie on one device")
    if "cpu" in devices and not INTERPRETED:
        raise ValueError(
            "the tensors lie on the CPU; these kernels need a GPU, or TRITON_INTERPRET=1 from the start, to interpret"
        )


def forward_only(*tensors: torch.Tensor) -> None:
    """Raises RuntimeError where a gradient would silently be lost."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        raise RuntimeError("this package has no backward; call it under torch.no_grad() or detach the inputs")


def aligned(*tensors: torch.Tensor) -> bool:
    """Whether the descriptor form can be used: Hopper or newer (or the interpreter), and 16-byte rows."""
    matrices = [value for value in tensors if value.dim() == 2 and value.element_size() == 2]
    if any(value.is_cuda and torch.cuda.get_device_capability(value.device) < (9, 0) for value in matrices):
        return False
    return all(v.data_ptr() % TMA_BYTES == 0 and v.stride(0) * v.element_size() % TMA_BYTES == 0 for v in matrices)


def on_hopper(value: torch.Tensor) -> bool:
    return value.is_cuda and torch.cuda.get_device_capability(value.device) == (9, 0)


def on_device(value: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    elsewhere = value.is_cuda and value.get_device() != torch.cuda.current_device()
    return torch.cuda.device(value.device) if elsewhere else nullcontext()

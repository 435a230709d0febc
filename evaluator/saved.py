"""What a forward keeps for its backward: by our pair of tasks, and by eager autograd of the same reference.

Weights are kept anyway and not counted; neither is what the backward is given besides (incoming gradients, positions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.tasks.spec import Sizes, TaskInput, TaskOutput, TaskSpec


def kept_by_program(forward: TaskSpec, backward: TaskSpec, sizes: Sizes, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of every tensor of the forward, made by it or given to it, that the backward takes, by name."""
    own: dict[str, TaskInput | TaskOutput] = {i.name: i for i in forward.inputs if i.role == "activation"}
    own |= {o.name: o for o in forward.outputs}
    taken = [own[i.name] for i in backward.inputs if i.name in own and i.dtype != "int64"]
    return {t.name: _count(t.dims, sizes) * _dtype(t, dtype).itemsize for t in taken}


def kept_by_autograd(
    forward: TaskSpec, sizes: Sizes, dtype: torch.dtype, device: str = "meta"
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and bytes of every storage that autograd holds on to after an eager forward, in order, by a number and its
    dtype. A storage counts once and whole, however many views of it were saved. On "meta" nothing is computed."""
    inputs = {i.name: _made(i, sizes, dtype, device) for i in forward.inputs}
    weights = [inputs[i.name] for i in forward.inputs if i.role == "weight"]
    seen = {_storage(w): w for w in weights}
    found: list[torch.Tensor] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        if _storage(value) not in seen:
            found.append(value)
        seen.setdefault(_storage(value), value)  # kept alive, so that no other storage gets its address
        return value

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        outputs = forward.reference(**inputs)
    assert any(o.requires_grad for o in outputs.values())
    names = (f"{n} {str(v.dtype).removeprefix('torch.')}" for n, v in enumerate(found))
    return {name: (tuple(v.shape), v.untyped_storage().nbytes()) for name, v in zip(names, found, strict=True)}


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _made(entry: TaskInput, sizes: Mapping[str, int], dtype: torch.dtype, device: str) -> Any:
    if entry.role == "scalar":
        return 1e-5
    shape = [Dim.parse(d).size(sizes) for d in entry.dims]
    made = torch.ones(shape, dtype=_dtype(entry, dtype), device=device)
    learned = made.is_floating_point() and entry.dtype == "activation"
    return made.requires_grad_(learned)


def _dtype(entry: TaskInput | TaskOutput, activation: torch.dtype) -> torch.dtype:
    found: torch.dtype = activation if entry.dtype == "activation" else getattr(torch, entry.dtype)
    return found


def _count(dims: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    count = 1
    for dim in dims:
        count *= Dim.parse(dim).size(sizes)
    return count

"""Tells a launch, while triton's interpreter runs it, what it does to memory and where a thread block ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from coda_synth.evaluator.hopper_launches import Launch
from triton.runtime import interpreter


def touch(launch: Launch, addresses: Any, mask: Any, writes: bool) -> None:
    """Threads access what pointers point to; all of it lies in one tensor."""
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask, addresses.shape)]
    for address in addresses.reshape(-1)[:1]:
        launch.at(int(address), writes)


@contextlib.contextmanager
def watched(launch: Launch) -> Iterator[None]:
    """The interpreter's programs, one after the other, with their accesses."""
    builder = interpreter.interpreter_builder
    load, store, begin = builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx

    def begun(*index: int) -> None:
        if any(index):
            launch.end_block()
        begin(*index)

    def loaded(pointers: Any, mask: Any, *more: Any, **how: Any) -> Any:
        touch(launch, pointers.data, mask.data, writes=False)
        return load(pointers, mask, *more, **how)

    def stored(pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        touch(launch, pointers.data, mask.data, writes=True)
        return store(pointers, value, mask, *more)

    builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx = loaded, stored, begun
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx

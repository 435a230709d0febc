"""The launches of a simulated module, of which several may be running at once on the device (coda_api/overlap.py).

Simulated they run one after the other. What each does to memory before it waits is held against all that the launches
do which the device might still be running then; of a launch that is told to overlap, every block must wait once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from coda_synth.evaluator.hopper_memory import HopperFault, Race

Place = tuple[int, int]
"""A tensor's memory: its first address, and the one after its last."""


def place(tensor: torch.Tensor) -> Place:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


@dataclass
class Launch:
    """One launch. early: whether it may start before the one before it is complete. running: what may still be running
    when it starts."""

    name: str
    early: bool = False
    running: tuple[Launch, ...] = ()
    given: tuple[Place, ...] = ()
    reads: set[Place] = field(default_factory=set)
    writes: set[Place] = field(default_factory=set)
    waits: int = 0  # of the block at hand
    open: bool = False  # it has released the next launch before it waited

    def wait(self) -> None:
        self.waits += 1

    def release(self) -> None:
        self.open |= not self.waits

    def at(self, address: int, writes: bool) -> None:
        """An access to one of the tensors that it was given."""
        for one in self.given:
            if one[0] <= address < one[1]:
                self.touch(one, writes)

    def touch(self, at: Place, writes: bool) -> None:
        """An access of the block at hand; raises Race where another launch may do something to the same memory."""
        for other in self.running if self.early and not self.waits else ():
            if _meet(at, other.writes) or writes and _meet(at, other.reads):
                does = "writes" if writes else "reads"
                raise Race(f"before it has waited, it {does} what {other.name} works on, which may still be running")
        (self.writes if writes else self.reads).add(at)

    def end_block(self) -> None:
        if self.early and self.waits != 1:
            raise HopperFault(f"it overlaps with {self.running[0].name}, for which a block waits {self.waits} times")
        self.waits = 0


def _meet(at: Place, others: Iterable[Place]) -> bool:
    return any(at[0] < end and start < at[1] for start, end in others)


class Launches:
    """A module's launches in their order."""

    def __init__(self) -> None:
        self._last: Launch | None = None

    def next(self, name: str, early: bool, given: Iterable[Place]) -> Launch:
        """A Hopper launch."""
        if early and self._last is None:
            raise HopperFault(f"{name} is a first launch, and overlaps with what runs before it")
        running: tuple[Launch, ...] = ()
        if early and self._last is not None:
            running = (self._last, *(self._last.running if self._last.open else ()))
        self._last = Launch(name, early, running, tuple(given))
        return self._last

    def ordinary(self, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A launch of another kernel, which waits for all before it; what it has changed it wrote."""
        tensors = [t for t in (getattr(a, "base", a) for a in args) if isinstance(t, torch.Tensor)]
        before = [_bits(t).clone() for t in tensors]
        done = run(*args, **kwargs)
        written = {place(t) for t, old in zip(tensors, before, strict=True) if not torch.equal(_bits(t), old)}
        self._last = Launch(name, reads={place(t) for t in tensors}, writes=written)
        return done


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)

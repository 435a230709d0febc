"""Shared memory and barriers of a simulated Hopper thread block, and who knows of which access to them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np


class HopperFault(Exception):
    """What no program may do on the device, found while a kernel was simulated."""


class Race(HopperFault):
    """Two accesses to one place, one of them a write, that nothing orders."""


class Deadlock(HopperFault):
    """Every warp waits."""


class Known:
    """Accesses that have surely happened, whatever the timing: one's own, and those learnt of by waiting. Threads come
    after all of them; copies and products after those of their own kind, and after those of threads that were fenced.
    """

    _numbers = itertools.count()

    def __init__(self, *others: Known) -> None:
        self.all: set[int] = set()
        self.fenced: set[int] = set()
        self._unfenced: set[int] = set()  # one's own
        self.learn(*others)

    def learn(self, *others: Known) -> None:
        self.all.update(*(other.all for other in others))
        self.fenced.update(*(other.fenced for other in others))

    def new(self, engine: bool) -> int:
        """A new access, by oneself."""
        number = next(self._numbers)
        self.all.add(number)
        (self.fenced if engine else self._unfenced).add(number)
        return number

    def fence(self) -> None:
        self.fenced |= self._unfenced
        self._unfenced.clear()


@dataclass
class Slot:
    """One place of shared memory, and the accesses to it that a later one must come after, as numbers. An access is one
    of threads, or one of an engine's: of a copy or a product."""

    name: str
    last_write: int | None = None
    reads: list[int] = field(default_factory=list)  # since then

    def written(self, by: str, known: Known, engine: bool = False) -> None:
        """An access by somebody who knows what has happened before; raises Race where that leaves out another one."""
        self._check(f"{by} overwrites", self._writes(), known, engine, "being written")
        self._check(f"{by} overwrites", self.reads, known, engine, "read")
        self.last_write, self.reads = known.new(engine), []

    def read(self, by: str, known: Known, engine: bool = False) -> None:
        if self.last_write is None:
            raise Race(f"{by} reads {self.name}, which nothing was written to")
        self._check(f"{by} reads", self._writes(), known, engine, "being written")
        self.reads.append(known.new(engine))

    def settled(self, known: Known) -> bool:
        return known.all.issuperset([*self.reads, *self._writes()])

    def _writes(self) -> list[int]:
        return [] if self.last_write is None else [self.last_write]

    def _check(self, said: str, before: list[int], known: Known, engine: bool, done: str) -> None:
        if not known.all.issuperset(before):
            raise Race(f"{said} {self.name}, which may still be {done}")
        if engine and not known.fenced.issuperset(before):
            raise Race(f"{said} {self.name}, which may still be {done}: there is no fence since")


@dataclass
class Barrier:
    """An mbarrier: its phase ends when all have arrived and all bytes that they expect are there. Who waits for that
    learns what those who arrived, and the copies, knew."""

    name: str
    count: int = 1
    missing: int = 1
    phase: int = 0
    bytes: int = 0
    ready: bool = True  # its memory holds anything until it is initialised
    told: Known = field(default_factory=Known)
    ended: Known = field(default_factory=Known)

    def arrive(self, known: Known, count: int = 1) -> None:
        self._check()
        if count > self.missing:
            raise Race(f"more arrivals at {self.name} than the {self.count} of one phase")
        self.missing -= count
        self._end(known)

    def expect(self, known: Known, size: int) -> None:
        self.bytes += size
        self.arrive(known)

    def landed(self, known: Known, size: int) -> None:
        self.bytes -= size
        self._end(known)

    def passed(self, parity: int) -> bool:
        """Whether the last phase of this parity has ended; before the first one, that of parity 1 has."""
        self._check()
        return self.phase & 1 != parity & 1

    def _check(self) -> None:
        if not self.ready:
            raise Race(f"{self.name} is used before it is initialised")

    def _end(self, known: Known) -> None:
        self.told.learn(known)
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing = self.phase + 1, self.count
            self.ended.learn(self.told)


def box(values: np.ndarray, place: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    """The part of a matrix at a place, with zeros for what lies outside, as the copy engine makes it."""
    found = np.zeros(shape, values.dtype)
    (r, c), (rows, cols) = place, values.shape
    if not (r < rows and c < cols):
        return found
    part = values[r : r + shape[0], c : c + shape[1]]
    found[: part.shape[0], : part.shape[1]] = part
    return found


def put(values: np.ndarray, place: tuple[int, int], block: np.ndarray) -> None:
    """Writes what of a box lies inside the matrix."""
    r, c = place
    part = values[r : r + block.shape[0], c : c + block.shape[1]]
    part[...] = block[: part.shape[0], : part.shape[1]]

"""One thread block of Hopper, simulated: warps that take turns, barriers in shared memory, and copies and products that
happen some time after they were asked for.

What the hardware leaves open is drawn from a seed: how fast each warp is, which one goes on, and when a copy or a
product takes place. Two accesses that nothing orders are a Race whatever the timing was and whatever values came out,
since each warp knows what has surely happened before: its own accesses, and those that it learnt of by waiting. A block
in which nobody can go on is a Deadlock, told with what each warp waits for. Not simulated: time, banks, and the threads
within a warp group, whose order the compiler sees to.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from coda_synth.evaluator.hopper_memory import Barrier, Deadlock, HopperFault, Known, Race, Slot

T = TypeVar("T")


class _Stopped(BaseException):
    """Ends a warp of a block in which something went wrong."""


@dataclass
class UnderWay:
    """A product, or a copy to global memory, that was asked for. known: what has happened once it was waited for."""

    happens: Callable[[], None]
    known: Known


@dataclass
class Warp:
    """One partition of a block: a thread that runs only while the block lets it."""

    name: str
    body: Callable[[], None]
    speed: float = 1.0  # how likely it is to go on, beside the others
    ready: Callable[[], bool] = lambda: True
    waits_for: str = "its start"
    done: bool = False
    known: Known = field(default_factory=Known)
    products: list[UnderWay] = field(default_factory=list)  # all that were asked for, in order
    stores: list[UnderWay] = field(default_factory=list)
    multiplied: int = 0  # how many of them have happened
    stored: int = 0
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Block:
    """The warps of one thread block, and what is under way."""

    def __init__(self, program: int, programs: int, seed: int) -> None:
        self.program, self.programs = program, programs
        self.slots: list[Slot] = []
        self._random = random.Random(seed * 1_000_003 + program)
        self._speeds = {what: self._speed() for what in ("loads", "products", "stores", "writes")}
        self._warps: list[Warp] = []
        self._loads: list[Callable[[], None]] = []
        self._writes: list[Callable[[], None]] = []  # to global memory, of what was read already
        self._back = threading.Semaphore(0)
        self._running: Warp | None = None
        self._fault: BaseException | None = None

    # -- what a warp says

    @property
    def warp(self) -> Warp:
        assert self._running is not None
        return self._running

    def pause(self) -> None:
        """Another warp, or a copy, may come first."""
        self._wait("nothing", lambda: True)

    def read(self, slot: Slot) -> None:
        slot.read(self.warp.name, self.warp.known)

    def write(self, slot: Slot) -> None:
        slot.written(self.warp.name, self.warp.known)

    def fence(self) -> None:
        """Copies and products come after what the running warp has done in shared memory."""
        self.warp.known.fence()

    def arrive(self, barrier: Barrier, count: int) -> None:
        barrier.arrive(self.warp.known, count)
        self.pause()

    def expect(self, barrier: Barrier, size: int) -> None:
        barrier.expect(self.warp.known, size)
        self.pause()

    def wait(self, barrier: Barrier, parity: int) -> None:
        warp = self.warp
        self._wait(f"phase {parity & 1} of {barrier.name}", lambda: barrier.passed(parity))
        warp.known.learn(barrier.ended)

    def load(self, slot: Slot, barrier: Barrier, size: int, copy: Callable[[], None]) -> None:
        """Asks for a copy into shared memory, whose bytes the barrier waits for."""
        known = Known(self.warp.known)
        slot.written(f"a copy of {self.warp.name}", known, engine=True)

        def arrives() -> None:
            copy()
            barrier.landed(known, size)

        self._loads.append(arrives)
        self.pause()

    def store(self, slot: Slot, read: Callable[[], T], write: Callable[[T], None]) -> None:
        """Asks for a copy of a slot to global memory: first it is read, and some time later it is there."""
        known = Known(self.warp.known)
        slot.read(f"a copy of {self.warp.name}", known, engine=True)

        def taken() -> None:
            values = read()
            self._writes.append(lambda: write(values))

        self.warp.stores.append(UnderWay(taken, known))
        self.pause()

    def multiply(self, slots: Iterable[Slot], product: Callable[[], None]) -> None:
        """Asks for a product of what lies in shared memory."""
        known = Known(self.warp.known)
        for slot in slots:
            slot.read(f"a product of {self.warp.name}", known, engine=True)
        self.warp.products.append(UnderWay(product, known))
        self.pause()

    def wait_products(self, pending: int) -> None:
        """Until all but the last `pending` of the running warp's products have happened."""
        warp = self.warp
        due = len(warp.products) - pending
        self._wait(f"all but {pending} of its products", lambda: warp.multiplied >= due)
        warp.known.learn(*(one.known for one in warp.products[: max(0, due)]))

    def wait_stores(self, pending: int) -> None:
        """Until all but the last `pending` of the running warp's copies out have read shared memory."""
        warp = self.warp
        due = len(warp.stores) - pending
        self._wait(f"all but {pending} of its copies out", lambda: warp.stored >= due)
        warp.known.learn(*(one.known for one in warp.stores[: max(0, due)]))

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        """The running warp goes on when `ready` holds, and not necessarily at once."""
        warp = self.warp
        warp.waits_for, warp.ready = what, ready
        self._back.release()
        warp.turn.acquire()
        if self._fault is not None:
            raise _Stopped

    # -- the run

    def run(self, bodies: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """Runs the warps until all have ended; raises what went wrong in one of them, a Race or a Deadlock."""
        self._warps = [Warp(name, body, speed=self._speed()) for name, body in bodies]
        threads = [threading.Thread(target=self._thread, args=(w,), name=w.name, daemon=True) for w in self._warps]
        for thread in threads:
            thread.start()
        try:
            while self._fault is None and not all(w.done for w in self._warps):
                self._step()
            self._check_end()
        except HopperFault as error:
            self._fault = error
        self._stop(threads)
        if self._fault is not None:
            raise self._fault

    def _thread(self, warp: Warp) -> None:
        warp.turn.acquire()
        try:
            if self._fault is None:
                warp.body()
        except _Stopped:
            pass
        except BaseException as error:
            self._fault = self._fault or error
        warp.done = True
        self._back.release()

    def _speed(self) -> float:
        """Some are a hundred times as fast as others: what a wait forgets shows when somebody runs far ahead."""
        return float(10 ** self._random.uniform(-1, 1))

    def _step(self) -> None:
        """One of the things that may happen next, drawn by lot."""
        able = [(w.speed, functools.partial(self._let, w)) for w in self._warps if not w.done and w.ready()]
        happen = [*able, *self._under_way()]
        if not happen:
            raise Deadlock("; ".join(f"{w.name} waits for {w.waits_for}" for w in self._warps if not w.done))
        speeds, actions = zip(*happen, strict=True)
        self._random.choices(actions, speeds)[0]()

    def _let(self, warp: Warp) -> None:
        self._running = warp
        warp.turn.release()
        self._back.acquire()
        self._running = None

    def _under_way(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Copies happen in any order; a warp's products, and the reads of its stores, one after the other."""
        for what, queue in (("loads", self._loads), ("writes", self._writes)):
            yield from ((self._speeds[what], functools.partial(self._from, queue, one)) for one in queue)
        for warp in self._warps:
            if warp.multiplied < len(warp.products):
                yield self._speeds["products"], functools.partial(self._multiply, warp)
            if warp.stored < len(warp.stores):
                yield self._speeds["stores"], functools.partial(self._store, warp)

    @staticmethod
    def _from(queue: list[Callable[[], None]], happens: Callable[[], None]) -> None:
        queue.remove(happens)
        happens()

    @staticmethod
    def _multiply(warp: Warp) -> None:
        warp.products[warp.multiplied].happens()
        warp.multiplied += 1

    @staticmethod
    def _store(warp: Warp) -> None:
        warp.stores[warp.stored].happens()
        warp.stored += 1

    def _check_end(self) -> None:
        """A block's shared memory goes to the next one when its warps have ended."""
        known = Known(*(warp.known for warp in self._warps))
        for slot in () if self._fault else self.slots:
            if not slot.settled(known):
                raise Race(f"the kernel ends, and nobody has waited for what is done with {slot.name}")
        for write in self._writes:
            write()

    def _stop(self, threads: list[threading.Thread]) -> None:
        for warp in self._warps:
            if not warp.done:
                warp.turn.release()
        for thread in threads:
            thread.join()

"""Which launches of a call overlap on Hopper, and where each waits: the rule of programmatic dependent launch.

A launch that the stream is told may overlap starts when every thread block of the launch before it has released it (or
has ended), and not only when that launch is complete. Somewhere it must then wait, which ends when the launch before is
complete and its memory visible. A launch that is not so told waits for everything before it, as ever.

- Only Hopper kernels overlap, because only they wait and release; and never the first launch of a call, so that nothing
  here overlaps with what ran before, whose memory the call may have been given. Nor does the last one release, so that
  nothing that comes later overlaps with the call.
- Each that overlaps waits exactly once in every thread block. So a launch that is complete has waited for the one
  before it, which is complete then too, and by induction all earlier ones are.
- It waits at its start, before any access to memory, if it needs something of a launch that may still be running, and
  releases the next one after that. Otherwise it waits at its end, and releases the next one at once: its blocks fill
  the processors that the last wave of the launch before leaves idle.
- So when a launch starts, the one before it may still be running; and, if that one waits at its end, whatever may have
  been running when that one started.
- A launch needs something of another if it reads what that writes, or writes what that reads or writes. Tensors of a
  call are distinct in memory and live until it ends, so names say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Waits = Literal["never", "start", "end"]


@dataclass(frozen=True, slots=True)
class Access:
    """What a launch does to memory, by the tensors' names. able: a Hopper kernel, which can wait and release."""

    reads: frozenset[str]
    writes: frozenset[str]
    able: bool = True

    def needs(self, earlier: Access) -> bool:
        """Whether it must not run before the earlier launch is complete."""
        return bool(self.reads & earlier.writes or self.writes & (earlier.reads | earlier.writes))


@dataclass(frozen=True, slots=True)
class Overlap:
    """How one launch goes along with its neighbours. waits: where, "never" if it does not overlap with the launch
    before. releases: whether the next one may start before this one is complete."""

    waits: Waits = "never"
    releases: bool = False

    @property
    def early(self) -> bool:
        """Whether the stream may start it before the launch before is complete."""
        return self.waits != "never"


def overlapped(launches: Sequence[Access]) -> tuple[Overlap, ...]:
    """For the launches of one call, in their order."""
    waits = [*_waits(launches), "never"]
    return tuple(
        Overlap(waits[number], launch.able and waits[number + 1] != "never") for number, launch in enumerate(launches)
    )


def _waits(launches: Iterable[Access]) -> Iterable[Waits]:
    running: list[Access] = []  # when the next launch starts, perhaps
    for number, launch in enumerate(launches):
        how: Waits = "never"
        if launch.able and number > 0:
            how = "start" if any(launch.needs(one) for one in running) else "end"
        running = [launch, *running] if how == "end" else [launch]
        yield how

"""The clock on a GPU, from a cold cache, and what else a GPU can tell about a launch. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from coda_synth.evaluator.buffers import fingerprint
from coda_synth.evaluator.execution import Bound
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.measured import summary
from coda_synth.evaluator.race import TIMED, UNTIMED, Lap, Run

_FLUSHES = 4  # each of _FLUSH_BYTES: cold L2, and long enough that the host has launched before the clock starts
_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Traced:
    """Milliseconds of each launch of a program by call, in their order, and between the launches. Where a launch
    overlaps with the one before, only what it takes beyond that one's end."""

    launch_ms: Mapping[str, tuple[float, ...]]
    between_ms: float


class DeviceClock:
    """The GPU's own clock, on the stream: launch gaps inside a run count, what the host does between runs does not."""

    name = f"CUDA events; bursts of {UNTIMED} untimed and {TIMED} timed runs, each behind a flush of L2"

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def laps(self, laps: Sequence[Lap]) -> list[float]:
        events = [self._queued(lap) for lap in laps]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    def _queued(self, lap: Lap) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        lap.prepare()
        for _ in range(_FLUSHES):
            self._flush.zero_()
        start.record()
        lap.run()
        end.record()
        return start, end


def sets_that_fit(bound: Bound, contestants: int) -> int:
    """How many sets of inputs and outputs each contestant gets: three, or what half of the free memory holds."""
    each = sum(g.storage.numel() for g in (*bound.inputs.values(), *bound.buffers.values()))
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(3, int(free // 2 // max(1, each * contestants))))


def captured(run: Run) -> Run:
    """The same work as one CUDA graph, so that what remains of launch gaps is the device's own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def launch_times(*programs: Bound, repeats: int = 8) -> list[Traced]:
    """What the driver's tracer sees of the launches of each program, which take turns; nothing where it sees none."""
    launches = [(i, launch) for i, bound in enumerate(programs) for launch in bound.generated.launches]
    kernels = {launch.kernel for _, launch in launches}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            for bound in programs:
                bound.launch()
        torch.cuda.synchronize()
    seen = [e for e in profiler.events() if e.name in kernels]
    if len(seen) != repeats * len(launches):
        return [Traced({}, 0.0) for _ in programs]
    spans = apart(sorted((e.time_range.start / 1e3, e.time_range.end / 1e3) for e in seen))
    found: list[dict[str, tuple[float, ...]]] = [{} for _ in programs]
    between = [0.0] * len(programs)
    for place, (i, launch) in enumerate(launches):
        waits, lengths = zip(*spans[place :: len(launches)], strict=True)
        between[i] += summary(waits).median_ms if found[i] else 0.0
        found[i][launch.call] = (*found[i].get(launch.call, ()), summary(lengths).median_ms)
    return [Traced(*each) for each in zip(found, between, strict=True)]


def apart(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """By how much each span, a start and an end, starts after those before it, which start earlier, have ended; and
    what it adds to them: what launches overlap is counted once, and to a launch that is there early, and waits, its
    waiting is not."""
    found, reached = [], float("-inf")
    for start, end in spans:
        found.append((max(0.0, start - reached), max(0.0, end - max(start, reached))))
        reached = max(reached, end)
    return found


def output_bits(bound: Bound) -> dict[str, int]:
    return {name: fingerprint(value) for name, value in bound.outputs().items()}


def clocks() -> str:
    """The SM clock and the power as the driver states them now, in words."""
    return driver_state("clocks.sm,power.draw")

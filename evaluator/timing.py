"""Timing on a GPU: contestants interleaved in one process, on rotating cold inputs, with a confidence interval.

Every contestant is a list of callables, one per set of inputs, that do the same work. Nothing here judges correctness,
except that a timed output must have the bits of the checked one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from coda_synth.evaluator.buffers import Guarded, fingerprint, guarded, guarded_copy
from coda_synth.evaluator.execution import Bound
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.measured import Sample, summary

Run = Callable[[], object]
_FEWEST, _LEAST, _MOST = 8, 20, 400  # repeats: whatever they take; before a race may end early; at most
_PRECISE = 0.004  # half the confidence interval over the median at which more repeats are not worth their time
_WARM_S = 0.6
_FLUSHES = 4  # each of _FLUSH_BYTES: cold L2, and long enough that the host has launched before the clock starts
_FLUSH_BYTES = 256 << 20


def race(
    contestants: Mapping[str, Sequence[Run]], seconds: float, before: Mapping[str, Sequence[Run]] = {}
) -> dict[str, Sample]:
    """Times the contestants in turn, in an order that alternates, until the medians are known well enough or the time
    is spent. The clock starts behind a flush of the cache, on the stream, so launch gaps inside a contestant count.
    before: what puts a contestant's inputs in order ahead of each run, outside its time."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in contestants}
    began, warm, turn = time.monotonic(), False, 0
    while True:
        order = list(contestants) if turn % 2 == 0 else list(contestants)[::-1]
        for name, elapsed in _round(order, contestants, before, turn, flush).items():
            times[name].append(elapsed)
        turn += 1
        spent = time.monotonic() - began
        if not warm and spent > _WARM_S and turn >= 3:
            warm, times = True, {name: [] for name in contestants}
        elif warm and (spent > seconds and _fewest(times) >= _FEWEST or _settled(times)):
            return {name: summary(values) for name, values in times.items() if values}


def _round(
    order: Sequence[str],
    contestants: Mapping[str, Sequence[Run]],
    before: Mapping[str, Sequence[Run]],
    turn: int,
    flush: torch.Tensor,
) -> dict[str, float]:
    events = {}
    for name in order:
        runs = contestants[name]
        if name in before:
            before[name][turn % len(runs)]()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(_FLUSHES):
            flush.zero_()
        start.record()
        runs[turn % len(runs)]()
        end.record()
        events[name] = (start, end)
    torch.cuda.synchronize()
    return {name: start.elapsed_time(end) for name, (start, end) in events.items()}


def _fewest(times: Mapping[str, list[float]]) -> int:
    return min(map(len, times.values()))


def _settled(times: Mapping[str, list[float]]) -> bool:
    repeats = _fewest(times)
    if repeats < _LEAST:
        return False
    found = [summary(values) for values in times.values()]
    return repeats >= _MOST or all(s.high_ms - s.low_ms <= 2 * _PRECISE * s.median_ms for s in found)


def copies(bound: Bound, count: int) -> list[Bound]:
    """The bound program and count - 1 more with the same values at other addresses."""
    return [bound, *(_copy(bound) for _ in range(count - 1))]


def _copy(bound: Bound) -> Bound:
    def fresh(of: Guarded) -> Guarded:
        return guarded(tuple(of.tensor.shape), of.tensor.dtype, "cuda")

    bound.restore()
    inputs = {name: guarded_copy(g.tensor, "cuda") for name, g in bound.inputs.items()}
    buffers = {name: fresh(g) for name, g in bound.buffers.items()}
    return Bound(bound.generated, bound.module, inputs, buffers, bound.numbers, bound.kept)


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


def launch_times(bound: Bound, repeats: int = 8) -> dict[str, float]:
    """Milliseconds of each launch on the device, by call, as the driver's tracer sees it; empty where it sees none."""
    launches = bound.generated.launches
    kernels = {launch.kernel for launch in launches}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            bound.launch()
        torch.cuda.synchronize()
    seen = [e for e in profiler.events() if e.name in kernels]
    if len(seen) != repeats * len(launches):
        return {}
    seen.sort(key=lambda e: e.time_range.start)
    lengths = [e.time_range.elapsed_us() / 1e3 for e in seen]
    found: dict[str, float] = {}
    for i, launch in enumerate(launches):
        found[launch.call] = found.get(launch.call, 0.0) + summary(lengths[i :: len(launches)]).median_ms
    return found


def elapsed_ms(run: Run, repeats: int = 5) -> float:
    """The median of a few runs by themselves, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return summary(times).median_ms


def output_bits(bound: Bound) -> dict[str, int]:
    return {name: fingerprint(value) for name, value in bound.outputs().items()}


def clocks() -> str:
    """The SM clock and the power as the driver states them now, in words."""
    return driver_state("clocks.sm,power.draw")

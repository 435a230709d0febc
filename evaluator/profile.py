"""What bounds a candidate, in words and figures that an author can act on: modelled, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coda_synth.coda_api.cost import LaunchCost
from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.generated import Resources
from coda_synth.evaluator.measured import Measured


def modelled_lines(launches: Sequence[LaunchCost], on: Device, dtype: str) -> list[str]:
    """One line a launch, from the cost model alone."""
    total = sum(launch.seconds for launch in launches)
    return [
        f"{_cost(launch, on, dtype)}; modelled {_ms(launch.seconds)}, {launch.seconds / total:.0%}"
        for launch in launches
    ]


def measured_lines(
    found: Measured, launches: Sequence[LaunchCost], resources: Sequence[Resources], on: Device, dtype: str
) -> list[str]:
    """What the measurement says of each launch and of the whole."""
    by_call = {launch.call: launch for launch in launches}
    taken = {r.call: r for r in resources}
    ours = found.samples["candidate"].median_ms
    lines = [_launch_line(call, ms, ours, by_call, taken, on, dtype) for call, ms in found.launch_ms.items()]
    return [*lines, *_whole(found, ours), *found.notes]


def _cost(launch: LaunchCost, on: Device, dtype: str) -> str:
    said = f"{launch.call}: {launch.bytes / 1e9:.3g} GB"
    if not launch.flops:
        return f"{said}, no GEMM"
    compute, memory = launch.flops / on.matmul_flops(dtype), launch.bytes / on.copy_bytes_per_s
    by = "tensor cores" if compute > memory else "memory"
    said += f", {launch.flops / 1e12:.3g} TFLOP, bound by {by}"
    waves = launch.tiles / on.sms
    said += f"; {launch.tiles:,} tiles on {on.sms} SMs are {waves:.1f} waves, {launch.wave_efficiency:.0%} full"
    if launch.tile_efficiency < 0.99:
        said += f"; this tile's operand traffic through shared memory leaves {launch.tile_efficiency:.0%} of the peak"
    return said


def _launch_line(
    call: str,
    ms: float,
    whole_ms: float,
    costs: Mapping[str, LaunchCost],
    taken: Mapping[str, Resources],
    on: Device,
    dtype: str,
) -> str:
    said = f"{call} takes {ms:.4g} ms, {ms / whole_ms:.0%} of the program"
    if cost := costs.get(call):
        said += f" ({_cost(cost, on, dtype)})"
        flops, moved = cost.flops / ms / 1e9, cost.bytes / ms / 1e9
        said += f": {flops:.0f} TFLOP/s" if cost.flops else ""
        said += f", {moved:.2f} TB/s"
    if res := taken.get(call):
        said += f"; {res.registers} registers, {res.spill_bytes:,} bytes spilled, {res.shared_bytes:,} bytes shared"
    return said


def _whole(found: Measured, ours: float) -> Iterator[str]:
    gap = ours - sum(found.launch_ms.values())
    if found.launch_ms and len(found.launch_ms) > 1:
        yield f"between its {len(found.launch_ms)} launches the program spends {max(gap, 0):.4g} ms of {ours:.4g} ms"
    if "candidate" in found.graph:
        said = f"as a CUDA graph it takes {found.graph['candidate'].median_ms:.4g} ms"
        bare = found.graph.get("bare_gemm")
        yield said + (f", the bare GEMMs {bare.median_ms:.4g} ms" if bare else "")
    if found.clocks:
        yield f"clock and power after the race: {found.clocks}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"

"""What bounds a candidate, in words and figures that an author can act on: modelled, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from coda_synth.coda_api.cost import LAUNCH_S, LaunchCost
from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.measured import Measured, Parts


def modelled_lines(launches: Sequence[LaunchCost], on: Device, dtype: str) -> list[str]:
    """One line a launch, from the cost model alone."""
    total = sum(launch.seconds for launch in launches)
    return [
        f"{_cost(launch, on, dtype)}{_epilogue(launch)}; modelled {_ms(launch.seconds)}, {launch.seconds / total:.0%}"
        for launch in launches
    ]


def _epilogue(launch: LaunchCost) -> str:
    """What the epilogue of a GEMM moves, and what of it the mainloop does not hide."""
    if not launch.flops or launch.pieces > 1:
        return ""
    more = max(0.0, launch.seconds - launch.mainloop_s - LAUNCH_S)
    said = f"; its sums alone {_ms(launch.mainloop_s)}, its epilogue (reads {launch.loaded / 1e9:.3g} GB, writes"
    adds = f"{_ms(more)}, {more / launch.seconds:.1%}" if more >= 0.001 * launch.seconds else "nothing to speak of"
    said += f" {launch.stored / 1e9:.3g} GB) adds {adds}"
    return said + (f", {_ms(launch.spill_s)} of it spills, at the least" if launch.spill_s else "")


def measured_lines(
    found: Measured,
    launches: Sequence[LaunchCost],
    resources: Sequence[Resources],
    on: Device,
    dtype: str,
    schedules: Mapping[str, Schedule] = {},
    apart: Parts | None = None,
) -> list[str]:
    """What the measurement says of each launch and of the whole; with `apart`, against this very device's peaks."""
    if apart:
        on = replace(on, copy_bytes_per_s=apart.copy_bytes_per_s, matmul_flops_per_s=apart.matmul_flops_per_s)
        on = replace(on, peak_fp32_flops_per_s=apart.matmul_flops_per_s) if dtype == "float32" else on
    costs = {launch.call: launch for launch in launches}
    ours = found.samples["candidate"].median_ms
    lines = []
    for call, each in found.launch_ms.items():
        ms = sum(each)
        said = f"{call} takes {ms:.4g} ms, {ms / ours:.0%} of the program"
        said += f", its launches {' and '.join(f'{one:.4g}' for one in each)} ms" if len(each) > 1 else ""
        said += _against(costs[call], ms, on, dtype) if call in costs else ""
        lines.append(said + _resources([r for r in resources if r.call == call], schedules.get(call)))
    lines += _apart(found, apart, ours) if apart else []
    return [*lines, *_whole(found, ours), *found.notes]


def _cost(launch: LaunchCost, on: Device, dtype: str) -> str:
    said = f"{launch.call}: {launch.bytes / 1e9:.3g} GB"
    if not launch.flops:
        return f"{said}, no GEMM"
    said += f", {launch.flops / 1e12:.3g} TFLOP, bound by {_bound_by(launch, on, dtype)}"
    return said + _rounds(launch, on) + _efficiency(launch)


def _rounds(launch: LaunchCost, on: Device) -> str:
    """How the product is shared out among the processors."""
    if launch.streamed:
        said = (
            f"; {launch.streamed:,} tiles in {launch.tiles:,} pieces, equal runs through all steps of K on {on.sms} SMs"
        )
        return f"{said}, {launch.wave_efficiency:.0%} full"
    waves = launch.tiles / on.sms
    pieces = f" in {launch.pieces} pieces of K each" if launch.pieces > 1 else ""
    said = f"; {launch.tiles // launch.pieces:,} tiles{pieces} on {on.sms} SMs are {waves:.1f} waves,"
    said += f" {launch.wave_efficiency:.0%} full"
    if rest := launch.tiles % on.sms:
        said += f", the last with {rest} of {on.sms} SMs at work"
    return said


def _efficiency(launch: LaunchCost) -> str:
    """What the tile and its stages leave of the peak."""
    said = ""
    if launch.tile_efficiency < 0.99:
        said += f"; this tile's operand traffic through shared memory leaves {launch.tile_efficiency:.0%} of the peak"
    if launch.depth_efficiency < 0.99:
        needed = ceil(launch.stages / launch.depth_efficiency - 1e-9)
        said += f"; {launch.stages} stages do not hide the latency of their loads, which leaves"
        said += f" {launch.depth_efficiency:.0%} ({needed} would)"
    return said


def _bound_by(launch: LaunchCost, on: Device, dtype: str) -> str:
    """What a faster launch would need more of."""
    compute, memory = launch.flops / on.matmul_flops(dtype), launch.bytes / on.copy_bytes_per_s
    if memory >= compute / (launch.tile_efficiency * launch.depth_efficiency):
        return "memory"
    if min(launch.tile_efficiency, launch.depth_efficiency) >= 0.99:
        return "tensor cores"
    return "shared memory" if launch.tile_efficiency <= launch.depth_efficiency else "latency"


def _against(cost: LaunchCost, ms: float, on: Device, dtype: str) -> str:
    """Its rates, and what they are of the device's."""
    if ms <= 0:
        return f" ({_cost(cost, on, dtype)}), nothing beyond the launch before"
    flops, moved = cost.flops / ms * 1e3, cost.bytes / ms * 1e3
    said = f" ({_cost(cost, on, dtype)}):"
    if cost.flops:
        said += f" {flops / 1e12:.0f} TFLOP/s, {flops / on.matmul_flops(dtype):.0%} of what a large product reaches;"
    if moved > 1.05 * on.copy_bytes_per_s:
        return f"{said} faster than memory: its bytes were still on the chip, or it ran beside another launch"
    return said + f" {moved / 1e12:.2f} TB/s, {moved / on.copy_bytes_per_s:.0%} of what a large copy reaches"


def _resources(taken: Sequence[Resources], schedule: Schedule | None) -> str:
    said = ""
    if schedule:
        said += f"; tile {schedule.block_m} x {schedule.block_n} x {schedule.block_k}, {schedule.stages} stages"
    for one in taken:
        name = f"{one.kernel}: " if len(taken) > 1 else ""
        said += (
            f"; {name}{one.registers} registers, {one.spill_bytes:,} bytes spilled, {one.shared_bytes:,} bytes shared"
        )
    return said


def _apart(found: Measured, apart: Parts, ours: float) -> Iterator[str]:
    """Mainloop and epilogue of each GEMM; a program of one launch is that launch where the tracer saw none."""
    for call, bare in apart.bare_ms.items():
        whole = apart.whole_ms.get(call, ours if len(apart.bare_ms) == 1 and not found.launch_ms else 0.0)
        said = f"{call} with an epilogue that only stores the product takes {bare:.4g} ms"
        if whole:
            more = whole - bare
            verb = "adds" if more > 0 else "saves"
            several = len(found.launch_ms.get(call, ())) > 1
            said += f", by turns with its own {whole:.4g} ms: its own epilogue {verb} {abs(more):.4g} ms,"
            said += f" {abs(more) / whole:.0%} of the {'launches' if several else 'launch'}"
        yield said
    copy, product = apart.copy_bytes_per_s / 1e12, apart.matmul_flops_per_s / 1e12
    yield f"measured here: a large copy moves {copy:.2f} TB/s, a large product does {product:.0f} TFLOP/s"
    yield from apart.notes


def _whole(found: Measured, ours: float) -> Iterator[str]:
    every = [ms for each in found.launch_ms.values() for ms in each]
    if len(every) > 1:
        said = f"between its {len(every)} launches the program spends {found.between_ms:.4g} ms of {ours:.4g} ms"
        yield said + (f"; by the tracer, they add up to {sum(every):.4g} ms" if sum(every) > ours else "")
    if "candidate" in found.graph:
        said = f"as a CUDA graph it takes {found.graph['candidate'].median_ms:.4g} ms"
        bare = found.graph.get("bare_gemm")
        yield said + (f", the bare GEMMs {bare.median_ms:.4g} ms" if bare else "")
    if found.clocks:
        yield f"clock and power after the race: {found.clocks}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"

"""What one tile of a GEMM kernel takes under a schedule: a mainloop that the matrix units, shared memory or latency
bound, and what of its epilogue no mainloop hides. How many tiles there are is the cost model's matter.

The constants come from one H200: they are fitted to benchmarks/results/schedules-h200-2026-11-30.json, where the same
programs ran under several schedules, and to others measured before; docs/tuner.md says how well they fit and what they
do not see. What a step takes at least, and how long the pieces of a sum are waited for, are fitted to
benchmarks/results/few_rows-h200-2026-11-30.json. Two are not fitted: LATENCY_S is only bounded from above by those
figures, and the price of a spill is what its bytes need at least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.geometry import summed_slice
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.stream import piece_count, pieces_in_a_run, run_length

LATENCY_S = 0.8e-6  # from asking for a stage's operands until they lie in shared memory
_STEP_S = {"portable": 0.27e-6, "hopper": 0.2e-6, "pingpong": 0.2e-6}  # the least of a step along K, however small
_OUTSIDE_S = 0.42e-6  # where three quarters or more of the rows that the copy engine is asked for are not the product's
_PIECE_WAITS = 3.0  # latencies that a piece of a sum takes to arrive
_SLICE_S = 0.2e-6  # barriers, staging and store of one slice of an epilogue, of 128 rows
_FILL_S = 1.0e-6  # the portable kernel fills its pipeline anew for every tile
_RUNNING_S, _CHAINED_S = 0.7e-6, 3e-6  # running values of rows beside an accumulator, in a group of four warps
_TURNS = 1.01  # mainloops that alternate, over one that waits for its own epilogue
_SYNCHRONOUS = 2.0  # a tile that is loaded when it is needed, over one that a loader has brought
_IN_TURNS = 1.3  # a tile that one group's epilogue waits for, beside the other's sum
_SHARED_BYTES_PER_CLOCK = 128
_LANES = 128  # instructions that one SM issues in a clock, each for an element
_WIDE, _NARROW, _TURN = 128, 64, 32  # slices where the schedule names none: without and with running values, in turns


@dataclass(frozen=True, slots=True)
class Work:
    """Of one tile: flops of its mainloop at the sustained rate in seconds; bytes that its epilogue loads; bytes that it
    stores beyond one product's worth; whether it keeps running values of rows, and of those that each depend on the one
    before; bytes of stack a thread spills; instructions of its epilogue for an element."""

    mainloop_s: float
    loaded: float
    stored: float
    running: bool
    chained: bool = False
    spilled: int = 0
    instructions: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """What of a product the busiest SM has. items: tiles, or pieces of tiles; sums: how many tiles' steps along K they
    hold together; pieces: of all tiles, each once where no K is cut."""

    items: int
    sums: float
    pieces: int


def share(schedule: Schedule, device: Device, tiles: int, steps: int) -> Share:
    """steps: of block_k along K in a tile."""
    if schedule.cut == "stream" and schedule.split_k > 1:
        length = run_length(tiles, steps, device.sms, schedule.split_k)
        return Share(pieces_in_a_run(tiles, steps, length), length / steps, piece_count(tiles, steps, length))
    pieces = tiles * schedule.split_k
    items = -(-pieces // device.sms)
    return Share(items, items / schedule.split_k, pieces)


def mainloop(schedule: Schedule, device: Device) -> str:
    """What runs: "auto" is Hopper's shared tile where the device has one. A kernel without a Hopper text runs portable
    all the same: who has lowered it says so by its schedule."""
    if device.target != "sm_90":
        return "portable"
    return "hopper" if schedule.mainloop == "auto" else schedule.mainloop


def without_turns(schedule: Schedule) -> Schedule:
    """What a schedule comes to where a processor has one tile alone: there is nobody to take turns with."""
    return replace(schedule, mainloop="hopper") if schedule.mainloop == "pingpong" else schedule


def tile_efficiency(schedule: Schedule, device: Device) -> float:
    """The share of the matrix units' peak that shared memory can feed with this tile: operands are written once and
    read by groups of 64 rows. Two groups that take turns fill each other's waits: 128 x 128 was measured at the full
    rate, and smaller tiles are held against it."""
    if mainloop(schedule, device) == "pingpong":
        return min(1.0, _fed(schedule.block_m, schedule.block_n, device) / _fed(128, 128, device))
    return min(1.0, _fed(schedule.block_m, schedule.block_n, device))


def _fed(m: int, n: int, device: Device) -> float:
    moved = 2 * ((m + n) + m + max(1, m // 64) * n)
    clocks = 2 * m * n * device.sms * device.clock_hz / device.peak_flops_per_s
    return _SHARED_BYTES_PER_CLOCK * clocks / moved


def depth_efficiency(schedule: Schedule, device: Device, flops_per_s: float, rows: int) -> float:
    """The share of its time in which a pipeline of so many stages has operands to work on: a stage is asked for when it
    is free, and a step's work and the latency pass before it is free again. A step of little work takes as long as its
    barriers and the latency of its product. rows: of the product."""
    kind = mainloop(schedule, device)
    least = _OUTSIDE_S if kind != "portable" and 4 * rows <= schedule.block_m else _STEP_S[kind]
    step = 2 * schedule.block_m * schedule.block_n * schedule.block_k * device.sms / flops_per_s
    return min(1.0, schedule.stages * step / (LATENCY_S + step), step / least)


def tile_s(schedule: Schedule, device: Device, work: Work, efficiency: float) -> float:
    """Seconds from one tile to the next on one SM. efficiency: of the mainloop, by tile and depth."""
    kind = mainloop(schedule, device)
    share = device.copy_bytes_per_s / device.sms  # what one SM gets of the memory's bandwidth
    loads, stores = work.loaded / share, work.stored / share
    wide = schedule.slice_n or (_TURN if kind == "pingpong" else _NARROW if work.running else _WIDE)
    slices = -(-schedule.block_n // min(wide, schedule.block_n))
    spills = slices * spill_s(schedule, device, work.spilled)
    busy = busy_s(schedule, device, work, efficiency)
    if kind == "pingpong":
        running = _CHAINED_S if work.chained else _RUNNING_S if work.running else 0.0
        return busy + _IN_TURNS * loads + running + spills
    issued = work.instructions * schedule.block_m * schedule.block_n / _LANES / device.clock_hz
    exposed = stores + issued + _SLICE_S * slices * schedule.block_m / 128 + spills
    return busy + exposed + (loads if kind == "hopper" else _SYNCHRONOUS * loads + _FILL_S)


def busy_s(schedule: Schedule, device: Device, work: Work, efficiency: float) -> float:
    """Of these, the seconds in which matrix units, or what feeds them, are at work on a tile's sum."""
    turns = _TURNS if mainloop(schedule, device) == "pingpong" else 1.0
    return turns * work.mainloop_s / efficiency


def pieces_s(schedule: Schedule, device: Device, work: Work, efficiency: float, share: Share) -> float:
    """Seconds of one SM's share of pieces, where K is cut: each stores its accumulator. Two groups that take turns hide
    that, but for the last."""
    stored = 4 * schedule.block_m * schedule.block_n
    piece = Work(work.mainloop_s * share.sums / share.items, 0, stored, False)
    each = tile_s(replace(schedule, slice_n=schedule.block_n), device, piece, efficiency)
    last = stored * device.sms / device.copy_bytes_per_s if mainloop(schedule, device) == "pingpong" else 0.0
    return share.items * each + last


def summed_s(schedule: Schedule, device: Device, work: Work, pieces: int) -> float:
    """Seconds of one tile of the launch that adds the pieces up: its slices wait for them, four at a time (two, of a
    stream), and for what the epilogue loads, and nothing hides that."""
    slices, waits = schedule.block_n // summed_slice(schedule), -(-pieces // (4 if schedule.cut == "even" else 2))
    share = device.copy_bytes_per_s / device.sms
    return slices * _PIECE_WAITS * (waits * LATENCY_S + _SLICE_S) + (_SYNCHRONOUS * work.loaded + work.stored) / share


def spill_s(schedule: Schedule, device: Device, spilled: int) -> float:
    """The least that a block takes to write its threads' spilled bytes and to read them again, once."""
    return 2 * spilled * 32 * schedule.warps / (_SHARED_BYTES_PER_CLOCK * device.clock_hz)

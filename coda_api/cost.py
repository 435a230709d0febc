"""The cost model: bytes and flops of a program at given sizes, and what a device needs for them at best and in
estimate.

A model, not a measurement; what it says of one kernel's tile under a schedule is in `kernel_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coda_synth.coda_api.arithmetic import CHAINED, instructions
from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.groups import tile_step
from coda_synth.coda_api.kernel_time import (
    Share,
    Work,
    busy_s,
    depth_efficiency,
    mainloop,
    pieces_s,
    share,
    spill_s,
    summed_s,
    tile_efficiency,
    tile_s,
    without_turns,
)
from coda_synth.coda_api.program import Call, Form, Kernel, Preparation, Program, Ref, Signature, Value, walk
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.storage import accumulated_into, stored_dtype

Sizes = Mapping[str, int]
ITEMSIZE = {
    "float8_e4m3": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
}
LAUNCH_S = 3e-6  # filling and draining the device once


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """One call: its launch, or both of them where K is cut in pieces, and then a tile counts once for each piece.
    seconds: the estimate; wave_efficiency: whole waves of tiles over waves begun; tile_efficiency: what shared memory
    leaves of the peak with this tile; depth_efficiency: what latency leaves with so many stages. mainloop_s: of the
    seconds, what the sums alone take; spill_s: what spills cost at least. loaded, stored: bytes of the epilogue.
    streamed: where the sums are cut in a stream, the tiles, which have `tiles` pieces together."""

    call: str
    flops: int
    bytes: int
    tiles: int
    wave_efficiency: float
    tile_efficiency: float
    seconds: float
    depth_efficiency: float = 1.0
    pieces: int = 1
    stages: int = 1
    mainloop_s: float = 0.0
    spill_s: float = 0.0
    loaded: int = 0
    stored: int = 0
    streamed: int = 0


@dataclass(frozen=True, slots=True)
class ProgramCost:
    launches: tuple[LaunchCost, ...]

    @property
    def flops(self) -> int:
        return sum(launch.flops for launch in self.launches)

    @property
    def bytes(self) -> int:
        return sum(launch.bytes for launch in self.launches)

    @property
    def seconds(self) -> float:
        return sum(launch.seconds for launch in self.launches)


def task_flops(gemms: tuple[tuple[str, str, str], ...], sizes: Sizes) -> int:
    """Multiplications and additions of the task's GEMMs, (M, N, K) in dims."""
    return sum(2 * _product(map(Dim.parse, gemm), sizes) for gemm in gemms)


def task_bytes(signature: Signature, sizes: Sizes) -> int:
    """Every input once and every output once."""
    inputs = sum(_product(i.type.dims, sizes) * ITEMSIZE[i.dtype] for i in signature.inputs if i.role != "scalar")
    return inputs + sum(_product(o.dims, sizes) * ITEMSIZE[o.dtype] for o in signature.outputs)


def bound_s(signature: Signature, gemms: tuple[tuple[str, str, str], ...], sizes: Sizes, device: Device) -> float:
    """Seconds that no implementation can beat: the task's least bytes and its GEMMs' flops at datasheet peaks."""
    compute = task_flops(gemms, sizes) / device.peak_flops(signature.dtype)
    return max(compute, task_bytes(signature, sizes) / device.peak_bytes_per_s)


def bare_gemm_s(signature: Signature, gemms: tuple[tuple[str, str, str], ...], sizes: Sizes, device: Device) -> float:
    """Seconds of the task's GEMMs alone, one after the other, at the device's sustained rates."""
    item, total = ITEMSIZE[signature.dtype], 0.0
    for gemm in gemms:
        m, n, k = (Dim.parse(d).size(sizes) for d in gemm)
        traffic = item * (m * k + n * k + m * n)
        total += max(2 * m * n * k / device.matmul_flops(signature.dtype), traffic / device.copy_bytes_per_s) + LAUNCH_S
    return total


def floor_s(signature: Signature, gemms: tuple[tuple[str, str, str], ...], sizes: Sizes, device: Device) -> float:
    """Seconds of its GEMMs alone, or of its least bytes, at sustained rates. Further launches, passes and epilogues
    come on top; a schedule that hides its waits can be modelled a little below it."""
    moved = task_bytes(signature, sizes) / device.copy_bytes_per_s + LAUNCH_S
    return max(bare_gemm_s(signature, gemms, sizes, device), moved)


def program_cost(
    program: Program,
    signature: Signature,
    sizes: Sizes,
    schedules: Mapping[str, Schedule],
    device: Device,
    spills: Mapping[str, int] = {},
) -> ProgramCost:
    """The launches of a program, preparations left out. schedules: one for every live kernel call; spills: bytes of
    stack a thread by call, where a build has found some."""
    traffic = _Traffic(program, signature, sizes, schedules)
    calls = [c for c in program.live_calls() if not isinstance(c.unit, Preparation)]
    return ProgramCost(tuple(_launch(c, traffic, device, spills.get(c.name, 0)) for c in calls))


def _launch(call: Call, traffic: _Traffic, device: Device, spilled: int) -> LaunchCost:
    moved = traffic.read(call) + traffic.written(call)
    memory = moved / device.copy_bytes_per_s
    unit = call.unit
    if not isinstance(unit, Kernel):
        return LaunchCost(call.name, 0, moved, 1, 1.0, 1.0, memory + LAUNCH_S)
    schedule = traffic.schedules[call.name]
    rows, cols = call.dim(unit.rows).size(traffic.sizes), call.dim(unit.cols).size(traffic.sizes)
    whole = schedule.split_k > 1  # pieces are cut from the product as it is, whatever its epilogue's groups
    step = schedule.block_n if whole else tile_step(traffic.program, call, traffic.sizes, schedule)
    tiles = -(-rows // schedule.block_m) * -(-cols // step)
    waves = -(-tiles // device.sms)
    if unit.gemm is None:
        spills = waves * spill_s(schedule, device, spilled)
        return LaunchCost(call.name, 0, moved, tiles, 1.0, 1.0, memory + spills + LAUNCH_S)
    of = share(schedule, device, tiles, -(-call.dim(unit.gemm.inner).size(traffic.sizes) // schedule.block_k))
    schedule = without_turns(schedule) if of.items == 1 else schedule
    rate = device.matmul_flops(traffic.signature.dtype)
    shape = tile_efficiency(schedule, device)
    depth = depth_efficiency(schedule, device, rate * shape, rows)
    work = _work(call, traffic, device, rows * cols, tiles, spilled, rate / device.sms)
    # A wide tile over a ragged edge, or with padded groups, computes what nobody asked for: the tiles' flops count.
    seconds = max(memory, waves * tile_s(schedule, device, work, shape * depth)) + LAUNCH_S
    if schedule.split_k > 1:
        seconds, moved = _in_pieces(traffic, call, schedule, device, work, shape * depth, rows * cols, tiles, of)
    flops = 2 * rows * cols * call.dim(unit.gemm.inner).size(traffic.sizes)
    busy = of.sums * busy_s(schedule, device, work, shape * depth)
    spills = waves * (tile_s(schedule, device, work, 1.0) - tile_s(schedule, device, replace(work, spilled=0), 1.0))
    return LaunchCost(
        call.name,
        flops,
        moved,
        of.pieces,
        tiles / (of.sums * device.sms),
        shape,
        seconds,
        depth,
        schedule.split_k,
        schedule.stages,
        max(traffic.operands(call) / device.copy_bytes_per_s, busy),
        spills,
        traffic.read(call) - traffic.operands(call),
        traffic.written(call),
        tiles if schedule.split_k > 1 and schedule.cut == "stream" else 0,
    )


def _in_pieces(
    traffic: _Traffic,
    call: Call,
    schedule: Schedule,
    device: Device,
    work: Work,
    efficiency: float,
    product: int,
    tiles: int,
    of: Share,
) -> tuple[float, int]:
    """Seconds and bytes of a call whose sum along K is cut: the pieces go through memory once."""
    workspace, operands = 4 * product * of.pieces // tiles, traffic.operands(call)
    rest = traffic.read(call) + traffic.written(call) - operands
    first = pieces_s(schedule, device, work, efficiency, of)
    second = -(-tiles // device.sms) * summed_s(schedule, device, work, -(-of.pieces // tiles))
    seconds = max((operands + workspace) / device.copy_bytes_per_s, first)
    seconds += max((workspace + rest) / device.copy_bytes_per_s, second) + 2 * LAUNCH_S
    return seconds, operands + rest + 2 * workspace


def _work(call: Call, traffic: _Traffic, device: Device, product: int, tiles: int, spilled: int, rate: float) -> Work:
    """What one tile of a kernel asks for; product: elements; rate: flops a second of one SM."""
    unit, schedule = call.unit, traffic.schedules[call.name]
    assert isinstance(unit, Kernel) and unit.gemm is not None
    inner = call.dim(unit.gemm.inner).size(traffic.sizes)
    stored = max(0, traffic.written(call) - product * ITEMSIZE[traffic.signature.dtype])
    live = traffic.live(call)
    loaded = traffic.read(call) - traffic.operands(call)
    if schedule.split_k == 1 and mainloop(schedule, device) != "portable":  # the copy engine adds to memory itself
        loaded -= traffic.accumulated(call)
    return Work(
        mainloop_s=2 * schedule.block_m * schedule.block_n * inner / rate,
        loaded=loaded / tiles,
        stored=stored / tiles,
        running=any(value.form in (Form.PARTIAL, Form.PICK) for value in live.values()),
        chained=any(value.word in CHAINED for value in live.values()),
        spilled=spilled,
        instructions=instructions(unit, live, lambda dim: call.dim(dim).size(traffic.sizes)),
    )


class _Traffic:
    """What each call moves, in bytes: every tensor that it reads once, everything that it stores once."""

    def __init__(self, program: Program, signature: Signature, sizes: Sizes, schedules: Mapping[str, Schedule]) -> None:
        self.program, self.signature, self.sizes, self.schedules = program, signature, sizes, schedules
        self._calls = {call.name: call for call in program.calls}
        self._inputs = {spec.name: spec for spec in signature.inputs}

    def operands(self, call: Call) -> int:
        gemm = call.unit.gemm if isinstance(call.unit, Kernel) else None
        return sum(self._ref(call.args[name]) for name in ({gemm.a, gemm.b} if gemm else ()))

    def live(self, call: Call) -> dict[str, Value]:
        """The outputs of a call that somebody uses."""
        return {name: call.unit.outputs[name] for name in self.program.live_outputs(call)}

    def read(self, call: Call) -> int:
        used = {str(v.attrs["name"]) for v in walk(self.live(call)) if v.word == "param"}
        gemm = call.unit.gemm if isinstance(call.unit, Kernel) else None
        used -= {gemm.a, gemm.b} if gemm else set()
        return self.operands(call) + sum(self._ref(call.args[name]) for name in sorted(used))

    def accumulated(self, call: Call) -> int:
        """What of it is read to be added to, where the kernel does that itself."""
        added = (accumulated_into(value) for value in self.live(call).values())
        return sum(self._ref(call.args[name]) for name in added if name)

    def written(self, call: Call) -> int:
        return sum(self._output(call, name) for name in self.program.live_outputs(call))

    def _ref(self, ref: Ref) -> int:
        if ref.input is not None:
            spec = self._inputs[ref.input]
            return _product(spec.type.dims, self.sizes) * ITEMSIZE[spec.dtype] if spec.role != "scalar" else 0
        if ref.call is not None and ref.output is not None:
            return self._output(self._calls[ref.call], ref.output)
        return 0

    def _output(self, call: Call, name: str) -> int:
        value = call.unit.outputs[name]
        dims = [call.dim(d) for d in (value.rows, value.cols) if d is not None]
        if value.form is Form.PARTIAL:
            return self._partials(call, value) * 4
        return _product(dims, self.sizes) * ITEMSIZE[stored_dtype(self.program, self.signature, call, name)]

    def _partials(self, call: Call, value: Value) -> int:
        """A partial holds one value per kept element and tile of the reduced dim, which the schedule cuts."""
        assert isinstance(call.unit, Kernel) and value.rows is not None and value.cols is not None
        schedule = self.schedules[call.name]
        along_rows = value.attrs.get("axis", 1) == 0
        block = schedule.block_m if along_rows else tile_step(self.program, call, self.sizes, schedule)
        product = call.dim(call.unit.rows if along_rows else call.unit.cols).size(self.sizes)
        return call.dim(value.rows).size(self.sizes) * -(-product // block)


def _product(dims: Iterable[Dim], sizes: Sizes) -> int:
    result = 1
    for dim in dims:
        result *= dim.size(sizes)
    return result

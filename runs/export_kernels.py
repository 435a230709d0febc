"""The generated kernels of an exported package: every form of one program, and how their buffers follow from sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.groups import tile_step
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Call, Form, Kernel, Preparation, Program, Signature, Value
from coda_synth.coda_api.schedule import Schedule
from coda_synth.runs.export_sizes import dim_text

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a buffer: a dim, or the number of tiles along it, rounded up."""

    dim: Dim
    tile: int = 0  # 0: not counted in tiles

    def size(self, sizes: Sizes) -> int:
        return -(-self.dim.size(sizes) // self.tile) if self.tile else self.dim.size(sizes)

    def __str__(self) -> str:
        text = dim_text(self.dim)
        if not self.tile:
            return text
        return f"-(-{text if text.isidentifier() else f'({text})'} // {self.tile})"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every form, the Hopper one only where a kernel has it; the shape of every buffer; and the symbols whose size the
    text itself depends on."""

    hopper: Generated | None
    descriptor: Generated
    pointer: Generated
    shapes: Mapping[str, tuple[Axis, ...]]
    fixed: Mapping[str, int]


def every_form(program: Program, signature: Signature, sizes: Sizes, schedules: Mapping[str, Schedule]) -> Kernels:
    """Lowers for Hopper first, which settles the schedules and with them the tiles that partials are counted in, and
    then the same schedules for every other GPU and shape; raises LoweringError."""
    hopper = lower(program, signature, sizes, form="hopper", schedules=schedules)
    schedules = hopper.schedules
    descriptor = lower(program, signature, sizes, form="descriptor", schedules=schedules)
    pointer = lower(program, signature, sizes, form="pointer", schedules=schedules)
    shapes = _shapes(program, sizes, descriptor.schedules)
    said = {name: tuple(axis.size(sizes) for axis in axes) for name, axes in shapes.items()}
    if said != {b.name: b.shape for b in descriptor.buffers}:
        raise AssertionError(f"the buffers of the export disagree with lowering: {said}, {descriptor.buffers}")
    fixed = {symbol: size for symbol, size in sizes.items() if _matters(symbol, program, signature, sizes, pointer)}
    special = any(launch.gluon for launch in hopper.launches)
    return Kernels(hopper if special else None, descriptor, pointer, shapes, fixed)


def _matters(symbol: str, program: Program, signature: Signature, sizes: Sizes, pointer: Generated) -> bool:
    """Whether the text changes with this size: found by trying, so that no rule of lowering is written twice."""
    other = {**sizes, symbol: sizes[symbol] * 2}
    try:
        return lower(program, signature, other, form="pointer", schedules=pointer.schedules).source != pointer.source
    except LoweringError:  # the tile cannot hold its groups any more
        return True


def _shapes(program: Program, sizes: Sizes, schedules: Mapping[str, Schedule]) -> dict[str, tuple[Axis, ...]]:
    calls = [c for c in program.live_calls() if not isinstance(c.unit, Preparation)]
    shapes = {
        f"{call.name}_{output}": _axes(program, call, call.unit.outputs[output], sizes, schedules)
        for call in calls
        for output in program.live_outputs(call)
    }
    return shapes | {f"{c.name}_pieces": axes for c in calls if (axes := _workspace(c, schedules))}


def _workspace(call: Call, schedules: Mapping[str, Schedule]) -> tuple[Axis, ...]:
    """Of a product whose sum along K is cut in pieces: [split_k, rows, columns]."""
    if not isinstance(call.unit, Kernel) or schedules[call.name].split_k == 1:
        return ()
    return (
        Axis(Dim.number(schedules[call.name].split_k)),
        Axis(call.dim(call.unit.rows)),
        Axis(call.dim(call.unit.cols)),
    )


def _axes(
    program: Program, call: Call, value: Value, sizes: Sizes, schedules: Mapping[str, Schedule]
) -> tuple[Axis, ...]:
    """A partial is stored as [tiles, kept], everything else as it is written."""
    dims = [call.dim(d) for d in (value.rows, value.cols) if d is not None]
    if value.form is not Form.PARTIAL:
        return tuple(map(Axis, dims))
    kept, reduced = dims
    assert isinstance(call.unit, Kernel)
    reduction = value.args[0] if value.word == "part" else value
    schedule = schedules[call.name]
    along_rows = reduction.attrs["axis"] == 0
    step = tile_step(program, call, sizes, schedule)
    block, whole = (schedule.block_m, call.unit.rows) if along_rows else (step, call.unit.cols)
    tile = (reduced / call.dim(whole) * block).size(sizes)
    return Axis(reduced, tile), Axis(kept)

"""What an author can do about a build: hints that would fit, that spill less, or that reach the tensor cores."""

from __future__ import annotations

from dataclasses import replace

from coda_synth.coda_api.devices import Device
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Generated, Resources
from coda_synth.coda_api.schedule import Schedule, as_hints


def over_shared(found: Resources, schedule: Schedule | None, on: Device) -> str:
    """What a launch takes that has no room, and the largest change of its hints that would fit."""
    said = (
        f"the call {found.call} takes {found.shared_bytes:,} bytes of shared memory a block;"
        f" {on.target} ({on.name}) has {on.shared_bytes:,}."
    )
    if schedule is None:
        return said
    beside = max(0, found.shared_bytes - schedule.operand_bytes())
    fewer = [replace(schedule, stages=n) for n in range(schedule.stages - 1, 1, -1)]
    room = [(f"stages={s.stages}", s.operand_bytes() + beside) for s in fewer]
    narrow = [n for n in (128, 64, 32, 16) if n < schedule.slice_n]  # what the epilogue exchanges is as wide as a slice
    slices = [(f"slice_n={n}", schedule.operand_bytes() + beside * n // schedule.slice_n) for n in narrow]
    fitting = [next((c for c in changes if c[1] <= on.shared_bytes), None) for changes in (slices, room)]
    told = " or ".join(f"{change[0]} (about {change[1]:,})" for change in fitting if change)
    if told:
        return f"{said} It would fit with {told}."
    return f"{said} A smaller tile (block_m, block_n or block_k) would fit; fewer stages alone would not."


def built_as(generated: Generated, call: str | None) -> str:
    """Under which schedule the text was made that a compiler refused."""
    schedule = generated.effective.get(call or "")
    return f"\nIt was built with {as_hints(schedule)}; another schedule may compile." if schedule else ""


def warnings(found: Resources, has_gemm: bool, schedule: Schedule | None) -> list[Diagnostic]:
    """What a build tells against a launch. schedule: of a kernel, as carried out; a finisher has none."""
    told = []
    if found.spill_bytes:
        said = (
            f"{found.kernel} of the call {found.call} spills: {found.spill_bytes:,} bytes of stack a thread,"
            f" {found.registers} registers. {_fewer_registers(has_gemm, schedule)}"
        )
        told.append(Diagnostic("Spills", said, severity="warning"))
    if has_gemm and not found.tensor_core_instructions:
        said = f"the call {found.call} has no tensor-core instruction; a larger tile (64 rows and more) gets them."
        told.append(Diagnostic("NoTensorCore", said, severity="warning"))
    return told


def _fewer_registers(has_gemm: bool, schedule: Schedule | None) -> str:
    """What its author can do, in the values of its own schedule."""
    if schedule is None:
        return "A finisher takes no hints; fewer partials or values at once take fewer registers."
    if not has_gemm and schedule.split_k == 1:
        return f"A smaller tile than {schedule.block_m} x {schedule.block_n} or more than {schedule.warps} warps helps."
    slices = [f"slice_n={schedule.slice_n // 2}"] if schedule.slice_n > 16 else []
    warps = [f"warps={2 * schedule.warps}"] if schedule.mainloop == "portable" and schedule.warps < 8 else []
    tile = [f"block_n={schedule.block_n // 2}"] if schedule.block_n > 64 else []
    return f"{' or '.join([*slices, *warps, *tile]) or 'A smaller tile'} takes fewer registers."

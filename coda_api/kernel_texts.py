"""Which emitters write a kernel: Hopper's wherever they have a text, else the portable ones; in one launch, or in two
where its sum along K is cut."""

from __future__ import annotations

from collections.abc import Mapping

from coda_synth.coda_api.emit_hopper import emit_hopper
from coda_synth.coda_api.emit_kernel import emit_kernel
from coda_synth.coda_api.emit_split import emit_pieces, emit_sums
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.groups import padding
from coda_synth.coda_api.hopper_pieces import emit_hopper_pieces
from coda_synth.coda_api.program import Kernel, Value
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.unit_text import Tensors, UnitText


def kernel_texts(
    call: str,
    name: str,
    source: str,
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
    hopper: bool,
    overlap: bool,
    processors: int,
) -> tuple[list[UnitText], list[Diagnostic]]:
    """The texts of a kernel in the order of their launches, and what its author should know. call: whose they are, for
    messages; hopper: whether the target has Hopper's mainloops; processors: runs of a stream. Raises LoweringError,
    also where the schedule asks for such a mainloop and there is none.
    """
    split, notes = schedule.split_k > 1, []
    texts: list[UnitText] = []
    if hopper:
        try:
            if split:
                texts = [
                    emit_hopper_pieces(f"{name}_pieces", source, kernel, sizes, schedule, tensors, processors, overlap)
                ]
            else:
                return [emit_hopper(name, source, kernel, live, sizes, schedule, tensors, overlap)], []
        except LoweringError as reason:
            notes.append(_portable_instead(call, schedule, reason))
    if split:
        texts = texts or [emit_pieces(f"{name}_pieces", source, kernel, sizes, schedule, tensors, processors)]
        return [*texts, emit_sums(name, source, kernel, live, sizes, schedule, tensors, processors)], notes
    if padded := padding(kernel, live, sizes):
        notes.append(Diagnostic("PaddedGroups", f"{call}: {padded}", severity="note"))
    return [emit_kernel(name, source, kernel, live, sizes, schedule, tensors)], notes


def _portable_instead(call: str, schedule: Schedule, reason: LoweringError) -> Diagnostic:
    """Says so; a schedule that asks for the Hopper kernel is refused instead."""
    if schedule.mainloop != "auto":
        raise LoweringError(f'{call}: mainloop="{schedule.mainloop}" is not possible: {reason}') from reason
    return Diagnostic("PortableKernel", f"{call} runs the portable kernel: {reason}", severity="note")

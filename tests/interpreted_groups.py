"""Groups of columns that are no power of two, under several tilings and at ragged sizes, in triton's interpreter.

Run by test_lowering_properties in a process of its own with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.schedule import Schedule
from torch import Tensor

from tests.cases import GROUPED
from tests.language import randn, signature_of

toolchain.repair_interpreter()
TILINGS = {
    "one group a tile": Schedule(block_m=16, block_n=128, block_k=16, stages=1, warps=1),
    "two, in slices": Schedule(block_m=32, block_n=256, block_k=32, stages=1, warps=1, slice_n=64),
    "a slice as wide as the tile": Schedule(block_m=16, block_n=256, block_k=16, stages=1, warps=1, slice_n=256),
    "a product in pieces": Schedule(block_m=16, block_n=128, block_k=16, stages=1, warps=1, split_k=2),
}


def inputs_of(text: str, sizes: dict[str, int]) -> dict[str, Tensor | float]:
    found: dict[str, Tensor | float] = {}
    for number, param in enumerate(read(text).params):
        shape = [d.size(sizes) for d in param.type.dims]
        found[param.name] = randn(*shape, seed=number).float()
        if param.type.kind.value == "Index":  # within the columns, and out of range at both ends
            found[param.name] = torch.arange(shape[0]) * 37 - 3
    return found


WIDTHS = (96, 48, 80, 112)
EVERY = list(itertools.product(enumerate(GROUPED), enumerate(WIDTHS), enumerate(TILINGS)))
# One of each program and tiling, in three widths; the others are for the slow run.
CASES = [
    pytest.param(name, width, tiling, marks=[] if i == j == k else [pytest.mark.slow])
    for (i, name), (j, width), (k, tiling) in EVERY
]


@pytest.mark.parametrize(("name", "group", "tiling"), CASES)
def test_padded_groups(name: str, group: int, tiling: str) -> None:
    """Five groups: where a tile holds two, or four, the last one holds fewer."""
    text, schedule = GROUPED[name], TILINGS[tiling]
    sizes = {"T": 21, "D": 20 if group == 96 else 19, "F": 5 * group, "H": group}
    program, inputs = read(text), inputs_of(text, sizes)
    chosen = {c.name: schedule for c in program.live_calls() if isinstance(c.unit, Kernel)}
    exact = evaluate(program, signature_of(program), inputs, block=(16, group))
    form = "descriptor" if group == 96 else "pointer"  # of the left operand: nothing else lies as a box does
    made = lower(program, signature_of(program), sizes, form=form, schedules=chosen, processors=3)
    assert ("x.load(" in made.source) == (form == "descriptor")
    padded = schedule.split_k == 1  # pieces are computed column by column; only where they are summed, groups matter
    assert [note.rule for note in made.notes] == ["PaddedGroups"] * padded
    module = toolchain.load(made.source)
    buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
    module.launch(**{name: (inputs | buffers)[name] for name in made.arguments})
    for b in made.buffers:
        for output in b.outputs:
            torch.testing.assert_close(buffers[b.name].double(), exact[output], rtol=2e-4, atol=2e-4)

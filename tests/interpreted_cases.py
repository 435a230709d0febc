"""Programs that once computed something else than they mean, or did not lower, in triton's interpreter.

Run by test_lowering_properties in a process of its own with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import pytest
import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.schedule import Schedule
from torch import Tensor

from tests.cases import EPILOGUES, FOLDS, PROGRAMS, epilogue_program
from tests.language import randn, signature_of

toolchain.repair_interpreter()
SIZES = {"T": 20, "D": 24, "F": 32, "H": 8, "J": 16}
# One turn, and more than a step takes; fewer places than a program has, and no whole blocks; more tiles than one step.
TURNS = (
    pytest.param({"T": 1040, "F": 20, "H": 20, "J": 13}, marks=pytest.mark.slow),
    {"T": 20, "F": 175, "H": 5, "J": 20},
    {"T": 96, "F": 264, "H": 8, "J": 48},
)


def inputs_of(text: str, sizes: dict[str, int]) -> dict[str, Tensor | float]:
    found: dict[str, Tensor | float] = {}
    for number, param in enumerate(read(text).params):
        shape = [d.size(sizes) for d in param.type.dims]
        if param.type.kind.value == "Index":
            found[param.name] = torch.arange(shape[0]) * 3 - 2
        else:
            found[param.name] = randn(*shape, seed=number).float() if shape else 0.75
    return found


def check(text: str, sizes: dict[str, int] = SIZES, forms: tuple[str | None, ...] = ("pointer", None)) -> None:
    program, inputs = read(text), inputs_of(text, sizes)
    small = Schedule(block_m=16, block_n=64, block_k=16, stages=1, warps=1, group_m=2)
    chosen = {c.name: small for c in program.live_calls() if isinstance(c.unit, Kernel)}
    exact = evaluate(program, signature_of(program), inputs, block=(16, 64))
    close = 1e-2 if "cast(" in text else 2e-4  # the exact meaning does not round at a cast
    for form in forms:
        made = lower(program, signature_of(program), sizes, form=form, schedules=chosen, processors=3)
        module = toolchain.load(made.source)
        buffers = {b.name: torch.full(b.shape, float("nan"), dtype=getattr(torch, b.dtype)) for b in made.buffers}
        pool = {**inputs, **module.prepare(**{n: inputs[n] for n in made.prepare_arguments}), **buffers}
        module.launch(**{name: pool[name] for name in made.arguments})
        for b in made.buffers:
            for output in b.outputs:
                torch.testing.assert_close(
                    buffers[b.name].double(), exact[output], rtol=close, atol=close, equal_nan=True
                )


@pytest.mark.parametrize("expression", EPILOGUES)
def test_epilogue(expression: str) -> None:
    check(epilogue_program(expression))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("sizes", TURNS)
def test_folds(sizes: dict[str, int]) -> None:
    check(FOLDS, sizes, ("pointer",))

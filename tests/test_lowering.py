"""Generated text: golden files for the worked candidates, shared functions, dead outputs, errors that say what fits.

`UPDATE_GOLDEN=1 pytest tests/test_lowering.py` refreshes the files.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.coda_api import emit_epilogue, emit_finisher, emit_slice, expressions
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.spelling import CALLS, INFIX
from coda_synth.coda_api.words import Place, words_in
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from tests.language import signature_of

GOLDEN = Path(__file__).parent / "golden"


def lowered(name: str, form: str, sizes: Mapping[str, int] = {}, **more: object) -> Generated:
    """At the headline shape, with `sizes` in the place of its own."""
    spec = task(name)
    sig = signature(spec)
    shape = {**next(iter(spec.time_shapes.values())), **sizes}
    return lower(read(worked_candidate(name), sig), sig, shape, form=form, **more)  # type: ignore[arg-type]


def check_golden(text: str, name: str) -> None:
    file = GOLDEN / f"{name}.py"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"the generated text of {name} changed; UPDATE_GOLDEN=1 refreshes the golden files"


@pytest.mark.parametrize("form", ["descriptor", "pointer", "hopper"])
@pytest.mark.parametrize("name", task_names())
def test_golden_text(name: str, form: str) -> None:
    text = lowered(name, form).source
    ast.parse(text)
    check_golden(text, f"{name}.{form}")


def test_golden_text_of_groups_that_are_no_power_of_two() -> None:
    check_golden(lowered("qknorm_rope", "descriptor", {"H": 96}).source, "qknorm_rope.heads_of_96")


@pytest.mark.parametrize("name", task_names())
def test_text_stands_alone(name: str) -> None:
    text = lowered(name, "pointer").source
    imported = {
        alias.name.split(".")[0] if isinstance(node, ast.Import) else (node.module or "").split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= {"copy", "functools", "inspect", "torch", "triton"}


def test_calls_that_need_the_same_text_share_a_function() -> None:
    made = lowered("linear_rope", "descriptor")
    assert [launch.kernel for launch in made.launches] == ["rotary", "rotary", "linear"]


def test_an_output_that_nobody_reads_is_not_stored() -> None:
    made = lowered("lm_head_cross_entropy", "descriptor")
    assert not any(len(b.shape) == 2 and 128256 in b.shape for b in made.buffers)


def test_groups_that_no_tile_holds_are_refused_with_the_reason() -> None:
    with pytest.raises(LoweringError, match="group of 128 columns of the product must fit the tile .block_n = 64."):
        lowered("linear_rope", "descriptor", schedules={"q": Schedule(block_n=64)})


def test_every_word_of_a_kernel_or_finisher_has_a_spelling() -> None:
    emitted = Path(emit_slice.__file__).read_text() + Path(emit_epilogue.__file__).read_text()
    emitted += Path(emit_finisher.__file__).read_text() + Path(expressions.__file__).read_text()
    for word in (*words_in(Place.KERNEL), *words_in(Place.FINISHER)):
        spelled = word.name in CALLS or word.name in INFIX or word.name == "accumulate"  # not lowered yet
        assert spelled or f'"{word.name}"' in emitted or f"_word_{word.name}" in emitted, word.name


def test_what_is_accumulated_is_read_and_written_where_it_lies() -> None:
    made = lowered("linear_backward", "descriptor")
    assert made.in_place == {"dw": ("dw",)}
    assert [b.outputs for b in made.buffers if b.outputs] == [("dx",), ("db",)]
    weights = next(launch for launch in made.launches if launch.kernel == "weights")
    assert [a.type for a in weights.args if a.name.startswith("dw")] == ["tensordesc<fp32[128, 64]>"]
    assert "dw_tile = dw.load(" in made.source and "dw.store(" in made.source


def test_a_hopper_kernel_leaves_the_adding_to_the_copy_engine() -> None:
    """No tile of what it adds to is loaded."""
    made = lowered("linear_backward", "hopper")
    assert made.in_place == {"dw": ("dw",)} and "tma_add(dw, " in made.source
    assert "tma_load(dw" not in made.source and "tma_add" not in lowered("linear_rope", "hopper").source


@pytest.mark.parametrize("form", ["pointer", "descriptor", "hopper"])
def test_a_kernel_called_like_the_adding_copy_brings_no_copy(form: str) -> None:
    text = re.sub(r"\bproject\(", "my_tma_add(", worked_candidate("linear_residual"))
    spec, sig = task("linear_residual"), signature(task("linear_residual"))
    made = lower(read(text, sig), sig, next(iter(spec.time_shapes.values())), form=form)
    assert "def my_tma_add(" in made.source and "_tma_add()" not in made.source


@pytest.mark.parametrize(("added", "dtype"), [("z", "bfloat16"), ("b", "float32")])
def test_what_the_copy_engine_cannot_add_a_portable_kernel_adds(added: str, dtype: str) -> None:
    """It would round a product before it adds it, and has no tile of what is the same for all rows."""
    text = f"""
@kernel
def f(dy: Tensor["K", "M"], x: Tensor["K", "N"], b: Tensor["N"], dw: Tensor["M", "N"]):
    z = gemm(dy, x)
    return {{"z": z + b, "dw": accumulate(dw, {added})}}
@program
def p(dy: Tensor["T", "F"], x: Tensor["T", "D"], b: Tensor["D"], dw: Tensor["F", "D"]):
    a = f(dy, x, b, dw)
    return {{"z": a.z, "dw": a.dw}}
"""
    program = read(text)
    sig = signature_of(program, dtype="bfloat16")
    inputs = tuple(replace(i, dtype=dtype) if i.name == "dw" else i for i in sig.inputs)
    made = lower(program, replace(sig, inputs=inputs), dict.fromkeys("TDF", 1024), form="hopper")
    assert [launch.gluon for launch in made.launches] == [False] and "dw.store(" in made.source


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ("warps=8", ("pingpong", 128, 128, 5)),
        ("slice_n=32, group_m=4", ("pingpong", 128, 128, 5)),
        ("block_n=64", ("pingpong", 128, 64, 5)),
        ("block_n=256", ("auto", 128, 256, 3)),
        ('mainloop="hopper"', ("hopper", 128, 256, 3)),
        ("stages=4, mainloop='pingpong'", ("pingpong", 128, 128, 4)),
        ('block_m=64, block_n=256, mainloop="pingpong"', ("pingpong", 64, 256, 5)),
    ],
)
def test_a_hint_changes_nothing_but_what_it_says(hints: str, expected: tuple[str, int, int, int]) -> None:
    """Unless it asks for a larger tile than the default's, or for another mainloop."""
    spec = task("linear_bias_gelu")
    text = worked_candidate("linear_bias_gelu").replace("@kernel\n", f"@kernel({hints})\n")
    sizes = next(iter(spec.time_shapes.values()))
    (found,) = lower(read(text, signature(spec)), signature(spec), sizes, form="hopper").schedules.values()
    assert (found.mainloop, found.block_m, found.block_n, found.stages) == expected


@pytest.mark.parametrize("hint", ['mainloop="pingpong"', 'mainloop="hopper"', 'mainloop="auto"', "stages=2"])
@pytest.mark.parametrize("form", ["pointer", "descriptor", "hopper"])
def test_a_mainloop_that_a_form_has_not_gives_way_to_the_portable_one(form: str, hint: str) -> None:
    text = worked_candidate("linear_bias_gelu").replace("@kernel\n", f"@kernel({hint})\n")
    spec = task("linear_bias_gelu")
    made = lower(read(text, signature(spec)), signature(spec), next(iter(spec.time_shapes.values())), form=form)
    assert [launch.gluon for launch in made.launches] == [form == "hopper"]

"""From what went wrong back to the line of the candidate that it is of."""

from __future__ import annotations

import pytest
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Program
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.places import call_of, call_places, output_places, raised_in
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

NAME = "residual_rmsnorm_swiglu"
LINES = worked_candidate(NAME).splitlines()


@pytest.fixture(scope="module")
def program() -> Program:
    return read(worked_candidate(NAME), signature(task(NAME)))


@pytest.fixture(scope="module")
def generated(program: Program) -> Generated:
    return lower(program, signature(task(NAME)), task(NAME).check_shapes[0], form="pointer")


def test_an_output_is_of_a_call_a_unit_and_an_expression(program: Program) -> None:
    place = output_places(program)["act"]
    assert LINES[place.call_line - 1].strip().startswith(f"{place.call} = gate_up(")
    assert LINES[place.def_line - 1].startswith("def gate_up(") and place.unit == "gate_up"
    assert LINES[place.line - 1][place.column - 1 :].startswith("silu(even(z)) * odd(z)")
    assert f"line {place.line}, column {place.column}" in str(place)


def test_every_live_call_has_a_place(program: Program) -> None:
    places = call_places(program)
    assert [name for name in places if "." not in name] == [call.name for call in program.live_calls()]
    assert LINES[places["a.hg"].line - 1][places["a.hg"].column - 1 :].startswith("h * gamma")
    assert all(LINES[place.def_line - 1].startswith(f"def {place.unit}(") for place in places.values())


def test_functions_of_the_module_are_of_calls(generated: Generated) -> None:
    kernels = {launch.call: launch.kernel for launch in generated.launches}
    assert all(call_of(generated, kernel) == call for call, kernel in kernels.items())
    assert call_of(generated, f"{kernels['b']}_epilogue") == "b"
    assert call_of(generated, "tile_order") is None and call_of(generated, "launch") is None


def test_an_exception_is_of_the_innermost_kernel(generated: Generated) -> None:
    kernel = generated.launches[-1].kernel
    text = f"""def {kernel}_epilogue():
    1 / 0

def {kernel}():
    try:
        {kernel}_epilogue()
    except ZeroDivisionError as error:
        raise ValueError("wrapped") from error

def launch():
    {kernel}()
"""
    module: dict = {}
    exec(compile(text, "<candidate>", "exec"), module)
    with pytest.raises(ValueError) as caught:
        module["launch"]()
    assert raised_in(generated, "<candidate>", caught.value) == generated.launches[-1].call
    assert raised_in(generated, "<another>", caught.value) is None

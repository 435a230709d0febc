"""Whatever an author calls things, the generated module's own names mean what they should."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from dataclasses import replace

import pytest
import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.module_text import MODULE_NAMES
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.words import CONSTANTS, DECORATORS, NAMES, TYPES
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.language import randn, signature_of

# The places of an author's names: units, calls, outputs, parameters of the program, symbols.
PROGRAM = """
@kernel
def {unit}(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], s: Scalar):
    z = gemm(x, w)
    return {{"{output}": z * s + t, "{part}": tile_sum(z, "N")}}

@finisher
def {finisher}({part}: Partial["M", "N"]):
    return {{"{total}": total_sum({part})}}

@program
def p({a}: Tensor["{rows}", "{inner}"], {b}: Tensor["{cols}", "{inner}"], {c}: Tensor["{rows}", "{cols}"], {s}: Scalar):
    {call} = {unit}({a}, {b}, {c}, {s})
    {last} = {finisher}({call}.{part})
    return {{"{output}": {call}.{output}, "{total}": {last}.{total}}}
"""
PLAIN = {
    "unit": "f", "output": "y", "part": "q", "finisher": "g", "total": "v", "a": "x", "b": "w", "c": "t", "s": "s",
    "rows": "T", "cols": "F", "inner": "D", "call": "r", "last": "u",
}  # fmt: skip
WAYS = {
    "pointer": ("pointer", Schedule(block_m=64, block_n=64, warps=4)),
    "pieces": ("descriptor", Schedule(block_m=64, block_n=64, warps=4, split_k=2)),
    "hopper": ("hopper", Schedule(block_m=64, block_n=64, block_k=64, warps=8, stages=3, mainloop="pingpong")),
}
MADE_UP = ("key", "again", "repeat", "T_size", "f_2", "f_pieces", "r_pieces", "pieces", "g", "str", "t", "dict", "size")
SPOKEN = {*NAMES, *CONSTANTS, *DECORATORS, *TYPES}
POOL = sorted(({name.lstrip("_") for name in MODULE_NAMES} | set(MADE_UP)) - SPOKEN)
OF_TENSORS = {"shape", "device", "data_ptr"}  # what `launch` asks its arguments
OF_HELPERS = {"kernel", "run", "native", "again"}  # what the module's own helpers call by a name of theirs


def lowered(names: dict[str, str], way: str) -> Generated:
    form, schedule = WAYS[way]
    program = read(PROGRAM.format(**names))
    sizes = {names["rows"]: 128, names["cols"]: 256, names["inner"]: 512}
    call = next(c.name for c in program.calls if isinstance(c.unit, Kernel))
    return lower(program, signature_of(program, dtype="bfloat16"), sizes, form=form, schedules={call: schedule})


def check_scopes(made: Generated) -> None:
    """A name at the top is defined once, none that is called is hidden by a local name, and all that are read exist."""
    tree = ast.parse(made.source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    top = Counter(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            top.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign):
            top.update(name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
    assert not [name for name, count in top.items() if count > 1]
    for function in functions:
        check_function(function, set(top), {launch.kernel for launch in made.launches})


def check_function(function: ast.FunctionDef, top: set[str], kernels: set[str]) -> None:
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    params = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    local = params | {node.id for node in names if isinstance(node.ctx, ast.Store)}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    called = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    imports = [node for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    if function.name == "launch":
        assert not local & kernels, local & kernels
        asked = [n for n in ast.walk(function) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        assert {n.attr for n in asked if n.value.id in local} <= OF_TENSORS  # type: ignore[attr-defined]
    assert not called & (local - OF_HELPERS), (function.name, called & local)
    read_here = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assert read_here <= local | imported | top | set(dir(builtins)), function.name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "names",
    [
        {"unit": "programs_for_pieces"},
        {"call": "described", "output": "g"},
        {"call": "programs_for", "output": "pieces"},
        {"a": "keep", "b": "launched", "c": "REPEATS", "s": "str"},
        {"a": "described", "b": "programs", "c": "programs_for_pieces", "s": "triton"},
        {"a": "torch", "b": "functools", "s": "processors"},
        {"rows": "keep", "cols": "triton", "inner": "f"},
        {"rows": "_keep", "cols": "_launched", "inner": "_described"},
        {"rows": "T", "a": "T", "b": "T_size", "unit": "T_size_2"},
        {"unit": "len", "finisher": "hasattr"},
        {"call": "tma", "output": "load"},
        {"unit": "r_2", "call": "r", "last": "r_2_u"},
    ],
    ids=lambda names: "-".join(names.values()),
)
def test_names_of_the_module(names: dict[str, str], way: str) -> None:
    check_scopes(lowered(PLAIN | names, way))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(POOL), min_size=len(PLAIN), max_size=len(PLAIN), unique=True), st.sampled_from([*WAYS]))
def test_any_names_of_the_module_anywhere(drawn: list[str], way: str) -> None:
    check_scopes(lowered(dict(zip(PLAIN, drawn, strict=True)), way))


def test_a_weight_called_torch_is_prepared() -> None:
    text = """
@prepare
def pack(w: Tensor["N", "K"], s: Tensor["K"]):
    return {"w": w * s}

@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    return {"y": gemm(x, w)}

@program
def p(x: Tensor["T", "D"], torch: Tensor["F", "D"], w_s: Tensor["D"]):
    a = pack(torch, w_s)
    b = f(x, a.w)
    return {"y": b.y}
"""
    needs = signature_of(read(text))
    inputs = tuple(replace(i, role="activation" if i.name == "x" else "weight") for i in needs.inputs)
    needs = replace(needs, inputs=inputs)
    made = lower(read(text), needs, {"T": 16, "D": 16, "F": 16})
    w, s = randn(16, 16).float(), randn(16, seed=1).float()
    prepared = toolchain.load(made.source).prepare(torch=w, w_s=s)
    torch.testing.assert_close(prepared["a_w"], (w.double() * s.double()).float())

"""The planner derives programs by general rules: each is proven at float64 against the reference that it was read from.

UPDATE_GOLDEN=1 rewrites the texts in golden/planner.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coda_synth.agent.planner_emit import emit
from coda_synth.agent.planner_rules import derive
from coda_synth.agent.planner_stuck import Stuck
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel, Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.trace import TraceError, distinct_sizes, trace_task
from coda_synth.tasks.catalog import task, task_names
from coda_synth.tasks.spec import TaskInput, TaskOutput, TaskSpec

from benchmarks import numerics
from tests.representative import REPRESENTATIVE

GOLDEN = Path(__file__).parent / "golden" / "planner"
PLANNER = Path(__file__).parents[1] / "agent"
WIDE = {"T": 64, "D": 64, "F": 96, "K": 32, "HQ": 3, "HK": 2, "H": 64, "V": 80}
SHAPES = (
    {"T": 7, "D": 10, "F": 6, "K": 9, "HQ": 3, "H": 4, "V": 11},
    {"T": 8, "D": 8, "F": 8, "K": 8, "HQ": 2, "H": 8, "V": 8},
    {"T": 1, "D": 3, "F": 5, "K": 2, "HQ": 1, "H": 2, "V": 2},
)


# -- proof


def proven(spec: TaskSpec) -> tuple[str, Program]:
    """The derived text and program; asserts that it means what the reference computes, at every check shape."""
    text = emit(derive(trace_task(spec)))
    sig = signature(spec)
    program = read(text, sig)
    lower(program, sig, WIDE | {s: n for s, n in spec.check_shapes[0].items() if s not in WIDE}, form="pointer")
    for seed, sizes in enumerate(spec.check_shapes):
        made = spec.make_inputs(sizes, torch.Generator().manual_seed(seed), "normal")
        inputs = {
            k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in made.items()
        }
        want = spec.reference(**inputs)
        got = evaluate(program, sig, inputs)
        for name, value in want.items():
            torch.testing.assert_close(
                got[name], value.to(got[name].dtype), rtol=1e-8, atol=1e-9, msg=f"{name}\n{text}"
            )
    return text, program


def kernels(program: Program) -> list[Kernel]:
    return [call.unit for call in program.live_calls() if isinstance(call.unit, Kernel)]


def spec(name: str, reference: Callable[..., Any], inputs: str, outputs: str, scalars: str = "") -> TaskSpec:
    """A task from short notes: "x:T,D w!:F,D pos#:T" (! a weight, # an index), outputs likewise (" 32" for float32)."""
    ports = [_port(note) for note in inputs.split()] + [TaskInput(s, role="scalar") for s in scalars.split()]
    results = tuple(
        TaskOutput(n, tuple(filter(None, d.split(",")))) for n, d in (o.split(":") for o in outputs.split())
    )

    def make_inputs(sizes: Any, generator: torch.Generator, style: str) -> dict[str, Any]:
        from coda_synth.coda_api.dims import Dim

        def make(port: TaskInput) -> Any:
            if port.role == "scalar":
                return 1.375
            shape = [Dim.parse(d).size(sizes) for d in port.dims]
            if port.dtype == "int64":
                return torch.randint(0, sizes["V"], shape, generator=generator)
            return torch.randn(shape, generator=generator)

        return {port.name: make(port) for port in ports}

    return TaskSpec(name, name, reference, tuple(ports), results, make_inputs, SHAPES, {"only": SHAPES[0]}, ())


def _port(note: str) -> TaskInput:
    name, dims = note.split(":")
    role = "weight" if name.endswith("!") else "activation"
    dtype = "int64" if name.endswith("#") else "activation"
    return TaskInput(name.rstrip("!#"), tuple(dims.split(",")), dtype, role)


# -- references that no task of this project has


def swap_halves(x: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat((-two, one), -1)


def interleaved_rotary(x: torch.Tensor, w: torch.Tensor, pos: torch.Tensor, freq: torch.Tensor) -> Any:
    z = F.linear(x, w).view(x.shape[0], -1, 2 * freq.shape[0])
    angle = (pos[:, None].to(freq.dtype) * freq)[:, None]
    a, b = z[..., 0::2], z[..., 1::2]
    turned = torch.stack((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
    return {"y": turned.flatten(-2).reshape(x.shape[0], -1)}


def scaled_rotary(x: torch.Tensor, w: torch.Tensor, pos: torch.Tensor, freq: torch.Tensor) -> Any:
    heads = (x @ w.t()).view(1, x.shape[0], -1, 2 * freq.shape[0]).transpose(1, 2)
    angle = torch.cat([torch.outer(pos.to(freq.dtype), freq / 8)] * 2, -1)
    turned = heads * angle.cos() * 0.5 + swap_halves(heads) * angle.sin() * 0.5
    return {"y": turned.transpose(1, 2).reshape(x.shape[0], -1)}


def in_place(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    z = F.linear(x, w)
    z += b
    return {"y": z.relu_().mul_(2)}


def norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def two_norms(y: Any, w: Any, x: Any, gain: Any, w1: Any, w2: Any, eps: float) -> Any:
    h = x + y @ w.t()
    n = norm(h, eps) * gain
    return {"h": h, "p": n @ w1.t(), "q": F.gelu(n @ w2.t())}


XW, XWB = "x:T,D w!:F,D", "x:T,D w!:F,D b!:F"
ROTARY = "x:T,D w!:HQ*H,D pos#:T freq!:H/2"
REFERENCES = [
    spec("bias_relu2", lambda x, w, b: {"y": F.relu(F.linear(x, w, b)) ** 2}, XWB, "y:T,F"),
    spec("geglu", lambda x, u, v: {"y": F.gelu(x @ u.t()) * (x @ v.t())}, "x:T,D u!:F,D v!:F,D", "y:T,F"),
    spec(
        "geglu_tanh_bias",
        lambda x, u, v, b, c: {"y": F.gelu(F.linear(x, u, b), approximate="tanh") * F.linear(x, v, c)},
        "x:T,D u!:F,D v!:F,D b!:F c!:F",
        "y:T,F",
    ),
    spec(
        "gated_residual",
        lambda x, w, b, v, r: {"y": r + torch.sigmoid(F.linear(x, w, b)) * v},
        f"{XWB} v:T,F r:T,F",
        "y:T,F",
    ),
    spec("softcap", lambda x, w, cap: {"y": cap * torch.tanh((x @ w.t()) / cap)}, XW, "y:T,F", "cap"),
    spec(
        "layer_scale",
        lambda y, w, b, g, x: {"out": x + g * F.linear(y, w, b)},
        "y:T,K w!:D,K b!:D g!:D x:T,D",
        "out:T,D",
    ),
    spec("two_outputs", lambda x, w, v: {"a": F.silu(x @ w.t()), "b": x @ v.t()}, "x:T,D w!:F,D v!:K,D", "a:T,F b:T,K"),
    spec("nn_swiglu", lambda x, w1, w2: {"y": F.silu(x @ w1) * (x @ w2)}, "x:T,D w1!:D,F w2!:D,F", "y:T,F"),
    spec("gated_by_tile", lambda x, w1, v: {"y": F.silu(x @ w1.T) * v}, "x:T,D w1!:F,D v:T,F", "y:T,F"),
    spec("in_place", in_place, XWB, "y:T,F"),
    spec("soft_plus", lambda x, w: {"y": F.softplus(F.linear(x, w)).clamp(0.1, 2)}, XW, "y:T,F"),
    spec("contracted", lambda x, w: {"y": torch.einsum("td,fd->tf", x, w) - 1}, XW, "y:T,F"),
    spec("square", lambda x, w: {"y": x + x @ w.t()}, "x:T,D w!:D,D", "y:T,D"),
    spec("transposed_product", lambda x, w: {"y": (w @ x.t()).t().abs()}, XW, "y:T,F"),
    spec("hardswish", lambda x, w: {"y": F.hardswish(F.linear(x, w))}, XW, "y:T,F"),
    spec("interleaved_rotary", interleaved_rotary, ROTARY, "y:T,HQ*H"),
    spec("scaled_rotary", scaled_rotary, ROTARY, "y:T,HQ*H"),
    spec(
        "per_head",
        lambda x, w, g, s: {"y": ((x @ w.t()).unflatten(1, (-1, g.shape[0])) * g * s[:, None]).flatten(1)},
        "x:T,D w!:HQ*H,D g!:H s!:HQ",
        "y:T,HQ*H",
    ),
    spec(
        "mlp",
        lambda x, a, b, c, d: {"y": x + F.linear(F.gelu(F.linear(x, a, b)), c, d)},
        "x:T,D a!:F,D b!:F c!:D,F d!:D",
        "y:T,D",
    ),
    spec("two_operands", lambda x, u, y, v: {"z": x @ u.t() + y @ v.t()}, "x:T,D u!:F,D y:T,K v!:F,K", "z:T,F"),
    spec(
        "three_products",
        lambda x, u, v, w: {"z": (x @ u.t()) * (x @ v.t()) + x @ w.t()},
        "x:T,D u!:F,D v!:F,D w!:F,D",
        "z:T,F",
    ),
    spec(
        "product_and_gate",
        lambda x, u, v: {"y": F.silu(x @ u.t()) * (x @ v.t()), "up": x @ v.t()},
        "x:T,D u!:F,D v!:F,D",
        "y:T,F up:T,F",
    ),
    spec("norm_in", lambda x, w, eps: {"y": norm(x, eps) @ w.t()}, XW, "y:T,F", "eps"),
    spec("norm_in_gain", lambda x, g, w, eps: {"y": (norm(x, eps) * g) @ w.t()}, "x:T,D g!:D w!:F,D", "y:T,F", "eps"),
    spec("norm_out", lambda x, w, eps: {"y": norm(x @ w.t(), eps)}, XW, "y:T,F", "eps"),
    spec("two_norms", two_norms, "y:T,K w!:D,K x:T,D gain!:D w1!:F,D w2!:V,D", "h:T,D p:T,F q:T,V", "eps"),
    spec(
        "layer_norm",
        lambda x, g, b, w: {"y": F.layer_norm(x, x.shape[-1:], g, b) @ w.t()},
        "x:T,D g!:D b!:D w!:F,D",
        "y:T,F",
    ),
    spec("probabilities", lambda x, w: {"p": torch.softmax(x @ w.t(), -1)}, XW, "p:T,F"),
    spec("loss", lambda x, w, t: {"l": F.cross_entropy(x @ w.t(), t)}, "x:T,D w!:V,D t#:T", "l:"),
    spec("amax", lambda x, w: {"m": (x @ w.t()).abs().amax(-1)}, XW, "m:T"),
]


@pytest.mark.parametrize("made", REFERENCES, ids=lambda s: s.name)
def test_invented_references_are_derived(made: TaskSpec) -> None:
    proven(made)


@pytest.mark.parametrize("name", [*REPRESENTATIVE, "rmsnorm_qkv_rope"])
def test_tasks_are_derived_as_the_golden_text(name: str) -> None:
    text, _ = proven(task(name))
    path = GOLDEN / f"{name}.coda"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 accepts the new text"


def by_name(name: str) -> TaskSpec:
    return next(s for s in REFERENCES if s.name == name)


def test_two_weights_of_one_operand_become_one_gemm() -> None:
    text, program = proven(by_name("geglu"))
    assert len(kernels(program)) == 1
    assert 'interleave(u, v, "F")' in text and "gelu(even(z)) * odd(z)" in text


def test_weights_in_either_layout_are_interleaved_where_their_columns_lie() -> None:
    text, _ = proven(by_name("nn_swiglu"))
    assert 'w: Tensor["K", "2*N"]' in text


def test_launches_of_equal_text_share_one_kernel() -> None:
    text, program = proven(task("linear_rope"))
    assert len(kernels(program)) == 3 and text.count("@kernel") == 2


def test_a_product_that_is_an_output_and_a_factor_is_made_once() -> None:
    _, program = proven(by_name("product_and_gate"))
    assert len(kernels(program)) == 1


def test_a_row_scale_commutes_past_the_gemm() -> None:
    text, program = proven(by_name("norm_in"))
    assert "rstd" in text and sum(k.gemm is not None for k in kernels(program)) == 1


def test_an_operand_that_takes_a_pass_is_rounded_with_its_row_scale() -> None:
    """Where no GEMM makes it; the gain stays out of the weight too, and an input without a gain needs no pass."""
    text, _ = proven(by_name("norm_in_gain"))
    assert '{"h": x * rstd * g}' in text and "@prepare" not in text
    text, program = proven(by_name("norm_in"))
    assert len(kernels(program)) == 2 and "gemm(x, w) * rstd" in text


@pytest.mark.parametrize("name", ["residual_rmsnorm_swiglu", "rmsnorm_linear", "rmsnorm_qkv_rope"])
def test_derived_programs_keep_the_rule_of_roundings(name: str) -> None:
    text, _ = proven(task(name))
    found = numerics.errors(task(name), "one spike, D = 256", 0, text)
    assert all(numerics.excess(one) < numerics.FACTOR for one in found.values())


def test_one_statistic_serves_every_consumer() -> None:
    text, program = proven(by_name("two_norms"))
    assert text.count("tile_sum") == 1 and len(kernels(program)) == 3


# -- where the rules end

STUCK = [
    (
        spec(
            "halves_of_one_weight",
            lambda x, w: {"y": (z := x @ w.t()).chunk(2, -1)[0] * z.chunk(2, -1)[1]},
            "x:T,D w!:2*F,D",
            "y:T,F",
        ),
        "cuts all 2.F columns in two.*takes a part of a weight",
    ),
    (
        spec("running", lambda x, w: {"y": torch.cumsum(x @ w.t(), -1)}, XW, "y:T,F"),
        "the planner has no rule for aten.cumsum",
    ),
    (spec("columns", lambda x, w: {"y": torch.softmax(x @ w.t(), 0)}, XW, "y:T,F"), "another dim than the last"),
    (
        spec(
            "heads",
            lambda x, w: {"y": norm((x @ w.t()).view(len(x), -1, 16), 0.1).flatten(1)},
            "x:T,D w!:16*F,D",
            "y:T,16*F",
        ),
        "groups of columns",
    ),
    (
        spec("centred", lambda x, w: {"y": (z := x @ w.t()) - z.mean(-1, keepdim=True)}, XW, "y:T,F"),
        "rounded before that mean is known.*times the mean row of its weight",
    ),
    (spec("three_dims", lambda x, w: {"y": (x @ w.t())[:, None]}, XW, "y:T,1,F"), "has 3 dims"),
]


@pytest.mark.parametrize(("made", "said"), STUCK, ids=lambda s: getattr(s, "name", ""))
def test_it_says_which_node_stopped_it(made: TaskSpec, said: str) -> None:
    with pytest.raises(Stuck, match=said) as stuck:
        derive(trace_task(made))
    assert re.search(r"stopped at aten\.\S+ \(node \w+, test_planner\.py:\d+: .*\): .* Needed: ", str(stuck.value))


def test_no_task_is_known_to_the_planner() -> None:
    words = "|".join([*task_names(), "swiglu", "rmsnorm", "rope", "lm_head", "cross_entropy", "residual"])
    for path in PLANNER.glob("planner*.py"):
        assert not re.search(rf"\b({words})\b", path.read_text()), path.name


# -- the trace


def test_every_product_of_symbols_has_a_length_of_its_own() -> None:
    sizes = distinct_sizes(task("linear_rope"))
    lengths = [a * b for a, b in itertools.combinations(sizes.values(), 2)] + list(sizes.values())
    assert len(set(lengths)) == len(lengths)


def test_a_trace_is_the_same_every_time_and_names_lines() -> None:
    graph = trace_task(task("linear_swiglu"))
    assert graph == trace_task(task("linear_swiglu"))
    assert any("F.silu(gate) * up" in node.place for node in graph.nodes)


def test_a_scalar_is_a_node_and_must_enter_as_it_is() -> None:
    assert any(node.name == "cap" and node.op == "input" for node in trace_task(by_name("softcap")).nodes)
    with pytest.raises(TraceError, match="does not enter as it is"):
        trace_task(spec("computed", lambda x, w, cap: {"y": (x @ w.t()) * (2 * cap)}, XW, "y:T,F", "cap"))


def test_a_reference_that_looks_at_its_data_is_refused() -> None:
    with pytest.raises(TraceError, match="cannot be traced"):
        trace_task(spec("looks", lambda x, w: {"y": x @ w.t() if x.sum() > 0 else x @ w.t() + 1}, XW, "y:T,F"))

"""Ahead-of-time builds of the worked candidates, without a device and without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.toolchain import BuildError, build, compile_launch, load, target_of
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from tests.cases import EPILOGUES, FOLDS, PROGRAMS, epilogue_program
from tests.language import signature_of
from tests.representative import REPRESENTATIVE

# Bytes of stack a thread of the few kernels that do not fit the registers: on 3.6.0, and on 3.9.0.
SPILLS = {
    ("lm_head_cross_entropy_logits", "hopper"): (0, 40),
    ("lm_head_cross_entropy_backward", "hopper"): (0, 80),
    ("lm_head_cross_entropy_logits", "descriptor"): (8, 48),
    ("lm_head_cross_entropy_backward", "descriptor"): (0, 88),
    ("swiglu_backward", "descriptor"): (32, 80),
    ("llama_unit_backward", "descriptor"): (32, 80),
}


def spills(name: str, form: str) -> int:
    """At most, on the release that is installed."""
    old, new = SPILLS.get((name, form), (0, 0))
    return old if version("triton").startswith("3.6.") else new


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield  # type: ignore[misc]


def lowered(name: str, form: str, **more: int) -> Generated:
    spec, sig = task(name), signature(task(name))
    return lower(read(worked_candidate(name), sig), sig, next(iter(spec.time_shapes.values())), form=form, **more)


@pytest.mark.parametrize("form", ["descriptor", "hopper"])
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_default_schedule_uses_wgmma_and_hardly_ever_spills(name: str, form: str) -> None:
    made = lowered(name, form)
    for launch, resources in zip(made.launches, build(made, "sm_90"), strict=True):
        assert resources.spill_bytes <= spills(name, form), resources
        assert resources.shared_bytes <= 232448
        if launch.call in made.schedules:
            assert resources.tensor_core_instructions > 0, resources


@pytest.mark.slow
@pytest.mark.parametrize("form", ["descriptor", "pointer", "hopper"])
@pytest.mark.parametrize("name", [name for name in task_names() if name not in REPRESENTATIVE])
def test_every_task_builds_everywhere(name: str, form: str) -> None:
    made = lowered(name, form)
    fp8 = "float8e4nv" in made.source  # which triton does not compile for Ampere
    targets = ("sm_90",) if form != "pointer" else ("sm_90", "gfx942") if fp8 else ("sm_90", "sm_80", "gfx942")
    for target in targets:
        for resources in build(made, target):
            assert resources.registers > 0
            # Pointer mainloops, for ragged shapes alone, hold addresses and masks in registers too, and may spill.
            assert form == "pointer" or resources.spill_bytes <= spills(name, form), resources


@pytest.mark.parametrize("name", [*EPILOGUES, *PROGRAMS])
def test_unusual_programs_build_for_hopper(name: str) -> None:
    """Each has a Hopper kernel that compiles, or a portable one in its place."""
    program = read(PROGRAMS.get(name) or epilogue_program(name))
    sizes = {"T": 256, "D": 256, "F": 256, "H": 64, "J": 128}
    assert build(lower(program, signature_of(program, dtype="bfloat16"), sizes, form="hopper"))


@pytest.mark.parametrize("group", [128, 24, 7])
def test_a_fold_reads_runs_of_its_partials_and_hardly_spills(group: int) -> None:
    """Threads beside each other read what lies beside each other, four values at once where groups lie so."""
    program, sizes = read(FOLDS), {"T": 33 * group, "F": 33 * group, "H": group, "J": group}
    made = lower(program, signature_of(program, dtype="bfloat16"), sizes, form="pointer")
    folds = [launch for launch in made.launches if launch.kernel.endswith("_folds")]
    spilled = [r.spill_bytes for r in build(made) if r.kernel.endswith("_folds")]
    assert len(folds) == len(spilled) == 2 and max(spilled) <= 16
    for launch in folds:
        compiled = compile_launch(getattr(load(made.source), launch.kernel), launch, target_of("sm_90"))
        text = compiled.asm["ttgir"]
        read_as = set(re.findall(r"tt\.load .*tensor<\d+x\d+x!tt\.ptr<f32>, (#\w+)>", text))
        orders = dict(re.findall(r"^(#\w+) = #ttg\.blocked<.* order = (\[[^]]*\])", text, re.MULTILINE))
        assert read_as and {orders[name] for name in read_as} == {"[1, 0]"}
        assert ("ld.global.v4" in compiled.asm["ptx"]) == (group % 16 == 0)


def test_the_gains_of_a_norm_of_heads_fold_without_spills() -> None:
    for form in ("descriptor", "hopper"):
        folds = [r for r in build(lowered("qknorm_rope_backward", form), "sm_90") if r.kernel.endswith("_folds")]
        assert [r.spill_bytes for r in folds] == [0, 0], folds


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_pointer_form_builds_for_other_targets(target: str) -> None:
    for resources in build(lowered("residual_rmsnorm_swiglu", "pointer"), target):
        assert resources.registers > 0


@pytest.mark.parametrize(
    "name",
    [n if n in ("linear_rope", "residual_rmsnorm") else pytest.param(n, marks=pytest.mark.slow) for n in task_names()],
)
def test_default_schedules_fit_the_shared_memory_that_lowering_is_told(name: str) -> None:
    """gfx942 has 64 KiB a block."""
    made = lowered(name, "pointer", shared_bytes=65536)
    assert all(resources.shared_bytes <= 65536 for resources in build(made, "gfx942"))


def test_compiler_errors_name_the_kernel() -> None:
    made = lowered("linear_residual", "pointer")
    broken = Generated(
        made.source.replace("tl.dot(left, right, acc)", "tl.dot(left, acc, right)"),
        made.launches, made.buffers, made.prepare_arguments, made.arguments, made.schedules, made.form,
    )  # fmt: skip
    with pytest.raises(BuildError, match="project does not compile"):
        build(broken)


def test_targets() -> None:
    assert target_of("sm_90").arch == 90
    assert target_of("gfx942").warp_size == 64
    with pytest.raises(ValueError, match="not a target"):
        target_of("hopper")


def test_loaded_text_is_a_module() -> None:
    module = load(lowered("linear_swiglu", "pointer").source)
    assert callable(module.launch) and callable(module.prepare)


def test_building_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from coda_synth.coda_api import lowering, reader, toolchain\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "call", "dims"),
    [("layernorm_backward", "p", ("E",)), ("linear_backward", "c", ("F",)), ("rmsnorm_linear", "n", ("D",))],
)
def test_a_pass_reads_whole_runs_of_ragged_rows_and_does_not_spill(name: str, call: str, dims: tuple[str, ...]) -> None:
    """8,008 columns are no multiple of 16, but of eight: the 128 x 128 elements of two matrices that were loaded one by
    one took 4,824 bytes of stack a thread. Of 41 columns no rows have such runs."""
    typed = signature(task(name))
    sizes = {symbol: 4096 for symbol in task(name).time_shapes["llama3-8b"]}
    for length in (8192, 8008, 41):
        made = lower(read(worked_candidate(name), typed), typed, sizes | dict.fromkeys(dims, length), form="pointer")
        (launch,) = (launch for launch in made.launches if launch.call == call)
        compiled = compile_launch(getattr(load(made.source), launch.kernel), launch, target_of("sm_90"))
        (resources,) = build(replace(made, launches=(launch,)), "sm_90")
        assert resources.spill_bytes == 0
        assert (compiled.asm["ptx"].count("ld.global.b16") > 8) == (length == 41)


@pytest.mark.parametrize("expression", ["silu(t) * c", "gelu_tanh(t)", "t * c"])
def test_a_pass_that_stores_a_matrix_and_sums_its_columns_does_not_spill(expression: str) -> None:
    """With four warps for 128 x 128 it took up to 3,808 bytes of stack a thread."""
    text = f"""
@kernel
def f(t: Tensor["M", "N"], c: Tensor["N"]):
    y = {expression}
    return {{"y": y, "down": tile_sum(y, "M")}}

@finisher
def columns(down: Partial["N", "M"]):
    return {{"v": total_sum(down)}}

@program
def p(t: Tensor["T", "F"], c: Tensor["F"]):
    a = f(t, c)
    b = columns(a.down)
    return {{"y": a.y, "v": b.v}}
"""
    program = read(text)
    made = lower(program, signature_of(program, dtype="bfloat16"), {"T": 1024, "F": 2048})
    assert [resources.spill_bytes for resources in build(made, "sm_90")] == [0, 0]

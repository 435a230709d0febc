"""Which schedule a kernel starts from: by how much work its epilogue is, and how long its sum and its product."""

from collections.abc import Mapping

import pytest
from coda_synth.coda_api.arithmetic import instructions
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.passes import walks_backwards
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from tests.language import signature_of


def chosen(name: str, sizes: Mapping[str, int], call: str = "a") -> Schedule:
    typed = signature(task(name))
    return lower(read(worked_candidate(name), typed), typed, sizes, hopper=True).schedules[call]


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("linear_nt", 0.98),
        ("linear_residual", 3.14),
        ("linear_swiglu", 4.35),
        ("residual_rmsnorm", 7.83),
        ("linear_bias_gelu", 12.39),
        ("swiglu_backward", 21.71),
        ("geglu_backward", 30.98),
    ],
)
def test_instructions_are_estimated_to_a_few_of_what_builds_have(name: str, counted: float) -> None:
    """Counted by benchmarks/epilogue.py; docs/hopper.md has them all."""
    typed = signature(task(name))
    program = read(worked_candidate(name), typed)
    call = next(c for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm)
    live = {output: call.unit.outputs[output] for output in program.live_outputs(call)}
    sizes = task(name).time_shapes["llama3-8b"]
    assert isinstance(call.unit, Kernel)
    assert instructions(call.unit, live, lambda dim: call.dim(dim).size(sizes)) == pytest.approx(
        counted, rel=0.2, abs=1
    )


@pytest.mark.parametrize(
    ("name", "sizes", "mainloop"),
    [
        ("linear_nt", {"T": 8192, "F": 4096, "D": 4096}, "hopper"),  # brief, and nothing to hide
        ("linear_nt", {"T": 8192, "F": 28672, "D": 4096}, "pingpong"),
        ("linear_residual", {"T": 8192, "D": 4096, "K": 4096}, "hopper"),
        ("linear_residual", {"T": 16384, "D": 2048, "K": 2048}, "pingpong"),  # the sum is too short to ignore it
        ("linear_residual", {"T": 16384, "D": 4096, "K": 14336}, "hopper"),  # long enough for any epilogue
        ("rmsnorm_backward", {"T": 8192, "D": 4096, "E": 28672}, "hopper"),
        ("residual_rmsnorm", {"T": 16384, "D": 4096, "K": 8192}, "hopper"),
        ("residual_rmsnorm", {"T": 16384, "D": 4096, "K": 8128}, "pingpong"),
        ("residual_rmsnorm", {"T": 8192, "D": 4096, "K": 4096}, "pingpong"),
        ("swiglu_backward", {"T": 16384, "D": 2048, "F": 8192}, "pingpong"),
        ("gelu_bias_backward", {"T": 8192, "D": 4096, "F": 14336}, "pingpong"),  # heavy, in slices of 32
        ("gelu_bias_backward", {"T": 16384, "D": 2048, "F": 8192}, "pingpong"),
        ("geglu_backward", {"T": 8192, "D": 4096, "F": 14336}, "auto"),  # as heavy; slices of 32 have no room
        ("layernorm_backward", {"T": 8192, "D": 4096, "E": 4096}, "auto"),
        ("lm_head_cross_entropy", {"T": 8192, "D": 4096, "V": 128256}, "auto"),  # a chain from column to column
        ("lm_head_cross_entropy_backward", {"T": 8192, "D": 4096, "V": 128256}, "auto"),  # so long that bytes count
        (
            "linear_nt",
            {"T": 3072, "F": 2048, "D": 8192},
            "pingpong",
        ),  # 192 wide tiles are 1.45 waves
    ],
)
def test_light_and_heavy_epilogues_share_a_tile_and_all_others_take_turns(
    name: str, sizes: Mapping[str, int], mainloop: str
) -> None:
    assert chosen(name, sizes).mainloop == mainloop


@pytest.mark.parametrize(
    ("hints", "mainloop"),
    [("", "hopper"), ("stages=5", "pingpong"), ("block_m=64", "pingpong"), ("block_n=128", "pingpong")]
    + [("group_m=4", "hopper"), ('mainloop="auto"', "hopper"), ('mainloop="hopper", block_n=128', "hopper")],
)
def test_turns_take_hints_for_which_the_shared_tile_has_no_room_or_is_too_wide(hints: str, mainloop: str) -> None:
    typed = signature(task("linear_residual"))
    text = worked_candidate("linear_residual").replace("@kernel\n", f"@kernel({hints})\n" if hints else "@kernel\n")
    made = lower(read(text, typed), typed, {"T": 8192, "D": 4096, "K": 14336}, hopper=True)
    assert made.effective["a"].mainloop == mainloop and not made.notes


def test_outputs_for_which_the_shared_tile_has_no_room_take_turns() -> None:
    """Two that are twice as wide, of fp32."""
    program = read(
        """
@kernel
def k(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], q: Tensor["M", "2*N"]):
    z = gemm(x, w)
    return {"a": cast(interleave(z, t) + q, "float32"), "b": cast(interleave(t, z) * q, "float32")}


@program
def wide(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F"], q: Tensor["T", "2*F"]):
    c = k(x, w, t, q)
    return {"a": c.a, "b": c.b}
"""
    )
    typed = signature_of(program, {"a": "float32", "b": "float32"}, dtype="bfloat16")
    made = lower(program, typed, {"T": 8192, "F": 4096, "D": 8192}, hopper=True)
    assert made.effective["c"].mainloop == "pingpong"


def test_turns_have_five_stages_and_slices_that_fit_beside_them() -> None:
    sizes = {"T": 8192, "D": 4096, "F": 14336}
    for name, width in (("linear_bias_gelu", 32), ("swiglu_backward", 16)):
        typed = signature(task(name))
        made = lower(read(worked_candidate(name), typed), typed, sizes, hopper=True)
        assert (made.effective["a"].stages, made.effective["a"].slice_n) == (5, width)


@pytest.mark.parametrize(
    ("name", "call", "tile"),
    [
        ("rmsnorm_linear", "s", (32, 128)),
        ("linear_backward", "c", (256, 64)),  # sums columns and nothing else
        ("layernorm_backward", "p", (128, 128)),  # rows too
        ("qknorm_rope_backward", "a", (32, 128)),  # and so much else that registers count more
    ],
)
def test_passes_that_sum_columns_have_tall_tiles(name: str, call: str, tile: tuple[int, int]) -> None:
    found = chosen(name, task(name).time_shapes["llama3-8b"], call)
    assert (found.block_m, found.block_n, found.warps) == (*tile, 4)


@pytest.mark.parametrize(
    ("name", "kernel", "hint", "tile"),
    [
        ("linear_backward", "columns", "block_n=128", (128, 128, 4)),  # wider than a sum of columns alone has it
        ("linear_backward", "columns", "block_m=64", (64, 64, 4)),
        ("rmsnorm_linear", "squares", "block_m=64", (64, 128, 4)),  # taller than a pass has it
        ("rmsnorm_linear", "squares", "block_n=256", (32, 256, 8)),
    ],
)
def test_a_hint_for_a_pass_changes_little_else(name: str, kernel: str, hint: str, tile: tuple[int, int, int]) -> None:
    typed = signature(task(name))
    source = worked_candidate(name).replace(f"@kernel\ndef {kernel}", f"@kernel({hint})\ndef {kernel}")
    program = read(source, typed)
    made = lower(program, typed, task(name).time_shapes["llama3-8b"])
    (found,) = (made.schedules[call.name] for call in program.live_calls() if call.unit.name == kernel)
    assert (found.block_m, found.block_n, found.warps) == tile


@pytest.mark.parametrize(
    ("name", "backwards"),
    [
        ("rmsnorm_linear", {"n"}),  # s, n, product: each begins where the one before ended
        ("linear_quantize_fp8_rowwise", {"c"}),  # after a product
        ("llama_unit_backward", {"b0"}),  # before one
        ("rope_backward", set()),
        ("qknorm_rope_backward", set()),  # two passes that share nothing
    ],
)
def test_neighbours_that_share_a_matrix_go_through_it_opposite_ways(name: str, backwards: set[str]) -> None:
    program = read(worked_candidate(name), signature(task(name)))
    assert {c.name for c in program.live_calls() if walks_backwards(program, c)} == backwards


def test_a_pass_that_goes_backwards_says_so_in_its_text_and_has_no_descriptors() -> None:
    typed = signature(task("rmsnorm_linear"))
    made = lower(
        read(worked_candidate("rmsnorm_linear"), typed), typed, task("rmsnorm_linear").time_shapes["llama3-8b"]
    )
    squares, normalised = (made.source.split(f"def {name}(")[1].split("\n\n")[0] for name in ("squares", "normalised"))
    assert "tile = tl.program_id(0)" in squares and "tile = tl.num_programs(0) - 1 - tl.program_id(0)" in normalised
    assert made.form == "descriptor" and "normalised, (-(-T // 32) * -(-D // 128),), x, r_rstd, gamma" in made.source


@pytest.mark.parametrize(("columns", "tile"), [(4096, (256, 64)), (3000, (256, 64)), (3001, (32, 128))])
def test_rows_without_whole_runs_have_small_tiles(columns: int, tile: tuple[int, int]) -> None:
    """Each element has an address and a mask of its own there."""
    found = chosen("linear_backward", {"T": 4096, "D": 64, "F": columns}, "c")
    assert (found.block_m, found.block_n) == tile

"""Groups of columns that are no power of two: what is generated, said, counted and refused.

What they compute is tested in triton's interpreter (`interpreted_groups`); their golden text is one of `test_lowering`.
"""

from __future__ import annotations

import pytest
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.cost import program_cost
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Kernel, Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.tuning import Asked, proposals
from coda_synth.runs.export_kernels import every_form
from coda_synth.tasks.catalog import task, worked_candidate

from tests.language import signature_of

HEADS = {"T": 8192, "D": 4096, "HQ": 32, "HK": 8, "H": 96}


def heads(form: str | None = "descriptor", schedule: Schedule | None = None, **sizes: int) -> Generated:
    sig = signature(task("qknorm_rope"))
    program = read(worked_candidate("qknorm_rope"), sig)
    chosen = {"q": schedule} if schedule else {}
    return lower(program, sig, HEADS | sizes, form=form, schedules=chosen)


def test_a_note_says_what_a_group_costs() -> None:
    found = [str(note) for note in heads().notes]
    said = "groups of 96 columns take 128 places of the tile each, the next power of two, so 25 % of it is computed"
    assert found == [f"PaddedGroups: {call}: {said} for nothing" for call in ("q", "k")]
    assert heads(H=128).notes == ()


def test_the_hopper_kernel_leaves_them_to_the_portable_one() -> None:
    made = heads("hopper")
    assert [(launch.call, launch.gluon) for launch in made.launches] == [("q", False), ("k", False), ("v", True)]
    assert "PortableKernel: q runs the portable kernel: the Hopper kernel has no groups of 96 columns" in [
        str(note) for note in made.notes
    ]
    with pytest.raises(LoweringError, match='q: mainloop="hopper" is not possible: .* no groups of 96 columns'):
        heads("hopper", Schedule(mainloop="hopper"))


@pytest.mark.parametrize(("width", "step"), [(48, 192), (80, 160), (96, 192), (112, 224), (192, 192), (128, 256)])
def test_tiles_step_by_whole_groups(width: int, step: int) -> None:
    """The launch, its grid, and the cost model count the same tiles."""
    made = heads("pointer", H=width)
    tiles = {launch.call: launch.tiles for launch in made.launches}
    assert tiles["q"] == 64 * -(-32 * width // step)
    assert f"_programs(x.device, T, 128, H * HQ, {step})" in made.source
    sig = signature(task("qknorm_rope"))
    program = read(worked_candidate("qknorm_rope"), sig)
    priced = program_cost(program, sig, HEADS | {"H": width}, made.schedules, device("H200"))
    assert {launch.call: launch.tiles for launch in priced.launches} == tiles


def test_a_product_in_pieces_has_no_padded_tiles() -> None:
    """Only where its pieces are summed do groups matter."""
    schedule = Schedule(block_m=64, block_n=128, split_k=4)
    made = heads("pointer", schedule, T=64, HQ=8)
    pieces, summed = (launch.tiles for launch in made.launches if launch.call == "q")
    assert (pieces, summed) == (4 * 6, 8)
    sig = signature(task("qknorm_rope"))
    sizes = HEADS | {"T": 64, "HQ": 8}
    priced = program_cost(read(worked_candidate("qknorm_rope"), sig), sig, sizes, made.schedules, device("H200"))
    assert priced.launches[0].tiles == pieces


def test_the_tuner_proposes_only_tiles_that_hold_a_group() -> None:
    """It prices every tile, also those that lowering then refuses."""
    sig = signature(task("qknorm_rope"))
    asked = Asked(read(worked_candidate("qknorm_rope"), sig), sig, HEADS, device("H200"))
    now = asked.lowered({}).schedules
    found = [p.schedule for p in proposals(asked, "normed_rotary", now, None, [], 40, 0)]
    assert len(found) > 2 and {s.block_n for s in found} == {128, 256}
    assert {s.mainloop for s in found if s.split_k == 1} == {"portable"}, "pieces have no groups, so Hopper sums them"


def test_work_and_traffic_are_those_of_the_columns_that_exist() -> None:
    sig = signature(task("qknorm_rope"))
    program = read(worked_candidate("qknorm_rope"), sig)
    priced = program_cost(program, sig, HEADS, heads().schedules, device("H200")).launches[0]
    t, d, n = HEADS["T"], HEADS["D"], 32 * 96
    vectors = 2 * 96 + 8 * t + 2 * 4 * 48  # the norm's weight, positions, and two vectors of frequencies
    assert (priced.flops, priced.bytes) == (2 * t * d * n, 2 * (t * d + n * d + t * n) + vectors)


def test_heads_of_96_build_with_tensor_cores_and_without_spills() -> None:
    built = toolchain.build(heads("hopper"), "sm_90")
    assert {r.call: (r.tensor_core_instructions > 0, r.spill_bytes) for r in built} == dict.fromkeys("qkv", (True, 0))


TEXT = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N/96"]):
    z = gemm(x, w)
    return {{{outputs}}}

@finisher
def g(q: Partial["M", "W"]):
    return {{"v": total_sum(q)}}

@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F/96"]):
    a = f(x, w, t)
    b = g(a.q)
    return {{"y": a.y, "v": b.v}}
"""
SIZES = {"T": 64, "D": 64, "F": 960}
OF_96 = 'spread(group_sum(z, 96), 96), "q": tile_sum(z, "N")'


def program_of(outputs: str) -> Program:
    return read(TEXT.format(outputs=outputs))


def lowered(outputs: str, schedule: Schedule = Schedule(block_m=64, block_n=256)) -> Generated:  # noqa: B008
    program = program_of(outputs)
    return lower(program, signature_of(program), SIZES, form="pointer", schedules={"a": schedule})


@pytest.mark.parametrize(
    ("outputs", "partials"),
    [
        ('"y": z, "q": tile_sum(z, "N")', 4),
        (f'"y": {OF_96}', 5),
        ('"y": z, "q": tile_sum(group_sum(z, 96), "N/96")', 5),
        ('"y": t, "q": tile_sum(z, "N")', 5),
    ],
)
def test_a_partial_has_a_value_for_each_tile(outputs: str, partials: int) -> None:
    """Of 960 columns: four tiles of 256, or five of 192, also where values of 96 columns each are only passed on."""
    made = lowered(outputs, Schedule(block_m=64, block_n=256, slice_n=128))
    assert next(b.shape for b in made.buffers if b.name == "a_q") == (partials, 64)


def test_an_export_counts_the_same_tiles() -> None:
    program = program_of(f'"y": {OF_96}')
    found = every_form(program, signature_of(program), SIZES, {"a": Schedule(block_m=64, block_n=256)})
    assert str(found.shapes["a_q"][0]) == "-(-F // 192)"


@pytest.mark.parametrize(
    ("outputs", "block_n", "message"),
    [
        (
            OF_96,
            64,
            r"a group of 96 columns .* takes 128 places, the next power of two, and must fit .*block_n = 64",
        ),
        ('spread(group_sum(z, 64), 64) + spread(t, 96), "q": tile_sum(z, "N")', 256, "groups of 64 and of 96 columns"),
        (
            'spread(group_sum(z, 320), 320), "q": tile_sum(z, "N")',
            256,
            "a group of 320 columns of the product takes 512",
        ),
        ('spread(group_sum(z, 15), 15), "q": tile_sum(even(z), "N/2")', 64, "groups of 2 and of 15 columns"),
    ],
)
def test_what_no_tile_can_hold_is_refused_with_the_reason(outputs: str, block_n: int, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(f'"y": {outputs}', Schedule(block_m=64, block_n=block_n))


def test_the_reader_takes_any_width() -> None:
    """What a group costs is a matter of the tile; that halves are halves is one of the language."""
    assert isinstance(program_of(f'"y": {OF_96}').units["f"], Kernel)

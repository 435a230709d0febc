"""What needs no GPU of the clock: medians and their intervals, guarded memory, the words of a profile."""

import random
from dataclasses import replace

import pytest
import torch
from coda_synth.coda_api.cost import LaunchCost
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.buffers import fingerprint, guarded, guarded_copy
from coda_synth.evaluator.execution import bind
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.measured import Measured, Parts, Sample, summary
from coda_synth.evaluator.parts import bare, parts
from coda_synth.evaluator.profile import measured_lines, modelled_lines
from coda_synth.evaluator.race import WallClock
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import apart
from coda_synth.tasks.catalog import task, worked_candidate

from tests.representative import REPRESENTATIVE


def test_the_median_and_its_interval():
    assert summary([3.0]) == Sample(3.0, 3.0, 3.0, 1)
    assert summary([4.0, 1.0, 2.0, 3.0]).median_ms == 2.5
    found = summary([float(i) for i in range(101)])
    assert found.median_ms == 50 and found.low_ms < 50 < found.high_ms and found.repeats == 101


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(5)
    held = 0
    for _ in range(2000):
        found = summary([draw.expovariate(1.0) for _ in range(40)])
        held += found.low_ms <= 0.6931 <= found.high_ms
    assert 0.92 < held / 2000 < 0.985


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
def test_a_fresh_buffer_is_all_nan_and_intact(dtype):
    made = guarded((3, 5), dtype, "cpu")
    assert made.tensor.shape == (3, 5) and made.tensor.is_contiguous() and made.tensor.float().isnan().all()
    assert made.tensor.data_ptr() % 16 == 0 and made.intact()
    made.tensor.copy_(torch.ones(3, 5))
    assert made.intact()


@pytest.mark.parametrize("offset", [-1, 15, -512, 15 + 512])
def test_a_write_outside_is_seen(offset):
    made = guarded((3, 5), torch.float32, "cpu")
    around = torch.as_strided(made.storage.view(torch.float32), (1,), (1,), made.band // 4 + offset)
    around.fill_(0.0)
    assert not made.intact()


def test_a_fingerprint_sees_a_bit_a_sign_and_a_swap():
    value = torch.randn(1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    first = fingerprint(value)
    assert fingerprint(value.clone()) == first == fingerprint(guarded_copy(value, "cpu").tensor)
    negated = value.clone()
    negated[7] = -value[7]
    assert fingerprint(negated) != first
    swapped = value.clone()
    swapped[3], swapped[900] = value[900], value[3]
    assert fingerprint(swapped) != first
    assert fingerprint(torch.tensor([0.0])) != fingerprint(torch.tensor([-0.0]))


def test_the_profile_names_launches_shares_and_gaps():
    launches = [
        LaunchCost("a", 2 * 10**12, 10**9, 1024, 0.97, 0.8, 2.6e-3),
        LaunchCost("r", 0, 10**6, 1, 1.0, 1.0, 3e-6),
    ]
    words = " ".join(modelled_lines(launches, device("H200"), "bfloat16"))
    assert (
        "bound by shared memory" in words and "97% full" in words and "80% of the peak" in words and "no GEMM" in words
    )
    samples = {"candidate": Sample(3.0, 2.9, 3.1, 40), "bare_gemm": Sample(2.7, 2.6, 2.8, 40)}
    graph = {"candidate": Sample(2.8, 2.8, 2.8, 20), "bare_gemm": Sample(2.69, 2.6, 2.7, 20)}
    found = Measured(
        samples,
        graph,
        {"a": (2.6,), "r": (0.1,)},
        0.2,
        ({},),
        ({},),
        ("the baseline eager is missing",),
        "1500 MHz",
        between_ms=0.3,
    )
    taken = [Resources("a", "k", 180, 16, 155_672, 4, 1.0)]
    words = "\n".join(measured_lines(found, launches, taken, device("H200"), "bfloat16"))
    assert "a takes 2.6 ms, 87% of the program" in words and "769 TFLOP/s" in words and "16 bytes spilled" in words
    assert "the last with 100 of 132 SMs at work" in words
    hidden = replace(found, launch_ms={"a": (2.6,), "r": (0.0,)})
    words = "\n".join(measured_lines(hidden, launches, taken, device("H200"), "bfloat16"))
    assert "r takes 0 ms, 0% of the program" in words and "nothing beyond the launch before" in words
    early = replace(found, launch_ms={"a": (2.6,), "r": (0.0001,)})
    words = "\n".join(measured_lines(early, launches, taken, device("H200"), "bfloat16"))
    assert "faster than memory" in words and "% of what a large copy" not in words.partition("r takes")[2]
    apart = Parts({"a": 2.4}, {"a": 2.5}, 4e12, 800e12, ("r could not be timed",))
    words = "\n".join(measured_lines(found, launches, taken, device("H200"), "bfloat16", {"a": Schedule()}, apart))
    said = (
        "stores the product takes 2.4 ms, by turns with its own 2.5 ms: its own epilogue adds 0.1 ms, 4% of the launch"
    )
    assert said in words
    assert "96% of what a large product reaches" in words and "tile 128 x 256 x 64, 3 stages" in words
    assert "a large copy moves 4.00 TB/s, a large product does 800 TFLOP/s" in words and "r could not be" in words
    assert "spends 0.3 ms of 3 ms" in words and "as a CUDA graph it takes 2.8 ms, the bare GEMMs 2.69 ms" in words
    assert "eager is missing" in words and "1500 MHz" in words


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_a_kernel_without_its_epilogue_is_its_gemm_alone_in_every_form(name):
    spec, needed = task(name), signature(task(name))
    program, headline = read(worked_candidate(name), needed), next(iter(spec.time_shapes.values()))
    whole = lower(program, needed, headline, hopper=True)
    calls = [c for c in program.live_calls() if isinstance(c.unit, Kernel) and c.unit.gemm]
    assert calls
    for call in calls:
        made, needs = bare(program, needed, call)
        sizes = {symbol: dim.size(spec.check_shapes[0]) for symbol, dim in call.binding.items()}
        shapes = {i.name: [d.size(sizes) for d in i.type.dims] for i in needs.inputs}
        inputs = {n: torch.randn(s, generator=torch.Generator().manual_seed(3)) for n, s in shapes.items()}
        gemm = call.unit.gemm
        a, b = inputs[gemm.a].double(), inputs[gemm.b].double()
        product = (a.T if gemm.a_transposed else a) @ (b.T if gemm.b_transposed else b)
        torch.testing.assert_close(evaluate(made, needs, inputs)["product"], product)
        local = {symbol: dim.size(headline) for symbol, dim in call.binding.items()}
        schedules = {"product": whole.schedules[call.name]}
        text = lower(made, needs, local, form=whole.form, schedules=schedules, hopper=whole.form == "hopper")
        assert len(text.launches) == 1 and text.launches[0].gluon == next(
            launch.gluon for launch in whole.launches if launch.call == call.name
        )


def test_a_variant_that_fails_is_a_note():
    spec, needed = task("linear_residual"), signature(task("linear_residual"))
    program, sizes = read(worked_candidate(spec.name), needed), spec.check_shapes[0]
    inputs = make_inputs(spec, needed, Case("interpreter", sizes, 1, "normal", "pointer"))
    bound = bind(lower(program, needed, sizes, form="pointer"), inputs, "cpu")
    broken = replace(bound, generated=replace(bound.generated, schedules={}))
    found = parts(program, needed, sizes, broken, WallClock())
    assert found.bare_ms == {} and "could not be timed without its epilogue: KeyError" in found.notes[0]
    assert found.matmul_flops_per_s > 0


def test_a_kernel_that_only_stores_has_no_epilogue_to_time() -> None:
    spec, needed = task("linear_nt"), signature(task("linear_nt"))
    program, sizes = read(worked_candidate(spec.name), needed), spec.check_shapes[0]
    inputs = make_inputs(spec, needed, Case("interpreter", sizes, 1, "normal", "pointer"))
    bound = bind(lower(program, needed, sizes, form="pointer"), inputs, "cpu")
    found = parts(program, needed, sizes, bound, WallClock())
    assert found.bare_ms == {} and found.notes == () and found.matmul_flops_per_s > 0


def test_launches_that_overlap_are_not_counted_twice() -> None:
    """The second is there early and waits, the third fills what it leaves idle, the fourth comes after a gap."""
    assert [length for _, length in apart([(0, 10), (8, 15), (13, 21), (22, 30)])] == [10, 5, 6, 8]
    assert [wait for wait, _ in apart([(0, 10), (8, 15), (13, 21), (22, 30)])][1:] == [0, 0, 1]
    assert apart([(0, 10), (2, 9)])[1] == (0, 0)
    assert apart([]) == []

"""The cost model against figures worked out by hand and against measured Hopper kernels."""

import dataclasses
from statistics import mean

import pytest
from coda_synth.coda_api.cost import (
    LAUNCH_S,
    bare_gemm_s,
    bound_s,
    program_cost,
    task_bytes,
    task_flops,
)
from coda_synth.coda_api.devices import UnknownDevice, device, device_names
from coda_synth.coda_api.kernel_time import depth_efficiency, tile_efficiency
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks.model import rows

H200 = device("H200")


def priced(name, sizes, on=H200, spilled=0, **hints):
    spec = task(name)
    program = read(worked_candidate(name), signature(spec))
    schedules = {call.name: Schedule().with_hints(hints) for call in program.live_calls()}
    return program_cost(program, signature(spec), sizes, schedules, on, dict.fromkeys(schedules, spilled))


def test_devices_by_name_by_driver_and_by_target():
    assert device("NVIDIA H200") is H200 and device("sm_90") is H200
    assert device("A100").sms == 108 and device("sm_80").shared_bytes == 166_912
    assert H200.sms == 132 and H200.shared_bytes == 232_448
    for name in device_names():
        on = device(name)
        assert on.copy_bytes_per_s < on.peak_bytes_per_s and on.matmul_flops_per_s < on.peak_flops_per_s
    with pytest.raises(UnknownDevice, match="H200"):
        device("H2000")


def test_bytes_and_flops_of_a_task():
    spec = task("linear_residual")
    sizes = {"T": 8192, "D": 4096, "K": 14336}
    assert task_flops(spec.gemms, sizes) == 2 * 8192 * 4096 * 14336
    assert task_bytes(signature(spec), sizes) == 2 * (8192 * 14336 + 4096 * 14336 + 2 * 8192 * 4096)


def test_the_bound_is_compute_or_memory_whichever_is_longer():
    spec = task("linear_residual")
    big, thin = {"T": 8192, "D": 4096, "K": 4096}, {"T": 16, "D": 4096, "K": 4096}
    known = signature(spec)
    assert bound_s(known, spec.gemms, big, H200) == pytest.approx(2 * 8192 * 4096 * 4096 / 989.4e12)
    assert bound_s(known, spec.gemms, thin, H200) == pytest.approx(task_bytes(known, thin) / 4.8e12)
    assert bound_s(known, spec.gemms, big, H200) < bare_gemm_s(known, spec.gemms, big, H200)


def test_a_kernel_reads_each_operand_once_and_stores_what_lives():
    cost = priced("residual_rmsnorm_swiglu", {"T": 256, "K": 128, "D": 512, "F": 1024})
    first, finisher, second = cost.launches
    tiles = -(-512 // 256)
    vectors = 512 * 2  # gamma
    assert first.bytes == 2 * (256 * 128 + 512 * 128 + 3 * 256 * 512) + vectors + 4 * 256 * tiles
    assert finisher.bytes == 4 * 256 * tiles + 4 * 256 and finisher.flops == 0
    assert second.bytes == 2 * (256 * 512 + 2048 * 512 + 256 * 1024) + 4 * 256
    assert cost.flops == 2 * 256 * 512 * 128 + 2 * 256 * 2048 * 512
    assert cost.seconds == sum(launch.seconds for launch in cost.launches)


def test_logits_that_are_not_stored_cost_nothing():
    cost = priced("lm_head_cross_entropy", {"T": 8192, "D": 4096, "V": 128256})
    stored = 4 * 8192 * (501 + 1)  # partials of 501 tiles, and the picks
    assert cost.launches[0].bytes == 2 * (8192 * 4096 + 128256 * 4096) + 8 * 8192 + stored


def test_a_last_wave_that_is_nearly_empty_costs_a_whole_one():
    full = priced("linear_residual", {"T": 128 * 12, "D": 256 * 11, "K": 8192})  # 132 tiles
    spilt = priced("linear_residual", {"T": 128 * 133, "D": 256, "K": 8192})  # 133 tiles
    assert full.launches[0].wave_efficiency == 1.0
    assert spilt.launches[0].wave_efficiency == pytest.approx(133 / 264)
    assert spilt.seconds > 1.8 * full.seconds


def test_tiles_as_measured_on_hopper():
    assert tile_efficiency(Schedule(block_m=128, block_n=256), H200) > 0.98
    assert 0.75 < tile_efficiency(Schedule(block_m=128, block_n=128), H200) < 0.95
    assert tile_efficiency(Schedule(block_m=64, block_n=64), H200) < 0.6


def test_a_shallow_pipeline_cannot_hide_latency():
    rate = H200.matmul_flops_per_s
    shares = [depth_efficiency(Schedule(stages=stages), H200, rate, 8192) for stages in (1, 2, 3)]
    assert shares[0] < 0.6 < shares[1] < 1.0 == shares[2]
    narrow = [depth_efficiency(Schedule(block_n=128, stages=stages), H200, rate, 8192) for stages in (1, 3, 4)]
    assert narrow[0] < shares[0] and narrow[1] < 1.0 == narrow[2]  # a smaller step hides less: it takes more stages
    sizes = {"T": 8192, "F": 4096, "D": 4096}
    one, two, three = (priced("linear_nt", sizes, stages=stages).seconds for stages in (1, 2, 3))
    assert one > 1.3 * two and two > 1.01 * three
    assert priced("linear_nt", sizes, stages=4).seconds == three


def test_a_box_of_few_rows_takes_the_copy_engine_longer():
    """Measured with 1 and 16 rows of 64; a portable kernel masks them."""
    steps = {"block_n": 32, "stages": 8, "warps": 4, "mainloop": "hopper"}
    few, all_of_them = (priced("linear_nt", {"T": t, "F": 4096, "D": 4096}, block_m=64, **steps) for t in (16, 64))
    assert few.seconds > 1.5 * all_of_them.seconds
    narrow = priced("linear_nt", {"T": 16, "F": 4096, "D": 4096}, block_m=16, **{**steps, "mainloop": "portable"})
    assert narrow.seconds < few.seconds


def test_narrow_slices_spills_and_synchronous_loads_cost():
    sizes = {"T": 8192, "D": 4096, "K": 4096}
    wide, narrow = (priced("linear_residual", sizes, slice_n=n).seconds for n in (128, 32))
    assert wide < narrow < priced("linear_residual", sizes, slice_n=32, spilled=200).seconds
    flat, spilt = (priced("rope_backward", {"T": 8192, "Q": 6144}, spilled=n).seconds for n in (0, 4000))
    assert spilt > 1.2 * flat
    hopper, portable = (priced("linear_residual", sizes, mainloop=m).seconds for m in ("hopper", "portable"))
    assert hopper == wide and portable > 1.05 * hopper


def test_the_pick_is_near_the_measured_best():
    """Every kernel that was measured under several schedules; docs/tuner.md gives these figures."""
    found = rows()
    assert len(found) == 26 and all(row.worst < 0.045 for row in found)
    assert mean(row.loss for row in found) < 0.01


@pytest.mark.parametrize(
    ("name", "sizes", "low", "high"),
    [
        ("linear_residual", {"T": 8192, "D": 4096, "K": 4096}, 0.88, 1.0),
        ("linear_residual", {"T": 8192, "D": 4096, "K": 14336}, 0.95, 1.0),
        ("linear_swiglu", {"T": 8192, "F": 14336, "D": 4096}, 0.95, 1.05),
    ],
)
def test_estimates_over_bare_gemms_are_near_what_was_measured(name, sizes, low, high):
    spec = task(name)
    ratio = bare_gemm_s(signature(spec), spec.gemms, sizes, H200) / priced(name, sizes).seconds
    assert low < ratio < high


def test_a_slower_device_takes_longer():
    sizes = {"T": 4096, "F": 8192, "D": 4096}
    assert priced("linear_swiglu", sizes, on=device("A100")).seconds > 2 * priced("linear_swiglu", sizes).seconds
    starved = dataclasses.replace(H200, copy_bytes_per_s=1e9)
    cost = priced("linear_swiglu", sizes, on=starved)
    assert cost.seconds == pytest.approx(cost.bytes / 1e9 + LAUNCH_S)


def test_tma_is_hopper_and_newer() -> None:
    assert device("H200").has_tma and not device("A100").has_tma

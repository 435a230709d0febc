"""The simulated thread block by itself, and generated kernels in it (in a process in which triton interprets)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coda_synth.evaluator.hopper_machine import Block
from coda_synth.evaluator.hopper_memory import Barrier, Deadlock, Known, Race, Slot

from tests.test_lowering_properties import interpreted


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_generated_kernels(which: str) -> None:
    interpreted("simulated_hopper.py", which)


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_drawn_programs(which: str) -> None:
    interpreted("simulated_properties.py", which)


def run(*bodies: Callable[[Block], None], seed: int = 0) -> Block:
    block = Block(0, 1, seed)
    block.run((f"warp {i}", lambda body=body: body(block)) for i, body in enumerate(bodies))
    return block


def test_a_barrier_ends_its_phase_when_all_have_arrived_and_all_bytes_are_there() -> None:
    barrier, known = Barrier("b", count=2, missing=2), Known()
    seven = known.new(engine=False)
    assert barrier.passed(1) and not barrier.passed(0)
    barrier.expect(Known(), 64)
    barrier.arrive(known)
    assert not barrier.passed(0) and seven not in barrier.ended.all
    barrier.landed(Known(), 64)
    assert barrier.passed(0) and not barrier.passed(1) and seven in barrier.ended.all
    barrier.arrive(known, 2)
    assert barrier.passed(1)
    with pytest.raises(Race, match="more arrivals at b than the 2"):
        barrier.arrive(known, 3)


def test_a_block_in_which_all_wait_says_for_what() -> None:
    barrier = Barrier("full[0]")
    with pytest.raises(Deadlock, match=r"^warp 0 waits for phase 0 of full\[0\]$"):
        run(lambda block: block.wait(barrier, 0))


def test_what_goes_wrong_in_one_warp_ends_the_block() -> None:
    barrier = Barrier("full[0]")

    def wrong(block: Block) -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        run(wrong, lambda block: block.wait(barrier, 0))


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_is_not_waited_for_is_a_race_whatever_the_timing(seed: int) -> None:
    slot, barrier = Slot("ring[0]"), Barrier("loaded[0]")

    def reads(block: Block) -> None:
        block.expect(barrier, 8)
        block.load(slot, barrier, 8, lambda: None)
        for _ in range(50):  # by now it has come; nothing says that it always will
            block.pause()
        block.read(slot)

    with pytest.raises(Race, match=r"warp 0 reads ring\[0\], which may still be being written"):
        run(reads, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_what_another_warp_told_by_a_barrier_is_known(seed: int) -> None:
    slot, told, free = Slot("ring[0]"), Barrier("told[0]"), Barrier("free[0]")

    def writes(block: Block) -> None:
        for turn in range(4):
            block.wait(free, turn & 1 ^ 1)
            block.write(slot)
            block.arrive(told, 1)

    def reads(block: Block) -> None:
        for turn in range(4):
            block.wait(told, turn & 1)
            block.read(slot)
            block.arrive(free, 1)

    run(writes, reads, seed=seed)
    with pytest.raises((Race, Deadlock)):
        run(writes, lambda block: block.read(slot), seed=seed)


def stores(fence: bool, waits: bool, done: list[object]) -> Callable[[Block], None]:
    slot = Slot("ring[0]")

    def body(block: Block) -> None:
        block.slots.append(slot)
        block.write(slot)
        if fence:
            block.fence()
        block.store(slot, lambda: 1, done.append)
        if waits:
            block.wait_stores(0)
            block.write(slot)

    return body


def test_a_slot_that_is_copied_out_is_fenced_first_and_left_alone_until_then() -> None:
    done: list[object] = []
    run(stores(fence=True, waits=True, done=done))
    assert done == [1]
    with pytest.raises(Race, match="there is no fence since"):
        run(stores(fence=False, waits=True, done=done))
    with pytest.raises(Race, match=r"nobody has waited for what is done with ring\[0\]"):
        run(stores(fence=True, waits=False, done=done))


@pytest.mark.parametrize("fence", [True, False])
def test_a_slot_that_threads_have_read_is_fenced_before_a_copy_overwrites_it(fence: bool) -> None:
    """A barrier is not enough: the reads may still be under way, and the copy engine does not come after them."""
    slot, loaded, free = Slot("ring[0]"), Barrier("loaded[0]"), Barrier("free[0]")

    def loads(block: Block) -> None:
        for turn in range(2):
            block.wait(free, turn & 1 ^ 1)
            block.expect(loaded, 8)
            block.load(slot, loaded, 8, lambda: None)
        block.wait(loaded, 1)

    def reads(block: Block) -> None:
        block.wait(loaded, 0)
        block.read(slot)
        if fence:
            block.fence()
        block.arrive(free, 1)

    if fence:
        run(loads, reads)  # no race is found
        return
    with pytest.raises(Race, match=r"overwrites ring\[0\], which may still be read: there is no fence since"):
        run(loads, reads)

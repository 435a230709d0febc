"""Launches that overlap: the rule, on drawn graphs in a model of the device, and what is lowered and built from it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.overlap import Access, Overlap, overlapped
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.toolchain import compile_launch, load, target_of
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.language import signature_of

NAMES = st.frozensets(st.sampled_from("abcdefg"), max_size=3)
ACCESSES = st.lists(st.builds(Access, NAMES, NAMES, st.sampled_from([True, True, True, False])), min_size=1, max_size=7)


class Wrong(Exception):
    """What the device may do to launches that overlap wrongly."""


@dataclass
class Block:
    """A thread block, by what it still has to do: "wait", "release", "work", and then it has ended."""

    todo: list[str]
    released: bool = False


@dataclass
class Running:
    """A launch on the device."""

    access: Access
    overlap: Overlap
    blocks: list[Block] = field(default_factory=list)  # none before it starts
    complete: bool = False  # and its memory visible, some time after its last block has ended

    @property
    def released(self) -> bool:
        """The next launch may start if it is one that overlaps."""
        return bool(self.blocks) and all(block.released or not block.todo for block in self.blocks)

    @property
    def ended(self) -> bool:
        return bool(self.blocks) and not any(block.todo for block in self.blocks)


Event = tuple[int, str, Block | None]
Choice = Callable[[Sequence[Event]], Event]
"""Which of the things comes next that may; those of later launches stand last."""


def eager(events: Sequence[Event]) -> Event:
    """Later launches as early as the device allows."""
    return events[-1]


def steps(overlap: Overlap) -> list[str]:
    """What the text of a kernel does, in its order."""
    start, end = (["wait"] if overlap.waits == where else [] for where in ("start", "end"))
    return [*start, *(["release"] if overlap.releases else []), "work", *end]


def execute(launches: Sequence[Access], overlaps: Sequence[Overlap], choice: Choice) -> None:
    """Runs the launches in an order that the device allows; raises Wrong for what it must never do."""
    device = [Running(access, overlap) for access, overlap in zip(launches, overlaps, strict=True)]
    while not all(one.complete for one in device):
        number, what, block = choice([*_able(device)])
        launch = device[number]
        if what == "start":
            launch.blocks = [Block(steps(launch.overlap)) for _ in range(2)]
        elif what == "complete":
            launch.complete = True
            if not all(one.complete for one in device[:number]):
                raise Wrong(f"launch {number} is complete before one that comes earlier")
        elif block is not None:
            block.todo.pop(0)
            block.released |= what == "release"
            if what == "work":
                _check_memory(device, number)


def _able(device: Sequence[Running]) -> Iterator[Event]:
    """What may happen next."""
    for number, launch in enumerate(device):
        before = device[number - 1] if number else None
        if not launch.blocks:
            free = before.released if before and launch.overlap.early else all(d.complete for d in device[:number])
            yield from [(number, "start", None)] if free else []
        for block in launch.blocks:
            if block.todo and (block.todo[0] != "wait" or before is None or before.complete):
                yield number, block.todo[0], block
        if launch.ended and not launch.complete:
            yield number, "complete", None


def _check_memory(device: Sequence[Running], number: int) -> None:
    launch = device[number]
    for other, earlier in enumerate(device[:number]):
        meets = launch.access.reads & earlier.access.writes or launch.access.writes & (
            earlier.access.reads | earlier.access.writes
        )
        if meets and not earlier.complete:
            raise Wrong(f"launch {number} works on {sorted(meets)} while launch {other} may still be running")


@settings(max_examples=150, deadline=None)
@given(ACCESSES, st.integers(0, 2**32))
def test_no_order_that_the_device_allows_breaks_a_dependence(launches: list[Access], seed: int) -> None:
    """Nor lets a launch be complete before an earlier one."""
    overlaps = overlapped(launches)
    execute(launches, overlaps, eager)
    for number in range(8):
        execute(launches, overlaps, random.Random(seed + number).choice)


@settings(max_examples=150, deadline=None)
@given(ACCESSES)
def test_a_launch_waits_at_its_start_only_if_it_must(launches: list[Access]) -> None:
    """Moved to the end, such a wait would let some order break a dependence."""
    overlaps = overlapped(launches)
    following = [*overlaps[1:], Overlap()]
    for number, (launch, overlap) in enumerate(zip(launches, overlaps, strict=True)):
        assert overlap.early == (launch.able and number > 0)
        assert overlap.releases == (launch.able and following[number].early)
        if overlap.waits == "start":
            moved = [*overlaps[:number], replace(overlap, waits="end"), *overlaps[number + 1 :]]
            with pytest.raises(Wrong):
                execute(launches, moved, eager)


def access(reads: str, writes: str, able: bool = True) -> Access:
    return Access(frozenset(reads), frozenset(writes), able)


class _Early(Overlap):
    """Overlaps, and waits nowhere."""

    early = True  # type: ignore[assignment]


def test_a_launch_that_does_not_wait_may_be_complete_too_early() -> None:
    launches = [access("a", "b"), access("a", "c"), access("b", "d")]
    assert [one.waits for one in overlapped(launches)] == ["never", "end", "start"]
    for slower in (Overlap("start", True), Overlap("never", True)):
        execute(launches, [Overlap("never", True), slower, Overlap("start")], eager)
    with pytest.raises(Wrong, match="launch 1 is complete before"):
        execute(launches[:2], [Overlap("never", True), _Early()], eager)


def test_what_an_earlier_launch_reads_is_not_overwritten_under_it() -> None:
    found = overlapped([access("a", "b"), access("c", "a"), access("c", "b", able=False), access("d", "a")])
    assert found == (Overlap("never", True), Overlap("start"), Overlap(), Overlap("end"))


def lowered(name: str, form: str = "hopper", overlap: bool = True) -> Generated:
    spec, sig = task(name), signature(task(name))
    program = read(worked_candidate(name), sig)
    return lower(program, sig, next(iter(spec.time_shapes.values())), form=form, overlap=overlap)


def test_the_projections_of_a_layer_overlap() -> None:
    made = lowered("linear_rope")
    assert [one.overlap for one in made.launches] == [
        Overlap("never", True), Overlap("end", True), Overlap("end")
    ]  # fmt: skip
    assert made.source.count("launch_pdl=True") == 2


ADDING = """
@kernel
def data(dy: Tensor["M", "K"], w: Tensor["K", "N"]):
    return {"dx": gemm(dy, w)}


@kernel
def weights(dy: Tensor["K", "M"], x: Tensor["K", "N"], dw: Tensor["M", "N"]):
    return {"dw": accumulate(dw, gemm(dy, x))}


@kernel
def beside(dy: Tensor["K", "M"], x: Tensor["K", "N"], dw: Tensor["M", "N"]):
    return {"z": gemm(dy, x) + dw}


@program
def adding(dy: Tensor["T", "F"], x: Tensor["T", "D"], w: Tensor["F", "D"], dw: Tensor["F", "D"]):
    a = data(dy, w)
    b = weights(dy, x, dw)
    c = beside(dy, x, b.dw)
    return {"dx": a.dx, "dw": b.dw, "z": c.z}
"""


def test_what_is_accumulated_is_written_too() -> None:
    """dw has been added to where it lies before anything reads it."""
    program = read(ADDING)
    made = lower(program, signature_of(program, dtype="bfloat16"), dict.fromkeys("TFD", 1024), form="hopper")
    assert made.in_place == {"dw": ("dw",)} and all(launch.gluon for launch in made.launches)
    assert [launch.overlap.waits for launch in made.launches] == ["never", "end", "start"]


@pytest.mark.parametrize("name", task_names())
def test_without_overlap_nothing_of_it_is_left(name: str) -> None:
    """And with it only Hopper kernels have a part in it."""
    plain, made = lowered(name, overlap=False), lowered(name)
    assert "gdc_" not in plain.source and "launch_pdl" not in plain.source and "WAITS_" not in plain.source
    assert [(one.call, one.kernel, one.warps) for one in plain.launches] == [
        (one.call, one.kernel, one.warps) for one in made.launches
    ]
    for number, one in enumerate(made.launches):
        assert one.overlap.early == (one.gluon and number > 0)
    if len(made.launches) == 1:
        assert made.source == plain.source
    assert lowered(name, "descriptor").source == lowered(name, "descriptor", overlap=False).source


@pytest.fixture(scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def machine_text(made: Generated, number: int) -> list[str]:
    """A launch's PTX, of which only what starts, ends or touches memory."""
    launch = made.launches[number]
    compiled = compile_launch(getattr(load(made.source), launch.kernel), launch, target_of("sm_90"))
    assert compiled.metadata.launch_pdl == launch.overlap.early
    words = re.compile(r"(griddepcontrol\.\w+|barrier\.sync|cp\.async\.bulk\.tensor|ld\.global|st\.global|\bret;)")
    return [found[1] for line in compiled.asm["ptx"].splitlines() if (found := words.search(line))]


@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize("number", range(3))
def test_the_machine_code_waits_and_releases_where_the_plan_says(number: int) -> None:
    """Before the other warps are let go, which a barrier does, or after they have come together at another one."""
    made = lowered("rmsnorm_qkv_rope")
    number += next(n for n, launch in enumerate(made.launches) if launch.gluon)
    overlap = made.launches[number].overlap
    text = machine_text(made, number)
    assert text.count("griddepcontrol.wait") == 1
    assert text.count("griddepcontrol.launch_dependents") == overlap.releases
    first, wait = text.index("barrier.sync"), text.index("griddepcontrol.wait")
    if overlap.releases:
        assert text.index("griddepcontrol.launch_dependents") == (1 if overlap.waits == "start" else 0)
    if overlap.waits == "start":
        assert wait == 0
    else:  # after the stores of the partition that runs in the kernel's own warps
        assert wait > first and "cp.async.bulk.tensor" in text[first:wait] and text[wait - 1] == "barrier.sync"

"""What racecheck said of kernels on an H200, held against builds of these kernels made here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import triton
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks import epilogue
from benchmarks.epilogue import built, disassembled
from benchmarks.hazards import Hazard, hazard, instructions, unexplained, why_not_ordered
from benchmarks.sanitize import judged, small_sizes, verdict

RESIDUAL = """\
========= Error: Race reported between Read access at project+0x130 in <candidate_802653cfd5b0-802653cfd5b0>:224
=========     and Write access at project+0x1350 in <candidate_802653cfd5b0-802653cfd5b0>:224 [60 hazards]
=========     and Write access at project+0x2530 in <candidate_802653cfd5b0-802653cfd5b0>:241 [81 hazards]
========="""

ROPE = """\
========= Error: Race reported between Read access at rotary+0x140 in <candidate_f88dc21bf702-f88dc21bf702>:246
=========     and Write access at rotary+0x11a0 in <candidate_f88dc21bf702-f88dc21bf702>:246 [20 hazards]
=========     and Write access at rotary+0x3160 in <candidate_f88dc21bf702-f88dc21bf702>:271 [14 hazards]
=========
========= Error: Race reported between Read access at rotary+0x140 in <candidate_f88dc21bf702-f88dc21bf702>:246
=========     and Write access at rotary+0x11a0 in <candidate_f88dc21bf702-f88dc21bf702>:246 [8 hazards]
=========     and Write access at rotary+0x3170 in <candidate_f88dc21bf702-f88dc21bf702>:271 [6 hazards]
========="""

MEETING = "BAR.SYNC.DEFER_BLOCKING 0x1"

NAMELESS = """\
========= Error: Race reported between Read access at
=========     and Write access at  [78 hazards]
=========     and Write access at  [102 hazards]
========="""


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield  # type: ignore[misc]


def small(name: str) -> Generated:
    spec, sig = task(name), signature(task(name))
    return lower(read(worked_candidate(name), sig), sig, small_sizes(spec), hopper=True)


@pytest.fixture(scope="module")
def residual() -> Generated:
    return small("linear_residual")


@pytest.fixture(scope="module")
def listing(residual: Generated) -> str:
    return disassembled(built(residual, residual.launches[0]))


@pytest.fixture(scope="module")
def word(residual: Generated, listing: str) -> Hazard:
    """The hazard of RESIDUAL, at the offsets to which the release of triton at hand puts its accesses."""
    code, last = instructions(listing), built(residual, residual.launches[0]).metadata.shared - 4
    (load,) = (at for at, found in code.items() if found.text.startswith("LDS.U8"))
    stores = (at for at, found in code.items() if re.match(rf"STS \[\w+\+{last:#x}\]", found.text))
    return Hazard("project", load, tuple(stores))


def as_said(found: Hazard) -> list[str]:
    """RESIDUAL with these offsets."""
    offsets = iter((found.read, *found.writes))
    return re.sub(r"(?<=project\+)0x\w+", lambda _: hex(next(offsets)), RESIDUAL).splitlines()


def test_a_hazard_of_the_partition_word_is_explained(residual: Generated, word: Hazard) -> None:
    left, explained = unexplained(as_said(word), residual)
    assert (left, explained) == ([], 1)
    assert verdict(left, explained) == "passed (1 hazard of triton's partition words, ordered by barrier 1)"


@pytest.mark.skipif(triton.__version__ != "3.6.0", reason="the report is of what triton 3.6.0 compiles")
def test_the_offsets_of_the_report_are_those_of_the_build_here(residual: Generated) -> None:
    assert unexplained(RESIDUAL.splitlines(), residual) == ([], 1)


@pytest.mark.skipif(triton.__version__ != "3.6.0", reason="the report is of what triton 3.6.0 compiles")
def test_builds_of_a_kernel_for_several_sizes_are_told_apart() -> None:
    assert unexplained(ROPE.splitlines(), small("linear_rope")) == ([], 2)


def test_another_access_of_the_kernel_is_not_explained(residual: Generated, listing: str, word: Hazard) -> None:
    code = instructions(listing)
    loads = [at for at, found in code.items() if found.opcode.startswith("LDS") and at != word.read]
    stores = [at for at, found in code.items() if found.opcode.startswith("ST") and at not in word.writes]
    assert loads and stores
    others = [Hazard("project", at, word.writes) for at in (*loads, word.read + 16)]
    others += [Hazard("project", word.read, (word.writes[0], at)) for at in (*stores, word.writes[0] + 16)]
    others.append(Hazard("project", word.writes[0], word.writes))
    for other in others:
        left, explained = unexplained(as_said(other), residual)
        assert explained == 0 and len(left) == 4 and "not explained" in left[-1], other
        assert verdict(left, explained) == "FAILED"


@pytest.mark.parametrize(
    "said",
    [
        RESIDUAL.replace("Error:", "Warning:"),
        RESIDUAL.replace("Read access", "Write access"),
        RESIDUAL.replace("Write access", "Read access", 1),
        RESIDUAL.replace("project+0x2530", "other+0x2530"),
        RESIDUAL + "     Saved host backtrace up to driver entry point at kernel launch time",
        "\n".join(RESIDUAL.splitlines()[:1]),
        "========= Error: Potential WAR hazard detected at __shared__ 0x19538 in block (0,0,0)",
        NAMELESS,
    ],
)
def test_a_report_of_another_kind_is_not_explained(residual: Generated, said: str) -> None:
    assert hazard([line for line in said.splitlines() if line.strip("= ")]) is None
    left, explained = unexplained(said.splitlines(), residual)
    assert explained == 0 and "not explained" in left[-1]


def test_what_is_not_explained_fails_beside_what_is(residual: Generated, word: Hazard) -> None:
    said = as_said(word)
    left, explained = unexplained([*said, *NAMELESS.splitlines(), *said], residual)
    assert explained == 2 and left[:3] == NAMELESS.splitlines()[:3] and len(left) == 4
    assert verdict(left, explained).startswith("FAILED (2 hazards")


def test_a_kernel_that_the_program_does_not_run_is_not_explained(residual: Generated, word: Hazard) -> None:
    said = [line.replace("project+", "other+") for line in as_said(word)]
    assert unexplained(said, residual)[0][-1].startswith("========= not explained: no other of this program")


def test_without_hazards_it_passed() -> None:
    assert verdict(*judged("linear", "racecheck", {"linear": []})) == "passed"
    assert verdict(*judged("linear", "racecheck", {})) == "FAILED", "it was not reached"


def test_without_nvdisasm_nothing_is_explained(
    residual: Generated, word: Hazard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = as_said(word)
    monkeypatch.setattr(epilogue, "NVDISASM", tmp_path / "nvdisasm")
    left, explained = unexplained(said, residual)
    assert explained == 0 and "no machine code to read" in left[-1] and "nvdisasm" in left[-1]


def without(listing: str, kept: set[int]) -> str:
    """Meetings elsewhere than at these offsets do nothing."""
    return re.sub(
        rf"(/\*(\w+)\*/.*){re.escape(MEETING)} ;",
        lambda found: found[0] if int(found[2], 16) in kept else f"{found[1]}NOP ;",
        listing,
    )


def test_a_meeting_beside_either_access_is_not_enough(listing: str, word: Hazard) -> None:
    """Written, met, read, and written again at once: each access has its meeting beside it, and still they race."""
    beside = {word.read - 16, *(at + 16 for at in word.writes)}
    assert why_not_ordered(instructions(listing), word) == ""
    code = instructions(without(listing, beside))
    assert all(code[at].text == MEETING for at in beside)
    assert "no meeting" in why_not_ordered(code, word)


def test_where_the_reader_meets_nobody_they_race(listing: str, word: Hazard) -> None:
    every = {at for at, found in instructions(listing).items() if found.text == MEETING}
    code = instructions(without(listing, every - {word.read - 16}))
    assert len(every) > 8 and "no meeting" in why_not_ordered(code, word)


@pytest.mark.parametrize("strange", [f"{MEETING}, 0x80", "BAR.SYNC.DEFER_BLOCKING R2, R3", "BSYNC B0"])
def test_code_that_is_not_followed_explains_nothing(listing: str, word: Hazard, strange: str) -> None:
    changed = re.sub(r"\bNOP ;", f"{strange} ;", listing, count=1)
    assert "is not followed" in why_not_ordered(instructions(changed), word)

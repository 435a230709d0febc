"""Racecheck's hazards, and which of them the machine code of the kernel shows to be ordered.

For gl.warp_specialize triton keeps a word at the end of a kernel's shared memory, a byte for each warp of the
partitions. The other warps write into it which partition each of them is to run, all warps of the block meet at
barrier 1, and the warps of the partitions read it. All meet there again when a partition has started and when it has
ended; only then is the word written again, to send the warps on or home. Racecheck reports this read and these writes
as a race, though a barrier without a count of threads waits for every warp that has not ended.

A hazard is explained where, in every build of the kernel that has such accesses at the reported offsets,
- the read is an LDS and every write an STS of that word, by the constants in their addresses, and
- no two threads can come to the read and to a write after equally many meetings at barrier 1, on any paths through
  the code: then a meeting lies between them, after the one and before the other.
Code that cannot be followed, a call for one, leaves a hazard unexplained.
"""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coda_synth.coda_api.generated import Generated

from benchmarks.epilogue import built, disassembled

_READ = re.compile(r"=+ Error: Race reported between Read access at (\w+)\+0x([0-9a-f]+) in \S+")
_WRITE = re.compile(r"=+ +and Write access at (\w+)\+0x([0-9a-f]+) in \S+ \[\d+ hazards?\]")
_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?(.+?)\s*;(.*)|(\.L\w+):")
_LABEL = re.compile(r"\.L_\w+")
_SIZE = 16  # bytes of an instruction
_MEETING = re.compile(r"BAR\.SYNC(\.DEFER_BLOCKING)? 0x1")  # a count of threads would follow
_OTHER_BARRIER = re.compile(r"BAR\.\S+ 0x(?!1\b)[0-9a-f]+\b.*")
_ALWAYS = re.compile(r"BRA `\(\.L_\w+\)|BRX .*")  # another BRA tests a predicate of its own
_JUMPS = {"BRA", "BRX"}
_NOT_FOLLOWED = {"CALL", "RET", "JMP", "JMX", "JMXU", "BRXU", "BSSY", "BSYNC", "BREAK", "RPCMOV", "KILL"}


@dataclass(frozen=True, slots=True)
class Hazard:
    """A read and the writes that are said to race with it, by their offsets in the kernel's code."""

    kernel: str
    read: int
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """guard: the predicate that it runs under, "P1" or "!P1", or ""; to: where it may jump, by offset."""

    guard: str
    text: str
    to: tuple[int, ...]

    @property
    def opcode(self) -> str:
        return re.split(r"[. ]", self.text)[0]


Code = dict[int, Instruction]  # by offset
Place = tuple[int, frozenset[str]]  # an instruction, and the guards of meetings that are known to hold there


def unexplained(lines: Sequence[str], made: Generated) -> tuple[list[str], int]:
    """What racecheck says of a program without the hazards that are explained, and how many these are."""
    left: list[str] = []
    explained = 0
    for finding in _findings(lines):
        found = hazard(finding)
        why = why_not(found, made) if found else "this is not a read of a kernel and its writes"
        explained += not why
        left += [*finding, f"========= not explained: {why}"] if why else []
    return left, explained


def _findings(lines: Sequence[str]) -> Iterator[list[str]]:
    """An empty line ends each."""
    for empty, finding in itertools.groupby(lines, lambda line: not line.strip("= ")):
        if not empty:
            yield list(finding)


def hazard(finding: Sequence[str]) -> Hazard | None:
    """What a finding reports, where it is a read and writes of one kernel and nothing else."""
    read, writes = _READ.fullmatch(finding[0]), [_WRITE.fullmatch(line) for line in finding[1:]]
    offsets = tuple(int(write[2], 16) for write in writes if read and write and write[1] == read[1])
    whole = read and offsets and len(offsets) == len(writes)
    return Hazard(read[1], int(read[2], 16), offsets) if read and whole else None


def why_not(found: Hazard, made: Generated) -> str:
    """Why a hazard is not explained, or ""."""
    fits = False
    for launch in (launch for launch in made.launches if launch.gluon and launch.kernel == found.kernel):
        compiled = built(made, launch)
        try:
            code = instructions(disassembled(compiled))
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            return f"no machine code to read: {error}"
        if not _accesses(code, found):
            continue  # a kernel runs for several sizes, and this build is not the one that was reported
        fits = True
        if not _of_the_word(code, found, compiled.metadata, launch.warps):
            return "these accesses are not to the word that says which partition a warp runs"
        if why := why_not_ordered(code, found):
            return why
    return "" if fits else f"no {found.kernel} of this program reads and writes shared memory at these offsets"


def _accesses(code: Code, found: Hazard) -> bool:
    kinds = {found.read: "LDS", **dict.fromkeys(found.writes, "STS")}
    return all(offset in code and code[offset].opcode == kind for offset, kind in kinds.items())


def _of_the_word(code: Code, found: Hazard, metadata: Any, warps: int) -> bool:
    """A warp adds its number to the address that it reads, and `warps` is the first warp that has a byte."""
    word = range(metadata.shared - (metadata.num_warps - warps), metadata.shared)
    read, *writes = (_constant(code[offset]) for offset in (found.read, *found.writes))
    return read + warps == word.start and all(write in word for write in writes)


def _constant(access: Instruction) -> int:
    """0x19134 of an address [R2+UR27+0x19134]."""
    match = re.search(r"\+0x([0-9a-f]+)\]", access.text)
    return int(match[1], 16) if match else -1


def instructions(listing: str) -> Code:
    """A kernel's, from what nvdisasm prints; raises ValueError."""
    if listing.count(".section\t.text.") != 1:
        raise ValueError("the listing is not of one function")
    labels: dict[str, int] = {}
    parsed: list[re.Match[str]] = []
    for match in filter(None, map(_LINE.match, listing.splitlines())):
        if match[5]:
            labels[match[5]] = _SIZE * len(parsed)
        else:
            parsed.append(match)
    code = {int(m[1], 16): Instruction(m[2] or "", m[3], _targets(m[3] + m[4], labels)) for m in parsed}
    if list(code) != list(range(0, _SIZE * len(parsed), _SIZE)):
        raise ValueError("the listing leaves instructions out")
    return code


def _targets(text: str, labels: dict[str, int]) -> tuple[int, ...]:
    return tuple(labels[label] for label in _LABEL.findall(text) if label in labels)


def why_not_ordered(code: Code, found: Hazard) -> str:
    """Why a meeting may be missing between the read and a write, or "".

    Steps through the code for two threads at once, from meeting to meeting, by every pair of paths.
    """
    if strange := next((at.text for at in code.values() if not _followed(at)), ""):
        return f"{strange!r} is not followed"
    stretch = functools.cache(functools.partial(_stretch, code))
    left: list[tuple[Place, Place]] = [((0, frozenset()), (0, frozenset()))]
    seen, reached = set(left), set[int]()
    while left:
        (passed, after), (others, others_after) = (stretch(*place) for place in left.pop())
        if found.read in passed and not others.isdisjoint(found.writes):
            return "no meeting at barrier 1 lies between the read and a write"
        reached |= passed
        further = set(itertools.product(after, others_after)) - seen
        seen |= further
        left += further
    return "" if reached.issuperset({found.read, *found.writes}) else "no path leads to these accesses"


def _followed(at: Instruction) -> bool:
    if at.opcode == "BAR":
        return bool(_MEETING.fullmatch(at.text) or _OTHER_BARRIER.fullmatch(at.text))
    return at.opcode not in _NOT_FOLLOWED and bool(at.to) == (at.opcode in _JUMPS)


def _stretch(code: Code, start: int, known: frozenset[str]) -> tuple[set[int], set[Place]]:
    """The instructions that a thread may run from one of them up to the next meetings, and the places after these."""
    passed, after = set[int](), set[Place]()
    left: list[Place] = [(start, known)]
    seen = set(left)
    while left:
        offset, known = left.pop()
        at, following = code[offset], offset + _SIZE
        meets = bool(_MEETING.fullmatch(at.text))
        further: set[Place] = set()
        if at.guard and at.guard not in known:
            further.add((following, known | {_opposite(at.guard)} if meets else known))
        if _opposite(at.guard) not in known:
            if meets:
                after.add((following, known | {at.guard} if at.guard else known))
            else:
                passed.add(offset)
                further |= {(place, _still(known, at.text)) for place in _next(at, following)}
        left += further - seen
        seen |= further
    return passed, after


def _next(at: Instruction, following: int) -> tuple[int, ...]:
    if at.opcode == "EXIT":
        return ()
    return at.to if _ALWAYS.fullmatch(at.text) else (*at.to, following)


def _opposite(guard: str) -> str:
    return guard[1:] if guard.startswith("!") else f"!{guard}"


def _still(known: frozenset[str], text: str) -> frozenset[str]:
    """What an instruction leaves known: nothing about a predicate that it names, since it may write it."""
    named = set(re.findall(r"\w+", text))
    return frozenset() if named & {"PR", "UPR"} else frozenset(g for g in known if g.lstrip("!") not in named)

"""Schedules: how a kernel is tiled, apart from what it computes. Validated here, chosen elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint: its legal values, and what it means, for whoever writes one."""

    name: str
    values: tuple[object, ...]
    doc: str


_HINTS = (
    Hint("block_m", (16, 32, 64, 128, 256), "rows of the product's tile"),
    Hint("block_n", (16, 32, 64, 128, 256), "columns of it"),
    Hint("block_k", (16, 32, 64, 128), "depth of one step of the sum"),
    Hint(
        "stages",
        (1, 2, 3, 4, 5, 6, 7, 8),
        "steps on their way at once; they take stages * (block_m + block_n) * block_k * 2 bytes of shared memory."
        " Beside them the epilogue needs room for at least one slice of each tile that it reads and each that it"
        " stores, block_m * slice_n elements (twice that where a tile has twice the columns); more room lets it run"
        " ahead. In the cost model stages hide the latency of loads; more than do so change nothing",
    ),
    Hint("warps", (1, 2, 4, 8, 16), "of a thread block; of both groups in a pingpong"),
    Hint("group_m", (1, 2, 4, 8, 16, 32), "rows of tiles that go together through the L2 cache; not in the cost model"),
    Hint(
        "slice_n",
        (0, 16, 32, 64, 128, 256),
        "columns that the epilogue takes at a time, at most block_n; fewer take fewer registers and less shared memory;"
        " 0: chosen for you. In the cost model each slice costs time in hopper and portable, and in pingpong only where"
        " it spills",
    ),
    Hint(
        "mainloop",
        ("auto", "portable", "hopper", "pingpong"),
        "hopper: all warps share a tile; its epilogue delays the next tile's sum, though not its loads. pingpong: two"
        " groups take tiles by turns, one's epilogue under the other's sum. auto: pingpong; hopper where the epilogue"
        " has more than some 25 instructions an element (some 40 where slices of 32 have room in turns and K is below"
        " 8,192), a pick or a logsumexp, and, where so wide a tile leaves few processors idle and has room, where K is"
        " 8,192 or more, or where it has few and the product is short (below 3e11 multiplications). Portable"
        " elsewhere than on sm_90, and where a row is no multiple of 16 bytes",
    ),
    Hint(
        "split_k",
        (1, 2, 4, 8, 16, 32),
        "pieces of the sum, for a product of few tiles: a second launch adds them up",
    ),
    Hint(
        "cut",
        ("even", "stream"),
        "how a sum in pieces is cut. even: every tile's in split_k. stream: the steps of all tiles, one tile after the"
        " other, in as many equal runs as the device has processors, which end inside tiles; no tile in more than"
        " split_k pieces",
    ),
)
ALLOWED: dict[str, tuple[object, ...]] = {hint.name: hint.values for hint in _HINTS}
ACCUMULATORS = 128  # fp32 values of the product that a thread can hold beside an epilogue
NEEDS = (  # what `mainloop_fault` holds a schedule to, in words
    '`mainloop="hopper"` needs 4 or 8 warps, block_m >= 16 * warps, stages >= 2 and'
    f" block_m * block_n <= {ACCUMULATORS * 32:,} * warps;"
    ' `"pingpong"` needs 8 warps, block_m >= 64, stages >= 2 and'
    f" block_m * block_n <= {ACCUMULATORS * 32 * 4:,}, as 128 x 128 or 64 x 256; both need 16-bit operands"
)


class ScheduleError(ValueError):
    """A schedule that cannot work: what was asked, why not, what would fit."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tile of the product in elements, pipeline stages, warps, tile-order group, epilogue slice in product columns.

    slice_n = 0 lets the lowering choose; slice_n = block_n is an epilogue over the whole tile at once. mainloop: the
    portable Triton one, or Hopper's warp-specialised ones (sm_90, aligned shapes): "hopper", where all warps share a
    tile, or "pingpong", where two groups of four take tiles of 128 x 128 by turns; "auto" lets the lowering choose.
    split_k: pieces of the sum along K, for products of few tiles: one launch, with the mainloop, sums each piece by
    itself; a second one, portable, adds the pieces up in their order and runs the epilogue.
    cut: "even", every tile in split_k pieces, or "stream", at most so many: stream.py has the rule.
    """

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    stages: int = 3
    warps: int = 8
    group_m: int = 8
    slice_n: int = 0
    mainloop: str = "auto"
    split_k: int = 1
    cut: str = "even"

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ScheduleError(
                    f"{name} = {value!r} is not possible; it must be one of {', '.join(map(str, allowed))}"
                )
        if self.slice_n > self.block_n:
            raise ScheduleError(f"slice_n = {self.slice_n} is wider than the tile, block_n = {self.block_n}")

    def with_hints(self, hints: Mapping[str, object]) -> Schedule:
        """This schedule with a kernel's hints in place; raises ScheduleError."""
        unknown = [name for name in hints if name not in ALLOWED]
        if unknown:
            raise ScheduleError(f"{unknown[0]!r} is not a schedule hint; the hints are {', '.join(HINTS)}")
        return replace(self, **hints)  # type: ignore[arg-type]

    def operand_bytes(self, itemsize: int = 2) -> int:
        """Shared memory that the mainloop's stages take."""
        return self.stages * (self.block_m + self.block_n) * self.block_k * itemsize


HINTS = tuple(f.name for f in fields(Schedule))


def hint_table() -> tuple[tuple[str, str, str, str], ...]:
    """Name, legal values, default and meaning of every hint, as texts."""
    plain = Schedule()
    return tuple((h.name, ", ".join(map(str, h.values)), str(getattr(plain, h.name)), h.doc) for h in _HINTS)


def as_hints(schedule: Schedule) -> str:
    """The schedule as @kernel would take it: 'block_m=128, block_n=256, ...'; a sum in one piece is not mentioned."""
    said = {name: getattr(schedule, name) for name in HINTS if name not in ("split_k", "cut") or schedule.split_k > 1}
    return ", ".join(f'{n}="{v}"' if isinstance(v, str) else f"{n}={v}" for n, v in said.items())


def pass_hints(schedule: Schedule) -> str:
    """The same for a kernel without a gemm, which nothing else of it concerns."""
    return f"block_m={schedule.block_m}, block_n={schedule.block_n}, warps={schedule.warps}"


def mainloop_fault(schedule: Schedule) -> str:
    """What a Hopper mainloop lacks under this schedule, with what would fit; "" where it has all that it needs."""
    s, turns = schedule, schedule.mainloop == "pingpong"
    name = "pingpong" if turns else "hopper"
    warps = s.warps // 2 if turns else s.warps
    if s.stages < 2:
        return f"the {name} mainloop needs two stages or more: one is read while the next arrives"
    if warps not in ((4,) if turns else (4, 8)):
        return f"the {name} mainloop has {'8 warps, two groups of 4' if turns else '4 or 8 warps'}; warps = {s.warps}"
    if s.block_m < 16 * warps:
        least = f"block_m of {16 * warps} or more" + ("" if turns or warps == 4 else ", or warps=4 and 64")
        return f"the {name} mainloop gives each warp{' of a group' if turns else ''} 16 rows or more; use {least}"
    if s.block_m * s.block_n > ACCUMULATORS * 32 * warps:
        return _too_many(s, name, warps)
    return ""


def _too_many(s: Schedule, name: str, warps: int) -> str:
    """Of a product that no thread can hold."""
    held, most = s.block_m * s.block_n // (32 * warps), ACCUMULATORS * 32 * warps
    fitting = [f"{m} x {most // m}" for m in (128, 64) if m >= 16 * warps and 64 <= most // m <= 256]
    beside = "" if name == "pingpong" else " with these warps"
    return (
        f"a {name} tile of {s.block_m} x {s.block_n} is {held} fp32 values a thread, and {ACCUMULATORS} fit beside an"
        f" epilogue; {' or '.join(fitting)} fits{beside}"
    )

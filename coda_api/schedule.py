"""Schedules: how a kernel is tiled, apart from what it computes. Validated here, chosen elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

ALLOWED: dict[str, tuple[object, ...]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128),
    "stages": (1, 2, 3, 4, 5, 6, 7, 8),
    "warps": (1, 2, 4, 8, 16),
    "group_m": (1, 2, 4, 8, 16, 32),
    "slice_n": (0, 16, 32, 64, 128, 256),
    "split_k": (1, 2, 4, 8, 16, 32),
    "mainloop": ("auto", "portable", "hopper", "pingpong"),
}


class ScheduleError(ValueError):
    """A schedule that cannot work: what was asked, why not, what would fit."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tile of the product in elements, pipeline stages, warps, tile-order group, epilogue slice in product columns.

    slice_n = 0 lets the lowering choose; slice_n = block_n is an epilogue over the whole tile at once. mainloop: the
    portable Triton one, or Hopper's warp-specialised ones (sm_90, aligned shapes): "hopper", where all warps share a
    tile, or "pingpong", where two groups of four take tiles of 128 x 128 by turns; "auto" lets the lowering choose.
    split_k: pieces of the sum along K, for products of few tiles: one launch sums each piece by itself, a second one
    adds the pieces up in their order and runs the epilogue. Both are portable kernels.
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

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ScheduleError(
                    f"{name} = {value!r} is not possible; it must be one of {', '.join(map(str, allowed))}"
                )
        if self.slice_n > self.block_n:
            raise ScheduleError(f"slice_n = {self.slice_n} is wider than the tile, block_n = {self.block_n}")
        if self.split_k > 1 and self.mainloop not in ("auto", "portable"):
            raise ScheduleError(
                f'split_k = {self.split_k} needs the portable mainloop; with mainloop = "{self.mainloop}" it must be 1'
            )

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

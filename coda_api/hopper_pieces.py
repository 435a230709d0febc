"""The pieces of a product whose sum along K is cut, computed by a Hopper mainloop: the Hopper kernel of a program whose
epilogue stores its accumulator, where an item of work is one piece of one tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda_synth.coda_api.emit_hopper import HopperEmitter
from coda_synth.coda_api.emit_split import PIECES
from coda_synth.coda_api.program import Kernel, Value
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.stream import ALONG_K, PIECE, stream_text
from coda_synth.coda_api.unit_text import TensorInfo, Tensors, UnitText

_OUT = "pieces"


def emit_hopper_pieces(
    name: str,
    source: str,
    kernel: Kernel,
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
    runs: int,
    overlap: bool = False,
) -> UnitText:
    """The Gluon text of the first of two launches; raises LoweringError where a mainloop cannot have this schedule.
    runs: of a stream. Other arguments as for emit_hopper."""
    product = Value("gemm", rows=kernel.rows, cols=kernel.cols)
    unit = replace(kernel, outputs={_OUT: product})
    stored = replace(tensors, form="pointer", outputs={_OUT: TensorInfo((kernel.rows, kernel.cols), "float32")})
    whole = replace(schedule, slice_n=schedule.block_n)  # the accumulator goes straight to memory, in one slice
    even = schedule.cut == "even"
    made = (_HopperPieces if even else _HopperStream)(name, source, unit, unit.outputs, sizes, whole, stored)
    made.runs = runs
    made.described = True  # operands come by TMA; pieces lie one after the other, and a box would reach into the next
    text = made.emit(overlap=overlap)
    params = tuple(replace(p, tensor=PIECES) if p.output else p for p in text.params)
    text = replace(text, params=params, slice_n=0)
    return replace(text, pieces=schedule.split_k) if even else replace(text, grid="runs", runs=runs)


class _HopperPieces(HopperEmitter):
    """Every piece has the same number of steps, so that groups of warps that take turns agree on their stages; those
    that lie past the end of K load zeros."""

    runs: int

    def _tiles(self, body: list[str], alternate: bool = False) -> list[str]:
        first, stride = self._turns(alternate)
        m, n = (self.sizes.text(d).strip("()") for d in (self.kernel.rows, self.kernel.cols))
        return [
            f"tiles_m, tiles_n = gl.cdiv({m}, BLOCK_M), gl.cdiv({n}, BLOCK_N)",
            "tiles = tiles_m * tiles_n",
            f"for work in range({first}, tiles * SPLIT_K, {stride}):",
            "    tile, piece = work % tiles, work // tiles",
            *self._on_tile(body),
        ]

    def _steps(self, length: str) -> list[str]:
        return [*self._loaded_steps(), *self._counted()]

    def _loaded_steps(self) -> list[str]:
        assert self.kernel.gemm is not None
        return [f"steps = gl.cdiv(gl.cdiv({self.sizes.text(self.kernel.gemm.inner)}, BLOCK_K), SPLIT_K)"]

    def _along_k(self, length: str) -> str:
        return "range(piece * steps * BLOCK_K, (piece + 1) * steps * BLOCK_K, BLOCK_K)"

    def _placed(self) -> list[str]:
        m, n = (self.sizes.text(d) for d in (self.kernel.rows, self.kernel.cols))
        return [f"place = {self.slice.output_names[_OUT]} + gl.cast(piece, gl.int64) * {m} * {n}"]

    def _epilogue_text(self) -> str:
        """A slice takes the piece's place for the output."""
        text, out = super()._epilogue_text(), self.slice.output_names[_OUT]
        self.passed = ["place" if name == out else name for name in self.passed]
        return text

    def _constants(self, warps: bool) -> list[str]:
        return [*super()._constants(warps), "SPLIT_K"]

    def _constants_of_tile(self) -> dict[str, int]:
        return {**super()._constants_of_tile(), "SPLIT_K": self.schedule.split_k}


class _HopperStream(_HopperPieces):
    """Runs through the steps of all tiles: whoever counts stages can tell from the run where a tile's begin."""

    def _tiles(self, body: list[str], alternate: bool = False) -> list[str]:
        assert self.kernel.gemm is not None
        dims = (self.kernel.rows, self.kernel.cols, self.kernel.gemm.inner)
        first, stride = ("begin // along + WHICH", ", 2") if alternate else ("begin // along", "")
        return [
            *stream_text(*(self.sizes.text(d) for d in dims)),
            f"for tile in range({first}, gl.cdiv(end, along){stride}):",
            *(f"    {line}" for line in PIECE),
            *self._on_tile(body),
        ]

    def _steps(self, length: str) -> list[str]:
        return ["slice_step = 0"]

    def _loaded_steps(self) -> list[str]:
        return []

    def _held_steps(self) -> list[str]:
        return ["step, steps = max(tile * along - begin, 0), last - first"]

    def _next_steps(self) -> list[str]:
        return []

    def _along_k(self, length: str) -> str:
        return ALONG_K

    def _constants(self, warps: bool) -> list[str]:
        return [*super()._constants(warps), "RUNS"]

    def _constants_of_tile(self) -> dict[str, int]:
        return {**super()._constants_of_tile(), "RUNS": self.runs}

"""A product whose sum along K is cut in pieces, as two Triton functions, for products of few tiles: a persistent GEMM
whose work is one piece of one tile and which leaves every piece's sum in a workspace, and the epilogue, which adds the
pieces up in their order. Nothing is added atomically, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda_synth.coda_api.emit_kernel import KernelEmitter
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.geometry import summed_slice
from coda_synth.coda_api.program import Kernel, Value
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.stream import ALONG_K, PIECE, count_text, stream_text
from coda_synth.coda_api.unit_text import Tensors, UnitParam, UnitText, function

PIECES = "pieces of the product"
"""The workspace [split_k, M, N] in fp32 beside a call's outputs, none of which can have this name."""

_WARPS = 8  # of the epilogue, which mostly waits for memory: four pieces of a slice are on their way at once


def emit_pieces(
    name: str,
    source: str,
    kernel: Kernel,
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
    runs: int,
) -> UnitText:
    """The first launch's function, without an epilogue; raises LoweringError. runs: of a stream. Other arguments as for
    emit_kernel."""
    emitter = _Pieces if schedule.cut == "even" else _StreamedPieces
    made = emitter(name, source, kernel, {}, sizes, schedule, tensors)
    made.runs = runs
    return made.emit()


def emit_sums(
    name: str,
    source: str,
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
    runs: int,
) -> UnitText:
    """The second launch's function: sums of pieces, and the epilogue. Raises LoweringError."""
    sliced = replace(schedule, slice_n=summed_slice(schedule))
    made = _SummedEpilogue(name, source, kernel, live, sizes, sliced, tensors)
    made.runs = runs
    return replace(made.emit(), warps=_WARPS)


class _Pieces(KernelEmitter):
    """The GEMM, without an epilogue; every tile is cut in as many pieces."""

    runs: int

    def emit(self) -> UnitText:
        self.pieces = self.names.new("pieces")
        params = self._params()
        names = [f"{p.name}: tl.constexpr" if p.kind == "constexpr" else p.name for p in params]
        return self._unit(function(self.name, names, self._body(*self._lengths())), params)

    def _lengths(self) -> tuple[str, str, str]:
        assert self.kernel.gemm is not None
        m, n, k = (self.sizes.text(d) for d in (self.kernel.rows, self.kernel.cols, self.kernel.gemm.inner))
        return m, n, k

    def _body(self, m: str, n: str, k: str) -> list[str]:
        return [
            f"tiles_m, tiles_n = tl.cdiv({m.strip('()')}, BLOCK_M), tl.cdiv({n.strip('()')}, BLOCK_N)",
            f"tiles, steps = tiles_m * tiles_n, tl.cdiv({k.strip('()')}, BLOCK_K)",
            "for work in tl.range(tl.program_id(0), tiles * SPLIT_K, tl.num_programs(0), flatten=True):",
            "    tile, piece = work % tiles, work // tiles",
            *self._on_tile(m, n),
        ]

    def _on_tile(self, m: str, n: str) -> list[str]:
        lines = [
            "tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)",
            "row, col = tile_m * BLOCK_M, tile_n * BLOCK_N",
            *self._mainloop(),
            "rows_at, cols_at = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)",
            f"at = (piece * {m} + rows_at).to(tl.int64)[:, None] * {n} + cols_at[None, :]",
            f"tl.store({self.pieces} + at, acc, mask=(rows_at[:, None] < {m}) & (cols_at[None, :] < {n}))",
        ]
        return [f"    {line}" for line in lines]

    def _unit(self, text: str, params: list[UnitParam]) -> UnitText:
        return UnitText(self.name, text, tuple(params), "tiles", pieces=self.schedule.split_k)

    def _along_k(self, length: str) -> str:
        """Whole steps, shared out evenly: the last one of K may be ragged, and a short K leaves pieces empty."""
        first, last = (f"{at} * steps // SPLIT_K * BLOCK_K" for at in ("piece", "(piece + 1)"))
        return f"range({first}, {last}, BLOCK_K)"

    def _operands(self) -> list[UnitParam]:
        return [*super()._operands(), UnitParam(self.pieces, "pointer", PIECES, True)]

    def _constants_of_tile(self) -> dict[str, int]:
        return {**super()._constants_of_tile(), "SPLIT_K": self.schedule.split_k}


class _StreamedPieces(_Pieces):
    """The same with runs through the steps of all tiles."""

    def _body(self, m: str, n: str, k: str) -> list[str]:
        return [
            *stream_text(m, n, k),
            "for tile in range(begin // along, tl.cdiv(end, along)):",
            *(f"    {line}" for line in PIECE),
            *self._on_tile(m, n),
        ]

    def _along_k(self, length: str) -> str:
        return ALONG_K

    def _unit(self, text: str, params: list[UnitParam]) -> UnitText:
        return UnitText(self.name, text, tuple(params), "runs", runs=self.runs)

    def _constants_of_tile(self) -> dict[str, int]:
        return {**super()._constants_of_tile(), "RUNS": self.runs}


class _SummedEpilogue(KernelEmitter):
    """The epilogue over the same tiles as a GEMM's own, whose slices of the product are sums of pieces."""

    runs: int

    def emit(self) -> UnitText:
        self.pieces, self.streamed = self.names.new("pieces"), self.schedule.cut == "stream"
        assert self.kernel.gemm is not None
        if self.streamed and self.geometry.padding:
            columns = self.geometry.padding.columns
            raise LoweringError(
                f'cut="stream" knows no tiles that hold whole groups of {columns} columns; leave it out'
            )
        own = self.kernel.rows.symbols | self.kernel.cols.symbols
        for symbol in self.kernel.gemm.inner.symbols - own if not self.streamed else ():
            self.sizes.used.pop(symbol, None)  # K, unless the epilogue itself asks for it
        return super().emit()

    def _mainloop(self) -> list[str]:
        assert self.kernel.gemm is not None
        return count_text(self.sizes.text(self.kernel.gemm.inner)) if self.streamed else []

    def _split(self) -> tuple[list[str], dict[int, str]]:
        return [], {}

    def _products(self, columns: tuple[int, ...]) -> tuple[list[str], list[str]]:
        m, n, width = self.sizes.text(self.kernel.rows), self.sizes.text(self.kernel.cols), self.geometry.segment_n
        lines, names = [], []
        for column in columns:
            names.append(self.names.new(f"acc_{column}"))
            start = f"col + {column}" if column else "col"
            cols = self.slice.column_text(self.kernel.cols, f"{start} + tl.arange(0, {width})")
            args = f"{self.pieces}, row, {cols}, {m}, {n}"
            some = f"sum_of_some_pieces({args}, count, BLOCK_M)"
            lines.append(f"{names[-1]} = {some if self.streamed else f'sum_of_pieces({args}, BLOCK_M, SPLIT_K)'}")
        return lines, names

    def _operands(self) -> list[UnitParam]:
        return [UnitParam(self.pieces, "pointer", PIECES, True)]

    def _constants_of_tile(self) -> dict[str, int]:
        constants = {**super()._constants_of_tile(), "SPLIT_K": self.schedule.split_k}
        depth = constants.pop("BLOCK_K")
        return {**constants, "RUNS": self.runs, "DEPTH": depth} if self.streamed else constants

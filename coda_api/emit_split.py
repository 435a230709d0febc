"""A product whose sum along K is cut in pieces, as two Triton functions, for products of few tiles: a persistent GEMM
whose work is one piece of one tile and which leaves every piece's sum in a workspace, and the epilogue, which adds the
pieces up in their order. Nothing is added atomically, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coda_synth.coda_api.emit_kernel import KernelEmitter
from coda_synth.coda_api.geometry import summed_slice
from coda_synth.coda_api.program import Kernel, Value
from coda_synth.coda_api.schedule import Schedule
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
) -> UnitText:
    """The first launch's function, without an epilogue; arguments as for emit_kernel. Raises LoweringError."""
    return _Pieces(name, source, kernel, {}, sizes, schedule, tensors).emit()


def emit_sums(
    name: str,
    source: str,
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
) -> UnitText:
    """The second launch's function: sums of pieces, and the epilogue. Raises LoweringError."""
    sliced = replace(schedule, slice_n=summed_slice(schedule))
    return replace(_SummedEpilogue(name, source, kernel, live, sizes, sliced, tensors).emit(), warps=_WARPS)


class _Pieces(KernelEmitter):
    """The GEMM, without an epilogue."""

    def emit(self) -> UnitText:
        self.pieces = self.names.new("pieces")
        assert self.kernel.gemm is not None
        dims = (self.kernel.rows, self.kernel.cols, self.kernel.gemm.inner)
        m, n, k = (self.sizes.text(d) for d in dims)
        loop = [
            "tile, piece = work % tiles, work // tiles",
            "tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)",
            "row, col = tile_m * BLOCK_M, tile_n * BLOCK_N",
            *self._mainloop(),
            "rows_at, cols_at = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)",
            f"at = (piece * {m} + rows_at).to(tl.int64)[:, None] * {n} + cols_at[None, :]",
            f"tl.store({self.pieces} + at, acc, mask=(rows_at[:, None] < {m}) & (cols_at[None, :] < {n}))",
        ]
        body = [
            f"tiles_m, tiles_n = tl.cdiv({m.strip('()')}, BLOCK_M), tl.cdiv({n.strip('()')}, BLOCK_N)",
            f"tiles, steps = tiles_m * tiles_n, tl.cdiv({k.strip('()')}, BLOCK_K)",
            "for work in tl.range(tl.program_id(0), tiles * SPLIT_K, tl.num_programs(0), flatten=True):",
            *(f"    {line}" for line in loop),
        ]
        params = self._params()
        names = [f"{p.name}: tl.constexpr" if p.kind == "constexpr" else p.name for p in params]
        text = function(self.name, names, body)
        return UnitText(self.name, text, tuple(params), "tiles", pieces=self.schedule.split_k)

    def _along_k(self, length: str) -> str:
        """Whole steps, shared out evenly: the last one of K may be ragged, and a short K leaves pieces empty."""
        first, last = (f"{at} * steps // SPLIT_K * BLOCK_K" for at in ("piece", "(piece + 1)"))
        return f"range({first}, {last}, BLOCK_K)"

    def _operands(self) -> list[UnitParam]:
        return [*super()._operands(), UnitParam(self.pieces, "pointer", PIECES, True)]

    def _constants_of_tile(self) -> dict[str, int]:
        return {**super()._constants_of_tile(), "SPLIT_K": self.schedule.split_k}


class _SummedEpilogue(KernelEmitter):
    """The epilogue over the same tiles as a GEMM's own, whose slices of the product are sums of pieces."""

    def emit(self) -> UnitText:
        self.pieces = self.names.new("pieces")
        assert self.kernel.gemm is not None
        for symbol in self.kernel.gemm.inner.symbols - self.kernel.rows.symbols - self.kernel.cols.symbols:
            self.sizes.used.pop(symbol, None)  # K, unless the epilogue itself asks for it
        return super().emit()

    def _mainloop(self) -> list[str]:
        return []

    def _split(self) -> tuple[list[str], dict[int, str]]:
        return [], {}

    def _products(self, columns: tuple[int, ...]) -> tuple[list[str], list[str]]:
        m, n, width = self.sizes.text(self.kernel.rows), self.sizes.text(self.kernel.cols), self.geometry.segment_n
        lines, names = [], []
        for column in columns:
            names.append(self.names.new(f"acc_{column}"))
            start = f"col + {column}" if column else "col"
            cols = self.slice.column_text(self.kernel.cols, f"{start} + tl.arange(0, {width})")
            args = f"{self.pieces}, row, {cols}, {m}, {n}, BLOCK_M, SPLIT_K"
            lines.append(f"{names[-1]} = sum_of_pieces({args})")
        return lines, names

    def _operands(self) -> list[UnitParam]:
        return [UnitParam(self.pieces, "pointer", PIECES, True)]

    def _constants_of_tile(self) -> dict[str, int]:
        constants = {**super()._constants_of_tile(), "SPLIT_K": self.schedule.split_k}
        return {name: value for name, value in constants.items() if name != "BLOCK_K"}

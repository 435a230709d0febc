"""What a Hopper kernel needs before its text can be written: whether it can be, how shared memory is shared out between
operand stages and the epilogue's rings, and where a slice's tiles lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_kernel import KernelEmitter
from coda_synth.coda_api.expressions import LoweringError
from coda_synth.coda_api.hopper_epilogue import HopperEpilogue, HopperSlice
from coda_synth.coda_api.schedule import mainloop_fault
from coda_synth.coda_api.unit_text import itemsize

SHARED_BYTES = 232448 - 2048  # of one block on sm_90, less room for barriers and reductions


class DoesNotFit(LoweringError):
    """The epilogue's tiles need more shared memory than the operands leave."""


class HopperPlan(KernelEmitter):
    """The part of the emitter that decides; groups: consumers that take tiles by turns, each of `warps` warps."""

    epilogue_type = HopperEpilogue
    epilogue: HopperEpilogue
    slice: HopperSlice
    groups = 1
    warps = 8
    loads: dict[str, int]  # tiles that come through a ring: columns of a box
    stores: dict[str, int]  # outputs that leave through a ring of their own
    pairs: dict[str, str]  # outputs that are staged where a tile was read
    borrowed: dict[str, str]  # outputs with one slot of their own that later take a tile's, whose store has ended
    in_slots: int
    out_slots: int

    def _refuse(self) -> None:
        if self.geometry.padding:
            raise LoweringError(f"the Hopper kernel has no groups of {self.geometry.padding.columns} columns")
        if fault := mainloop_fault(self.schedule):
            raise LoweringError(fault)
        gemm = self.kernel.gemm
        if gemm and any(itemsize(self.tensors.params[n].dtype) != 2 for n in (gemm.a, gemm.b)):
            raise LoweringError("the Hopper kernel multiplies 16-bit operands")

    # -- shared memory

    def _bytes(self, widths: Mapping[str, int]) -> int:
        rows = self.schedule.block_m * self.geometry.segments * self.groups
        return sum(rows * w * self._itemsize(t) for t, w in widths.items())

    def _parts(self) -> dict[str, list[int]]:
        """Buffers in which warps leave partials: slots, and the box of one."""
        found = self.epilogue.parts.items()
        return {parts: [count * self.groups, self.warps, width] for parts, (count, width) in found}

    def _itemsize(self, text: str) -> int:
        by_text = {self.slice.param_names[n]: i for n, i in self.tensors.params.items()}
        by_text |= {self.slice.output_names[n]: i for n, i in self.tensors.outputs.items()}
        return itemsize(by_text[text].dtype)

    def _budget(self, slots: int | None) -> None:
        """Shares out what the operands leave: `slots` of the loader's rings, or one for every slice of a tile (None),
        and rings for outputs. Where every slice has a slot of its own, outputs that match a tile which was read may be
        staged in it. Where nothing is read, stores are all that a slice waits for: None then asks for two slots of
        each output. Raises DoesNotFit."""
        load, operands = self._bytes(self.loads), self.schedule.operand_bytes()
        parts = sum(4 * prod(shape) for shape in self._parts().values())
        found = self.epilogue.pairs
        self.in_slots = slots or self.geometry.slices
        out_slots = (2, 1) if self.loads or slots else (2,)
        for pairs in (found, {}) if slots is None and found else ({},):
            own = {t: w for t, w in self.stores.items() if t not in pairs}
            for self.out_slots in out_slots:
                if operands + parts + self.in_slots * load + self.out_slots * self._bytes(own) <= SHARED_BYTES:
                    self.pairs, self.stores = pairs, own
                    return
        tiles = load + parts + self._bytes(own)
        s = self.schedule
        raise DoesNotFit(
            f"{tiles:,} bytes of epilogue tiles, at slice_n={s.slice_n}, do not fit beside {operands:,} bytes of"
            f" operands, at stages={s.stages}; fewer stages, a smaller tile or a narrower slice_n makes room"
        )

    def _borrowed(self) -> dict[str, str]:
        """Where there is room for one slot alone, the third slice and later ones need not wait for the second's stores:
        a tile that was read and staged two slices before has left its slot, which stays the consumer's until the next
        mainloop. All such outputs find one, or none borrows."""
        found: dict[str, str] = {}
        if self.out_slots > 1 or not self.pairs or self.in_slots < 3:
            return found
        for output in self.stores:
            free = [t for t in self.loads if t not in found.values() and self._box(t) == self._box(output)]
            if not free:
                return {}
            found[output] = free[0]
        return found

    def _box(self, text: str) -> tuple[int, int, str]:
        """What a slot of this tile or output holds: segments, their columns, and the dtype."""
        params = {self.slice.param_names[n]: info for n, info in self.tensors.params.items()}
        info = params.get(text) or next(
            i for n, i in self.tensors.outputs.items() if self.slice.output_names[n] == text
        )
        return self.geometry.segments_of(info.dims[1]), self.slice.blocks[text], info.dtype

    @property
    def _ahead(self) -> bool:
        """Whether all slices of a tile have slots, so that the warp that brings the operands never waits with them for
        an epilogue. Else another warp, the fetcher, brings the epilogue's tiles."""
        return self.in_slots >= self.geometry.slices

    def _tiles(self, body: list[str], alternate: bool = False) -> list[str]:
        """The persistent loop; `alternate`: over every other tile of this program, from its WHICH-th on."""
        first, stride = self._turns(alternate)
        m, n = (self.sizes.text(d).strip("()") for d in (self.kernel.rows, self.kernel.cols))
        return [
            f"tiles_m, tiles_n = gl.cdiv({m}, BLOCK_M), gl.cdiv({n}, BLOCK_N)",
            f"for tile in range({first}, tiles_m * tiles_n, {stride}):",
            *self._on_tile(body),
        ]

    @staticmethod
    def _turns(alternate: bool) -> tuple[str, str]:
        """The first item of work of a program, or of one of its groups, and how far away the next one is."""
        first, stride = "gl.program_id(0)", "gl.num_programs(0)"
        return (f"{first} + WHICH * {stride}", f"2 * {stride}") if alternate else (first, stride)

    @staticmethod
    def _on_tile(body: list[str]) -> list[str]:
        """What is done for one tile, inside a loop."""
        return [
            "    tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)",
            "    row, col = tile_m * BLOCK_M, tile_n * BLOCK_N",
            *(f"    {line}" for line in body),
        ]

    def _size_names(self) -> list[str]:
        return [p.name for p in self.sizes.params()]

    def _signature(self, names: list[str]) -> list[str]:
        constants = {p.name for p in self.sizes.params() if p.kind == "constexpr"}
        constants |= {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "STAGES", "WARPS", "WHICH", "WHOLE_M", "WHOLE_N"}
        constants |= {"WAITS_FIRST", "RELEASES", "WAITS_LAST", "SPLIT_K", "RUNS"}
        return [f"{n}: gl.constexpr" if n in constants else n for n in names]

    def _cols_of(self, text: str) -> Dim:
        name = next(n for n, t in self.slice.param_names.items() if t == text)
        return self.tensors.params[name].dims[1]

    def _segments_of(self, text: str) -> int:
        return self.geometry.segments_of(self._cols_of(text))

    def _bytes_of_slice(self) -> int:
        m = self.schedule.block_m
        return sum(m * w * self._segments_of(t) * self._itemsize(t) for t, w in self.loads.items())

    def _start_of(self, text: str, columns: tuple[int, ...], segment: int) -> str:
        start = self.slice.start(self._cols_of(text), segment)
        return re.sub(r"\bcol\b", f"(col + {columns[0]})" if columns[0] else "col", start)

    def _store_segments(self, text: str) -> int:
        name = next(n for n, t in self.slice.output_names.items() if t == text)
        return self.geometry.segments_of(self.tensors.outputs[name].dims[1])

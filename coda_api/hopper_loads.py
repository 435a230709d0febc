"""The warps of a Hopper kernel that only load: operands, and the tiles that the epilogue reads."""

from __future__ import annotations

from coda_synth.coda_api.hopper_plan import HopperPlan
from coda_synth.coda_api.unit_text import function, itemsize


class HopperLoads(HopperPlan):
    """Writes these warps' functions; `loads` are the tiles that come through a ring."""

    def _loader_text(self) -> str:
        gemm = self.kernel.gemm
        assert gemm is not None
        a, b = self.slice.param_names[gemm.a], self.slice.param_names[gemm.b]
        size = itemsize(self.tensors.params[gemm.a].dtype)
        at_a = "[k, row]" if gemm.a_transposed else "[row, k]"
        at_b = "[col, k]" if gemm.b_transposed else "[k, col]"
        body = [
            f"for k in {self._along_k(self.sizes.text(gemm.inner))}:",
            "    stage = step % STAGES",
            "    mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)",
            f"    mbarrier.expect(full.index(stage), (BLOCK_M + BLOCK_N) * BLOCK_K * {size})",
            f"    tma_load({a}, {at_a}, full.index(stage), {a}_stages.index(stage))",
            f"    tma_load({b}, {at_b}, full.index(stage), {b}_stages.index(stage))",
            "    step += 1",
        ]
        head = ["step = 0", *self._loaded_steps()]
        if self.loads and not self._fetches():
            body, head = [*body, *self._tile_loads()], [*head, self._first_slice()]
        return function(f"{self.name}_loader", self._signature(self._loader_names()), [*head, *self._tiles(body)])

    def _loaded_steps(self) -> list[str]:
        """What the loader must know of the steps along K, beside K itself."""
        return []

    def _fetches(self) -> bool:
        """Whether a warp of its own brings the epilogue's tiles."""
        return bool(self.loads) and not self._ahead

    def _fetcher_text(self) -> str:
        lines = [self._first_slice(), *self._tiles(self._tile_loads())]
        return function(f"{self.name}_fetcher", self._signature(self._fetcher_names()), lines)

    def _first_slice(self) -> str:
        return "slice_step = 0" if self.groups == 1 else "turn_step = 0"

    def _loader_names(self) -> list[str]:
        gemm = self.kernel.gemm
        assert gemm is not None
        a, b = self.slice.param_names[gemm.a], self.slice.param_names[gemm.b]
        rings = self._rings() if self.loads and not self._fetches() else []
        names = [a, b, f"{a}_stages", f"{b}_stages", "full", "empty", *rings]
        return [*names, *self._size_names(), *self._constants(False)]

    def _fetcher_names(self) -> list[str]:
        return [*self._rings(), *self._size_names(), "BLOCK_M", "BLOCK_N", "GROUP_M"]

    def _rings(self) -> list[str]:
        return [*(n for t in self.loads for n in (t, f"{t}_ring")), "loaded", "freed"]

    def _constants(self, warps: bool) -> list[str]:
        return ["BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "STAGES", *(["WARPS"] if warps else [])]

    def _tile_loads(self) -> list[str]:
        """The loader's copies of the epilogue's tiles, a slot for each slice, while the mainloop still runs."""
        if not self.loads:
            return []
        slices, base = self.geometry.slices, ""
        lines = []
        if self.groups > 1:  # the consumers take tiles by turns, and each has its own part of the rings
            lines, base = [f"slice_step = turn_step // 2 * {slices}"], f"turn_step % 2 * {self.in_slots} + "
        for i, columns in enumerate(self.geometry.offsets()):
            step = f"(slice_step + {i})" if i else "slice_step"
            lines += [
                f"slot = {base}{step} % {self.in_slots}",
                f"mbarrier.wait(freed.index(slot), (({step} // {self.in_slots}) & 1) ^ 1)",
                f"mbarrier.expect(loaded.index(slot), {self._bytes_of_slice()})",
            ]
            for text in self.loads:
                count = self._segments_of(text)
                for segment in range(count):
                    at = f"slot * {count} + {segment}" if count > 1 else "slot"
                    lines.append(
                        f"tma_load({text}, [row, {self._start_of(text, columns, segment)}], "
                        f"loaded.index(slot), {text}_ring.index({at}))"
                    )
        return [*lines, f"slice_step += {slices}" if self.groups == 1 else "turn_step += 1"]

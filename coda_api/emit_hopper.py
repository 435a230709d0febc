"""One kernel for Hopper, in Gluon: a loader warp brings operands and the epilogue's tiles by TMA into rings of shared
memory, while consumer warps run wgmma and then the epilogue in slices whose stores overlap the next slice.

The epilogue is the portable one's text in Gluon's dialect; only where tiles come from and go to differs. A program that
needs a word without a Hopper spelling raises LoweringError, and the portable kernel is used instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from coda_synth.coda_api.gluon_text import gluon
from coda_synth.coda_api.hopper_loads import HopperLoads
from coda_synth.coda_api.hopper_plan import DoesNotFit
from coda_synth.coda_api.program import Form, Kernel, Value
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.unit_text import Tensors, UnitParam, UnitText, call_text, function


def emit_hopper(
    name: str,
    source: str,
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
    overlap: bool = False,
) -> UnitText:
    """The Gluon text of a kernel; raises LoweringError where it has none. Arguments as for emit_kernel.

    overlap: whether launches of it may overlap with others; three parameters, WAITS_FIRST, RELEASES and
    WAITS_LAST, then say how.

    A schedule without a slice gets the widest with which the loader can bring a whole tile's epilogue ahead of time, or
    else the widest that fits at all. In turns it gets a narrow one, whose stores spread under the other group's sum.
    """
    running = any(v.form in (Form.PARTIAL, Form.PICK) for v in live.values())  # states take registers too
    shared = (64, 32) if running else (128, 64, 32)
    widths = (schedule.slice_n,) if schedule.slice_n else (32, 16) if schedule.mainloop == "pingpong" else shared
    tried = [replace(schedule, slice_n=min(n, schedule.block_n)) for n in widths]
    for slots, one in [*((None, one) for one in tried), *((n, one) for one in tried for n in (2, 1))]:
        try:
            return HopperEmitter(name, source, kernel, live, sizes, one, tensors).emit(slots, overlap)
        except DoesNotFit as error:
            last = error
    raise last


class HopperEmitter(HopperLoads):
    def emit(self, slots: int | None = None, overlap: bool = False) -> UnitText:
        """slots: of the loader's rings, None for one for each slice of a tile; raises DoesNotFit."""
        self.overlap = overlap
        self.groups = 2 if self.schedule.mainloop == "pingpong" else 1
        self.warps = self.schedule.warps // self.groups
        self._refuse()
        self.epilogue.groups = self.groups
        self.epilogue.emit()
        self.loads = dict(self.slice.rings)
        self.stores = {t: w for t, w in self.slice.blocks.items() if t not in self.loads}
        self._budget(slots)
        self.borrowed = self._borrowed()
        fetcher = [self._fetcher_text()] if self._fetches() else []
        parts = [self._epilogue_text(), self._loader_text(), *fetcher, self._consumer_text(), self._kernel_text()]
        text = "\n\n".join(gluon(p) for p in parts)
        width = self.geometry.slice_n
        return UnitText(self.name, text, tuple(self.params), "tiles", gluon=True, warps=self.warps, slice_n=width)

    # -- texts

    def _epilogue_text(self) -> str:
        self._inner_name = f"{self.name}_epilogue"
        extra = [f"{t}_ring" for t in (*self.loads, *self.stores)]
        extra += [*(["loaded", "freed"] if self.loads else []), *self.epilogue.parts]
        extra += [*(["INDEX"] if self._indexed else []), *(["WHICH"] if self.groups > 1 else [])]
        lines = self.slice.inner.lines
        lines[:] = [self._in_its_ring(line) for line in [*self._slots(), *self._given_back(lines), *self._staging()]]
        params = ["step", *(f"{n}: gl.constexpr" if n in ("INDEX", "WHICH") else n for n in extra)]
        text, self.passed = self.epilogue.function_text(self._inner_name, params)
        self.extra = extra
        return text

    @property
    def _indexed(self) -> bool:
        """Whether a slice's number in its tile tells its slot."""
        return bool(self.loads) and self.in_slots == self.geometry.slices

    def _slots(self) -> list[str]:
        """A slice's beginning: which slots are its own, and the wait for what is loaded into them."""
        lines = [f"layout: gl.constexpr = {self.slice.products[0]}.type.layout"]
        base = "" if self.groups == 1 else f"WHICH * {self.in_slots} + "
        if self.loads:
            lines.append(f"slot = {base}INDEX" if self._indexed else f"slot = {base}step % {self.in_slots}")
            lines.append(f"mbarrier.wait(loaded.index(slot), (step // {self.in_slots}) & 1)")
        own = "" if self.groups == 1 else f"WHICH * {self.out_slots} + "
        if self.borrowed:
            lines.append(f"out_slot = {'0' if self.groups == 1 else 'WHICH'} if INDEX < 2 else slot - 2")
            lines += [f"{t}_or_{o}_ring = {o}_ring if INDEX < 2 else {t}_ring" for o, t in self.borrowed.items()]
        elif self.stores:
            lines.append(f"out_slot = {own}step % {self.out_slots}")
        return lines

    def _given_back(self, lines: list[str]) -> list[str]:
        """With slots in which nothing is staged going back to the loader as soon as they have been read. Reads may be
        under way until a fence: a barrier alone does not keep the next copy from overtaking them."""
        if not self.loads or self.pairs:
            return lines
        last = max(i for i, line in enumerate(lines) if "_ring.index(slot" in line)
        back = ["fence_async_shared()", "mbarrier.arrive(freed.index(slot), count=1)"]
        return [*lines[: last + 1], *back, *lines[last + 1 :]]

    def _staging(self) -> list[str]:
        """A slice's end. Outputs with a ring of their own are copied first, so that the wait for their slot need not
        wait for the others' stores. Where it waits for the slice before's, they are written last: the assembler moves a
        wait to the slice's beginning, unless a write of what was computed stands before it."""
        staged = sorted(self.epilogue.staged, key=lambda one: one.pointer in self.pairs)
        first = [*self.epilogue.left, *(one.write for one in staged if one.pointer in self.pairs)]
        in_place = sum(one.pointer in self.pairs for one in staged)
        writes = [one.write for one in staged if one.pointer not in self.pairs]
        if self.borrowed:
            writes = [f"tma.store_wait({in_place} if INDEX == 1 else {len(staged)})", *writes]
        elif self.stores:
            writes = [f"tma.store_wait({(self.out_slots - 1) * len(staged) + in_place})", *writes]
        lines = [*first, *writes] if self.out_slots == 1 else [*writes, *first]
        lines += ["fence_async_shared()", *(one.copy for one in staged)] if staged else []
        return [*lines, *self.epilogue.gathered]

    def _in_its_ring(self, line: str) -> str:
        for output, read in self.pairs.items():
            line = re.sub(rf"\b{output}_ring\.index\(out_slot", f"{read}_ring.index(slot", line)
        for output, read in self.borrowed.items():
            line = line.replace(f"{output}_ring.index(out_slot", f"{read}_or_{output}_ring.index(out_slot")
        return line

    def _consumer_text(self) -> str:
        gemm = self.kernel.gemm
        assert gemm is not None
        a, b = (f"{self.slice.param_names[n]}_stages.index(stage)" for n in (gemm.a, gemm.b))
        a = f"{a}.permute((1, 0))" if gemm.a_transposed else a
        b = f"{b}.permute((1, 0))" if gemm.b_transposed else b
        states = [n for state in self.epilogue.states.values() for n in state]
        split, _ = self._split()
        first = f"acc_{self.geometry.offsets()[0][0]}"
        rows = ["rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))"]
        outer = self.slice.outer.lines
        body = [
            *(rows + outer if self._rows() else []),
            *self._held_steps(),
            *self._awaits_turn(),
            "stage = step % STAGES",
            "mbarrier.wait(full.index(stage), (step // STAGES) & 1)",
            f"acc = warpgroup_mma({a}, {b}, warpgroup_mma_init(zero), use_acc=False, is_async=True)",
            "acc = warpgroup_mma_wait(1, deps=(acc,))",
            *self._released(),
            "for k in range(1, steps):",
            "    stage = (step + k) % STAGES",
            "    mbarrier.wait(full.index(stage), ((step + k) // STAGES) & 1)",
            f"    acc = warpgroup_mma({a}, {b}, acc, is_async=True)",
            "    acc = warpgroup_mma_wait(1, deps=(acc,))",
            "    mbarrier.arrive(empty.index((step + k - 1) % STAGES), count=1)",
            *(["mbarrier.arrive(turn.index(1 - WHICH), count=1)"] if self.groups > 1 else []),
            "acc = warpgroup_mma_wait(0, deps=(acc,))",
            "mbarrier.arrive(empty.index((step + steps - 1) % STAGES), count=1)",
            *self._next_steps(),
            *(
                f"{n} = gl.full((BLOCK_M,), {self._neutral(n)}, gl.float32, layout=gl.SliceLayout(1, layout))"
                for n in states
            ),
            *self._placed(),
            *self._hopper_slices(states),
            f"slice_step += {self.geometry.slices}",
            *self._row_stores(),
        ]
        head = [
            "accumulator: gl.constexpr = gl.NVMMADistributedLayout(",
            "    version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_N, 16]",
            ")",
            "zero = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, accumulator)",
            *self._layout_of_slices(split, first),
            *self._steps(self.sizes.text(gemm.inner)),
        ]
        tail = ["tma.store_wait(0)"] if self.stores or self.pairs else []
        names = self._consumer_names()
        return function(
            f"{self.name}_consumer", self._signature(names), [*head, *self._tiles(body, self.groups > 1), *tail]
        )

    def _steps(self, length: str) -> list[str]:
        """How many steps along K a tile takes, and where a consumer begins to count."""
        return [f"steps = gl.cdiv({length}, BLOCK_K)", *self._counted()]

    def _counted(self) -> list[str]:
        return ["step, slice_step = 0, 0" if self.groups == 1 else "step, slice_step = WHICH * steps, 0"]

    def _next_steps(self) -> list[str]:
        """The count for the next tile: another group's lies between."""
        return ["step += steps" if self.groups == 1 else "step += 2 * steps"]

    def _held_steps(self) -> list[str]:
        """Of a tile, where it takes other steps than the ones before it."""
        return []

    def _placed(self) -> list[str]:
        """What a tile's slices are told of it, beside its row and column."""
        return []

    def _awaits_turn(self) -> list[str]:
        """Mainloops alternate, so that one group's epilogue runs under the other's."""
        if self.groups == 1:
            return []
        return [f"mbarrier.wait(turn.index(WHICH), ((slice_step // {self.geometry.slices}) & 1) ^ (1 - WHICH))"]

    def _released(self) -> list[str]:
        """Slots in which outputs were staged go back to the loader once the stores have read them: by now they have."""
        if not self.pairs:
            return []
        return [
            "if slice_step > 0:",
            "    tma.store_wait(0)",
            f"    for i in gl.static_range({self.in_slots}):",
            f"        mbarrier.arrive(freed.index({self._own_slot('i')}), count=1)",
        ]

    def _own_slot(self, slot: str) -> str:
        return slot if self.groups == 1 else f"WHICH * {self.in_slots} + {slot}"

    @staticmethod
    def _layout_of_slices(split: list[str], first: str) -> list[str]:
        """The layout that slices of the accumulator have, from a split of zeros that nothing else uses."""
        if not split:
            return ["layout: gl.constexpr = accumulator"]
        renamed = [re.sub(r"\bacc\b", "zero", re.sub(r"\bacc_", "zero_", line)) for line in split]
        return [*renamed, f"layout: gl.constexpr = {first.replace('acc', 'zero')}.type.layout"]

    def _hopper_slices(self, states: list[str]) -> list[str]:
        lines, blocks = self._split()
        result = f"{', '.join(states)} = " if states else ""
        for i, columns in enumerate(self.geometry.offsets()):
            products = [blocks[c] for c in columns]
            start = f"col + {columns[0]}" if columns[0] else "col"
            step = f"slice_step + {i}" if i else "slice_step"
            passed = [str(self.geometry.segment_n) if p == "SLICE" else p for p in self.passed]
            extra = [str(i) if n == "INDEX" else n for n in self.extra]
            call = call_text(self._inner_name, [*products, *states, step, *extra, "row", start, *passed])
            lines.extend(f"{result}{call}".split("\n"))
        return lines

    def _consumer_names(self) -> list[str]:
        gemm = self.kernel.gemm
        assert gemm is not None
        a, b = self.slice.param_names[gemm.a], self.slice.param_names[gemm.b]
        rest = [p.name for p in self._memory_params() if p.name not in (a, b, *self.loads)]
        turns = ["WHICH", "turn"] if self.groups > 1 else []
        return [
            *turns,
            f"{a}_stages",
            f"{b}_stages",
            "full",
            "empty",
            *(n for n in self.extra if n not in ("INDEX", "WHICH")),
            *rest,
            *self._size_names(),
            *self._constants(True),
            *self._wholes(),
        ]

    def _wholes(self) -> list[str]:
        """The constants that free the epilogue of its masks, of those that it has."""
        return [name for name in ("WHOLE_M", "WHOLE_N") if name in self.passed]

    def _memory_params(self) -> list[UnitParam]:
        return [p for p in self._params() if p.kind in ("pointer", "descriptor", "scalar")]

    def _kernel_text(self) -> str:
        gemm = self.kernel.gemm
        assert gemm is not None
        a, b = self.slice.param_names[gemm.a], self.slice.param_names[gemm.b]
        boxes = {p.name: p for p in self._params() if p.kind == "descriptor"}
        lines = []
        for text in (a, b):
            box = ", ".join(str(n) for n in boxes[text].block)
            lines.append(f"{text}_stages = gl.allocate_shared_memory({text}.dtype, [STAGES, {box}], {text}.layout)")
        for text, slots in [*((t, self.in_slots) for t in self.loads), *((t, self.out_slots) for t in self.stores)]:
            count = self._segments_of(text) if text in self.loads else self._store_segments(text)
            box = ", ".join(str(n) for n in boxes[text].block)
            whole = f"[{slots * count * self.groups}, {box}]"
            lines.append(f"{text}_ring = gl.allocate_shared_memory({text}.dtype, {whole}, {text}.layout)")
        rows = "gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])"
        lines += [f"{n} = gl.allocate_shared_memory(gl.float32, {box}, {rows})" for n, box in self._parts().items()]
        lines += self._barriers("full", "empty", count="STAGES")
        lines += self._barriers("loaded", "freed", count=str(self.in_slots * self.groups)) if self.loads else []
        lines += self._barriers("turn", count="2") if self.groups > 1 else []
        lines += self._overlapping(self._partitions()) if self.overlap else self._partitions()
        s = self.schedule
        base = [p for p in self._params() if p.name not in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")]
        values: dict[str, object] = {
            "BLOCK_M": s.block_m,
            "BLOCK_N": s.block_n,
            "BLOCK_K": s.block_k,
            "GROUP_M": s.group_m,
            "STAGES": s.stages,
            "WARPS": self.warps,
        }
        values |= dict.fromkeys(("WAITS_FIRST", "RELEASES", "WAITS_LAST"), False) if self.overlap else {}
        lengths = {"WHOLE_M": (self.kernel.rows, s.block_m), "WHOLE_N": (self.kernel.cols, s.block_n)}
        masks = [UnitParam(n, "whole", dim=lengths[n][0], value=lengths[n][1]) for n in self._wholes()]
        self.params = [*base, *(UnitParam(n, "constexpr", value=v) for n, v in values.items()), *masks]
        return function(self.name, self._signature([p.name for p in self.params]), lines)

    @staticmethod
    def _overlapping(partitions: list[str]) -> list[str]:
        """Waits and releases stand around the partitions: one thread's wait is the block's, since the others start
        after it, or the block ends after it. Barriers and memory have been made ready by then."""
        before = ["if WAITS_FIRST:", "    gdc_wait()", "if RELEASES:", "    gdc_launch_dependents()"]
        return [*before, *partitions, "if WAITS_LAST:", "    gdc_wait()"]

    def _partitions(self) -> list[str]:
        """Who runs: the consumers, which own the kernel's warps, then one or two loading warps with few registers."""
        names = self._consumer_names()
        roles = [("consumer", [str(which) if n == "WHICH" else n for n in names]) for which in range(self.groups)]
        roles.append(("loader", self._loader_names()))
        if self._fetches():
            roles.append(("fetcher", self._fetcher_names()))
        others = [(4, 240)] * (self.groups - 1) + [(1, 24)] * (len(roles) - self.groups)
        warps, registers = (str(list(of)) for of in zip(*others, strict=True))
        lines = [f"        ({self.name}_{role}, ({', '.join(args)}))," for role, args in roles]
        return ["gl.warp_specialize(", "    [", *lines, "    ],", f"    {warps},", f"    {registers},", ")"]

    @staticmethod
    def _barriers(*names: str, count: str) -> list[str]:
        lines = [f"{n} = gl.allocate_shared_memory(gl.int64, [{count}, 1], mbarrier.MBarrierLayout())" for n in names]
        lines.append(f"for i in gl.static_range({count}):")
        return lines + [f"    mbarrier.init({n}.index(i), count=1)" for n in names]

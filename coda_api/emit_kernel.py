"""One kernel as Triton text: a persistent loop over tiles, the mainloop, and the epilogue in column slices. Without a
product there is no loop: a program for each tile."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_epilogue import STATES, Epilogue
from coda_synth.coda_api.emit_slice import SliceValues
from coda_synth.coda_api.geometry import geometry
from coda_synth.coda_api.groups import column_ratio
from coda_synth.coda_api.program import Form, Gemm, Kernel, Value, walk
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.storage import accumulated_into
from coda_synth.coda_api.unit_text import (
    Grid,
    Tensors,
    UnitParam,
    UnitText,
    call_text,
    function,
    itemsize,
    mentions,
)


def emit_kernel(
    name: str,
    source: str,
    kernel: Kernel,
    live: Mapping[str, Value],
    sizes: Mapping[str, int],
    schedule: Schedule,
    tensors: Tensors,
) -> UnitText:
    """The text of a kernel for one set of live outputs; raises LoweringError.

    sizes: of the kernel's local symbols. The text depends on sizes only through groups, and on the schedule only
    through the number of slices.
    """
    return KernelEmitter(name, source, kernel, live, sizes, schedule, tensors).emit()


class KernelEmitter:
    """The portable kernel; a backend may replace the epilogue's type and the text around it."""

    epilogue_type: type[Epilogue] = Epilogue
    epilogue: Epilogue
    slice: SliceValues

    def __init__(
        self,
        name: str,
        source: str,
        kernel: Kernel,
        live: Mapping[str, Value],
        sizes: Mapping[str, int],
        schedule: Schedule,
        tensors: Tensors,
    ) -> None:
        self.name, self.kernel, self.live, self.schedule = name, kernel, live, schedule
        self.geometry = geometry(kernel, live, sizes, schedule)
        self.described = tensors.form == "descriptor"  # the left operand's form, and every other matrix's unless:
        if self.geometry.padding:  # columns are not adjacent in memory where they are in the tile
            tensors = replace(tensors, form="pointer")
        self.tensors = tensors
        self.epilogue = self.epilogue_type(name, source, kernel, live, self.geometry, tensors)
        self.slice = self.epilogue.slice
        self.names, self.sizes = self.slice.names, self.slice.sizes

    def emit(self) -> UnitText:
        self.epilogue.emit()
        inner_name = f"{self.name}_epilogue"
        inner_text, passed = self.epilogue.function_text(inner_name)
        states = [n for state in self.epilogue.states.values() for n in state]
        loop = [
            "tile_m, tile_n = tile_order(tile, tiles_m, tiles_n, GROUP_M)",
            "row, col = tile_m * BLOCK_M, tile_n * BLOCK_N",
            *self._mainloop(),
            *self._rows(),
            *self.slice.outer.lines,
            *(f"{n} = tl.full((BLOCK_M,), {self._neutral(n)}, tl.float32)" for n in states),
            *self._slices(inner_name, states, passed),
            *self._row_stores(),
        ]
        m, n = (self.sizes.text(d).strip("()") for d in (self.kernel.rows, self.kernel.cols))
        step = f"{self.geometry.step}" if self.geometry.padding else "BLOCK_N"
        body = [f"tiles_m, tiles_n = tl.cdiv({m}, BLOCK_M), tl.cdiv({n}, {step})"]
        if self.kernel.gemm:
            body.append("for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):")
            body += [f"    {line}" for line in loop]
        else:  # what waits for memory alone wants many programs at once on a multiprocessor
            last_first = "tl.num_programs(0) - 1 - " if self.tensors.backwards else ""
            body = [*self._whole_runs(), *body, f"tile = {last_first}tl.program_id(0)", *loop]
        params = self._params()
        names = [f"{p.name}: tl.constexpr" if p.kind in ("constexpr", "whole") else p.name for p in params]
        text = f"{inner_text}\n\n{function(self.name, names, body)}"
        grid: Grid = "tiles" if self.kernel.gemm else "every"
        return UnitText(self.name, text, tuple(params), grid, step=self.geometry.step, slice_n=self.geometry.slice_n)

    # -- rows of a pass

    @functools.cached_property
    def _run(self) -> UnitParam | None:
        """Of a pass: whether its rows are whole runs of 16 bytes. The compiler sees of a size only whether it is a
        multiple of 16, and where it is none takes elements one by one, each with an address and a mask."""
        made = (self.tensors.outputs[o] for o, value in self.live.items() if value.form is Form.TILE)
        sizes = [itemsize(info.dtype) for info in (*self.tensors.params.values(), *made) if len(info.dims) == 2]
        run, cols = 16 // min(sizes, default=1), self.kernel.cols
        known = run >= 16 or cols.all_symbols & self.sizes.constant
        if self.kernel.gemm or known or [power for _, power in cols.powers] != [1] or cols.scale.denominator != 1:
            return None
        return UnitParam("RUNS_N", "whole", dim=Dim.symbol(cols.powers[0][0]), value=run)

    def _whole_runs(self) -> list[str]:
        """Statements that show the compiler a row's length in whole runs."""
        if self._run is None or self._run.dim is None:
            return []
        n = self.sizes.text(self._run.dim)
        return [f"if {self._run.name}:", f"    {n} = {n} // {self._run.value} * {self._run.value}"]

    # -- the mainloop

    def _mainloop(self) -> list[str]:
        gemm = self.kernel.gemm
        if gemm is None:
            return []
        (at_m, left), (at_n, right) = self._left(gemm), self._right(gemm)
        at = [line for line in (at_m, at_n) if line]
        inside = ["at_k = k + tl.arange(0, BLOCK_K)"] if at else []
        inside += [f"left = {left}"] if at_m else []
        inside += [f"right = {right}"] if at_n else []
        inside.append(f"acc = tl.dot({'left' if at_m else left}, {'right' if at_n else right}, acc)")
        return [
            *at,
            "acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)",
            f"for k in {self._along_k(self.sizes.text(gemm.inner))}:",
            *(f"    {line}" for line in inside),
        ]

    def _along_k(self, length: str) -> str:
        """The steps of the mainloop."""
        return f"range(0, {length}, BLOCK_K)"

    def _left(self, gemm: Gemm) -> tuple[str, str]:
        """The statement that places the tile's rows, "" where a descriptor does, and the text of a load."""
        a, m, k = self.slice.param_names[gemm.a], self.sizes.text(self.kernel.rows), self.sizes.text(gemm.inner)
        if self.described:
            return "", f"{a}.load([k, row]).T" if gemm.a_transposed else f"{a}.load([row, k])"
        at = f"at_m[:, None] * {k} + at_k[None, :]"
        if gemm.a_transposed:
            at = f"at_k[None, :].to(tl.int64) * {m} + at_m[:, None]"
        mask = f"(at_m[:, None] < {m}) & (at_k[None, :] < {k})"
        return "at_m = (row + tl.arange(0, BLOCK_M)).to(tl.int64)", f"tl.load({a} + {at}, mask={mask}, other=0.0)"

    def _right(self, gemm: Gemm) -> tuple[str, str]:
        """As _left, of the tile's columns: where groups are padded, these do not lie as a box does."""
        b, n, k = self.slice.param_names[gemm.b], self.sizes.text(self.kernel.cols), self.sizes.text(gemm.inner)
        if self.described and not self.geometry.padding:
            return "", f"{b}.load([col, k]).T" if gemm.b_transposed else f"{b}.load([k, col])"
        at = f"at_k[:, None].to(tl.int64) * {n} + at_n[None, :]"
        if gemm.b_transposed:
            at = f"at_n[None, :] * {k} + at_k[:, None]"
        mask = f"(at_k[:, None] < {k}) & (at_n[None, :] < {n})"
        columns = self.slice.column_text(self.kernel.cols, places := "col + tl.arange(0, BLOCK_N)")
        columns = f"({places})" if columns == places else columns
        return f"at_n = {columns}.to(tl.int64)", f"tl.load({b} + {at}, mask={mask}, other=0.0)"

    # -- around the slices

    def _rows(self) -> list[str]:
        row_states = [v for v in self.live.values() if v.form in (Form.PARTIAL, Form.PICK)]
        return ["rows = row + tl.arange(0, BLOCK_M)"] if self.slice.outer.lines or row_states else []

    def _slices(self, inner_name: str, states: list[str], passed: list[str]) -> list[str]:
        lines = self._split()[0] if self.kernel.gemm else []
        result = f"{', '.join(states)} = " if states else ""
        for columns in self.geometry.offsets():
            before, products = self._products(columns)
            lines.extend(before)
            start = f"col + {columns[0]}" if columns[0] else "col"
            slice_n = str(self.geometry.segment_n)
            call = call_text(
                inner_name, [*products, *states, "row", start, *(slice_n if p == "SLICE" else p for p in passed)]
            )
            lines.extend(f"{result}{call}".split("\n"))
        return lines

    def _products(self, columns: tuple[int, ...]) -> tuple[list[str], list[str]]:
        """What must be written before one slice, and the names of its segments of the product."""
        return [], [self._halved[1][c] for c in columns] if self.kernel.gemm else []

    def _split(self) -> tuple[list[str], dict[int, str]]:
        lines, blocks = self._halved
        return list(lines), blocks

    @functools.cached_property
    def _halved(self) -> tuple[list[str], dict[int, str]]:
        """Statements that halve the accumulator down to segments, and the name of the one at each column."""
        lines: list[str] = []
        blocks: dict[int, str] = {}

        def halve(name: str, start: int, width: int) -> None:
            if width == self.geometry.segment_n:
                blocks[start] = name
                return
            whole = width // 2 == self.geometry.segment_n
            starts = (start, start + width // 2)
            left, right = (self.names.new(f"acc_{s}" if whole else f"acc_{s}_to_{s + width // 2}") for s in starts)
            lines.append(f"{left}, {right} = halves({name})")
            halve(left, start, width // 2)
            halve(right, start + width // 2, width // 2)

        halve("acc", 0, self.geometry.block_n)
        return lines, blocks

    def _neutral(self, state: str) -> str:
        reductions = {id(v): v for v in walk(self.live)}
        for key, names in self.epilogue.states.items():
            if state in names:
                kinds = [*STATES[reductions[key].word], ("weighted", "0.0")]
                return kinds[names.index(state)][1]
        raise KeyError(state)

    def _row_stores(self) -> list[str]:
        """What row reductions leave behind: partials at [tile, row], and picks by the tile that owns the column."""
        lines = []
        for output, value in self.live.items():
            reduction = value.args[0] if value.word == "part" else value
            if id(reduction) not in self.epilogue.states:
                continue
            state, m = self.epilogue.states[id(reduction)], self.sizes.text(self.kernel.rows)
            pointer, mask = self.slice.output_names[output], f"rows < {m}"
            part = value.attrs.get("index", 0)
            text = _final(reduction.word, state, int(part))  # type: ignore[call-overload]
            if value.form is Form.PICK:
                lines.append(f"owner = {self._owner(value)}")
                lines.append(f"tl.store({pointer} + rows, {text}, mask=({mask}) & owner)")
            else:
                lines.append(f"tl.store({pointer} + tile_n * {m} + rows, {text}, mask={mask})")
        return lines

    def _owner(self, value: Value) -> str:
        """One tile writes each row's pick: the one that holds the target, or the first where it is out of range."""
        tile, target = value.args
        assert tile.cols is not None
        text, n = self.slice.outer.plain(target), self.sizes.text(tile.cols)
        width = column_ratio(self.kernel, tile.cols, self.geometry.sizes) * self.geometry.step
        home = f"tl.where(({text} >= 0) & ({text} < {n}), {text}, 0) // {width}"
        return f"tl.max({home}, 1) == tile_n"  # a maximum over one column only drops the axis

    # -- the signature

    def _params(self) -> list[UnitParam]:
        params = self._operands()
        touched = {*self.slice.used, *self.slice.rings}
        outer_text = "\n".join(self.slice.outer.lines + list(self.slice.hoisted))
        for param in self.kernel.params:
            text = self.slice.param_names[param.name]
            if text not in touched and not mentions(outer_text, text) or any(p.name == text for p in params):
                continue
            scalar = param.type.kind.value == "Scalar" and param.name not in self.tensors.device_scalars
            params.append(
                self._tensor_param(param.name, text, False) if not scalar else UnitParam(text, "scalar", param.name)
            )
        params += [
            self._tensor_param(o, self.slice.output_names[o], True)
            for o, value in self.live.items()
            if not accumulated_into(value)
        ]
        params += self.sizes.params()
        params += [self._run] if self._run else []
        return params + [
            UnitParam(name, "constexpr", value=number) for name, number in self._constants_of_tile().items()
        ]

    def _constants_of_tile(self) -> dict[str, int]:
        s = self.schedule
        depth = {"BLOCK_K": s.block_k} if self.kernel.gemm else {}
        return {"BLOCK_M": s.block_m, "BLOCK_N": s.block_n, **depth, "GROUP_M": s.group_m}

    def _operands(self) -> list[UnitParam]:
        gemm, s = self.kernel.gemm, self.schedule
        if gemm is None:
            return []
        a = (s.block_k, s.block_m) if gemm.a_transposed else (s.block_m, s.block_k)
        b = (s.block_n, s.block_k) if gemm.b_transposed else (s.block_k, s.block_n)
        described = ((gemm.a, a, self.described), (gemm.b, b, self.described and not self.geometry.padding))
        return [
            UnitParam(self.slice.param_names[name], "descriptor" if box else "pointer", name, block=block)
            for name, block, box in described
        ]

    def _tensor_param(self, name: str, text: str, output: bool) -> UnitParam:
        if text not in self.slice.blocks:
            return UnitParam(text, "pointer", name, output)
        return UnitParam(text, "descriptor", name, output, block=(self.schedule.block_m, self.slice.blocks[text]))


def _final(word: str, state: tuple[str, ...], part: int) -> str:
    if word == "tile_logsumexp":
        return f"{state[0]} + tl.log({state[1]})" if part == 0 else f"{state[2]} / {state[1]}"
    if word == "tile_moments":
        return state[1 + part]
    return state[0]

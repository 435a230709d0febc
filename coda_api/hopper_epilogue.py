"""The epilogue of the Hopper kernel: the portable one's text, with tiles that come from and go to rings in shared
memory, and with the explicit layouts that Gluon asks for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_epilogue import Epilogue
from coda_synth.coda_api.emit_slice import SliceValues
from coda_synth.coda_api.expressions import LoweringError, Text, Texts
from coda_synth.coda_api.groups import GROUPS, grouped_columns
from coda_synth.coda_api.program import Value, walk
from coda_synth.coda_api.spelling import ATOM, SUM


class HopperSlice(SliceValues):
    """A slice's values with explicit layouts: `layout` is the product slice's, and others follow from it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layouts: set[str] = set()

    def columns(self, cols: Dim, segment: int = 0) -> str:
        key = (self.geometry.ratio(cols), segment)
        if key not in self._columns:
            place = f"gl.arange(0, {self.width_text(cols)}, layout=gl.SliceLayout(0, {self.layout(cols)}))"
            self._columns[key] = self.inner.assign(
                "cols" if key[0] == 1 else "part_cols", f"{self.start(cols, segment)} + {place}"
            )
        return self._columns[key]

    def layout(self, cols: Dim) -> str:
        """The name of the layout of values over `cols`: half and double tiles have what pairing gives them."""
        ratio = self.geometry.ratio(cols)
        if ratio == 1 or self.geometry.half_group:
            return "layout"
        z = self.products[0]
        if ratio == 2:
            return self._layout_like("double_layout", f"interleave({z}, {z})")
        if ratio == Fraction(1, 2):
            return self._layout_like("half_layout", f"pairs({z})[0]")
        if ratio.numerator == 1 and self._grouped(cols):
            return self._layout_like(f"group_layout_{ratio.denominator}", f"group_sum({z}, {ratio.denominator})")
        raise LoweringError(f'values over "{cols}" have no layout in the Hopper kernel')

    def _layout_like(self, name: str, text: str) -> str:
        """The name of the layout that a value of this text has; nothing is computed for it."""
        if name not in self.layouts:
            self.layouts.add(name)
            self.inner.lines.append(f"{name}_like = {text}")
            self.inner.lines.append(f"{name}: gl.constexpr = {name}_like.type.layout")
        return name

    def _grouped(self, cols: Dim) -> bool:
        """Whether these are values of groups of the product's own columns."""
        words = [v for v in walk(self.live) if v.word in GROUPS]
        over = {grouped_columns(v) for v in words if cols in (v.cols, v.args[0].cols)}
        return over == {self.kernel.cols}

    def rows(self) -> str:
        if not self._has_rows:
            self.inner.lines.append("rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))")
            self._has_rows = True
        return "rows"

    def rows_beside(self, cols: Dim) -> str:
        layout = self.layout(cols)
        if layout == "layout":
            return self.rows()
        if (name := layout.replace("layout", "rows")) not in self.layouts:
            self.layouts.add(name)
            place = f"gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, {layout}))"
            self.inner.lines.append(f"{name} = row + {place}")
        return name

    def beside(self, cols: Dim, text: Text) -> Text:
        if (layout := self.layout(cols)) == "layout":
            return text
        return f"gl.convert_layout({text[0]}, {layout})", ATOM

    def _adapt(self, value: Value, arg: Value, text: Text) -> Text:
        if value.cols is None or arg.cols is not None or arg.rows is None:
            return text
        return self.beside(value.cols, text)

    def _pairs(self, value: Value, which: int) -> Texts:
        if value.rows is None:
            raise LoweringError("the Hopper kernel has no even and odd columns of a vector")
        return self._laid(value, super()._pairs(value, which))

    def _word_interleave(self, value: Value) -> Texts:
        return self._laid(value, super()._word_interleave(value))

    def _laid(self, value: Value, texts: Texts) -> Texts:
        """In the layout that every value of this width has; where it has it already this is nothing."""
        assert value.cols is not None
        return tuple((f"gl.convert_layout({text}, {self.layout(value.cols)})", ATOM) for text, _ in texts)

    def _word_spread(self, value: Value) -> Texts:
        if not self.geometry.half_group:
            return self._laid(value, super()._word_spread(value))
        text = self.inner.atom(value.args[0])
        return tuple((f"{text} + gl.zeros_like({z})", SUM) for z in self.products)  # one column a group: it broadcasts

    def load_described(self, text: str, cols: Dim, segment: int) -> str:
        self.rings[text] = self.geometry.width(cols)
        self.used.pop(text, None)  # the slice reads the ring; the loader has the descriptor
        count = self.geometry.segments_of(cols)
        at = f"slot * {count} + {segment}" if count > 1 else "slot"
        return f"{text}_ring.index({at}).load({self.layout(cols)})"


class HopperEpilogue(Epilogue):
    slice_type = HopperSlice
    slice: HopperSlice

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.staged: list[str] = []  # copies to memory, which wait for the slice's fence
        self.pairs: dict[str, str] = {}  # outputs that may be staged where a tile of their shape was read

    def store_described(self, pointer: str, cols: Dim, segment: int, text: str) -> None:
        count = self.slice.geometry.segments_of(cols)
        at = f"out_slot * {count} + {segment}" if count > 1 else "out_slot"
        if not self.staged:
            self._write("tma.store_wait(PENDING)")
        self._pair(pointer, cols)
        self._write(f"{pointer}_ring.index({at}).store({text})")
        place = f"[row, {self.slice.start(cols, segment)}]"
        self.staged.append(f"tma_store({pointer}, {place}, {pointer}_ring.index({at}))")

    def _enter(self, state: tuple[str, ...], cols: Dim) -> None:
        self._convert(state, cols, self.slice.layout(cols))

    def _leave(self, state: tuple[str, ...], cols: Dim) -> None:
        self._convert(state, cols, "layout")

    def _convert(self, state: tuple[str, ...], cols: Dim, layout: str) -> None:
        """Running values of rows are handed on in the layout of the product's rows."""
        if self.slice.layout(cols) != "layout":
            for name in state:
                self._write(f"{name} = gl.convert_layout({name}, gl.SliceLayout(1, {layout}))")

    def _pair(self, pointer: str, cols: Dim) -> None:
        """Finds a tile of the same shape and dtype that the slice has read before, and that no other output takes. What
        is accumulated goes back to its own."""
        if pointer in self.slice.rings:
            self.slice.use(pointer)
            self.pairs[pointer] = pointer
            return
        names = {text: name for name, text in self.slice.output_names.items()}
        dtype = self.tensors.outputs[names[pointer]].dtype
        for name, text in self.slice.param_names.items():
            same = text in self.slice.rings and self.tensors.params[name].dtype == dtype and text not in names
            if same and self.tensors.params[name].dims[1] == cols and text not in self.pairs.values():
                self.pairs.setdefault(pointer, text)
                return

"""The epilogue of the Hopper kernel: the portable one's text, with tiles that come from and go to rings in shared
memory, and with the explicit layouts that Gluon asks for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_epilogue import REDUCE, Epilogue
from coda_synth.coda_api.emit_slice import SliceValues
from coda_synth.coda_api.expressions import LoweringError, Text, Texts
from coda_synth.coda_api.groups import GROUPS, HALVES, grouped_columns
from coda_synth.coda_api.program import Value, walk
from coda_synth.coda_api.spelling import ATOM, COMPARE, SUM


class HopperSlice(SliceValues):
    """A slice's values with explicit layouts: `layout` is the product slice's, and others follow from it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layouts: set[str] = set()
        self._places: dict[Fraction, str] = {}

    def columns(self, cols: Dim, segment: int = 0) -> str:
        key = (self.geometry.ratio(cols), segment)
        if key not in self._columns:
            name = "cols" if key[0] == 1 else "part_cols"
            self._columns[key] = self.inner.assign(name, f"{self.start(cols, segment)} + {self._places_of(cols)}")
        return self._columns[key]

    def _places_of(self, cols: Dim) -> str:
        """The name of the [width] vector of columns counted from the slice's first."""
        ratio = self.geometry.ratio(cols)
        if ratio not in self._places:
            place = f"gl.arange(0, {self.width_text(cols)}, layout=gl.SliceLayout(0, {self.layout(cols)}))"
            self._places[ratio] = self.inner.assign("places" if ratio == 1 else "part_places", place)
        return self._places[ratio]

    def along(self, pointer: str, cols: Dim, segment: int) -> str:
        """What is the same for all threads is added first, so that one address serves each and the rest is offsets."""
        return f"{pointer} + {self.start(cols, segment)} + {self._places_of(cols)}"

    def repeated(self, pointer: str, cols: Dim, segment: int, length: Dim) -> str:
        """Where slices divide a length that is compiled in, each lies in one repetition: only its first column takes a
        division, once for all threads."""
        known = length.all_symbols <= self.sizes.constant
        if not known or length.size(self.geometry.sizes) % self.geometry.width(cols):
            return super().repeated(pointer, cols, segment, length)
        start, width = self.start(cols, segment), self.geometry.width(cols)
        first = f"{f'({start})' if ' ' in start else start} % {self.sizes.text(length)}"
        return f"{pointer} + gl.multiple_of({first}, {width}) + {self._places_of(cols)}"

    def layout(self, cols: Dim) -> str:
        """The name of the layout of values over `cols`: half and double tiles have what pairing gives them."""
        ratio = self.geometry.ratio(cols)
        if ratio == 1 or self.geometry.half_group:
            return "layout"
        z = self.products[0]
        if ratio == 2:
            return self._layout_like("double_layout", f"interleave({z}, {z})")
        if ratio == Fraction(1, 2):
            return self._layout_like("half_layout", f"{self._halving()}({z})[0]")
        if (word := self._grouped(cols)) is not None:
            return self._group_layout(word)
        if ratio.numerator == 1 and not self._in_lanes(cols * 2, self.geometry.width(cols)):
            return self._layout_like(f"part_layout_{ratio.denominator}", f"halves({self._like(cols * 2)})[0]")
        raise LoweringError(f'values over "{cols}" have no layout in the Hopper kernel')

    def _like(self, cols: Dim) -> str:
        """A value that has the layout of those over `cols`."""
        layout = self.layout(cols)
        return self.products[0] if layout == "layout" else f"{layout}_like"

    def _group_layout(self, word: Value) -> str:
        """The layout in which a word's groups are reduced, or spread from."""
        over, places = grouped_columns(word), self.geometry.group_places(word)
        name = f"group_layout_{places / self.geometry.ratio(over)}"
        return self._layout_like(name.replace("/", "_"), f"group_sum({self._like(over)}, {places})")

    def _halving(self) -> str:
        """What halves values like most words of this kernel do, so that few of them must change their layout."""
        words = {v.word for v in walk(self.live)}
        return "halves" if words & set(HALVES) and not words & {"even", "odd", "interleave"} else "pairs"

    def _in_lanes(self, cols: Dim, apart: int) -> bool:
        """Whether columns that lie so far apart are in different threads, so that none can split one from the other: a
        row of the product is spread over four threads, two adjacent columns each, over and over."""
        ratio = self.geometry.ratio(cols)
        if ratio not in (1, 2) and self._grouped(cols) is not None:
            return True
        adjacent = 4 if ratio == 2 else 1 if ratio < 1 and self._halving() == "pairs" else 2
        return adjacent <= apart < 4 * adjacent

    def _layout_like(self, name: str, text: str) -> str:
        """The name of the layout that a value of this text has; nothing is computed for it."""
        if name not in self.layouts:
            self.layouts.add(name)
            self.inner.lines.append(f"{name}_like = {text}")
            self.inner.lines.append(f"{name}: gl.constexpr = {name}_like.type.layout")
        return name

    def _grouped(self, cols: Dim) -> Value | None:
        """The first word whose groups have one of these columns each."""
        words = [v for v in walk(self.live) if v.word in GROUPS]
        return next((v for v in words if cols == (v.args[0] if v.word == "spread" else v).cols), None)

    def at_column(self, cols: Dim, segment: int, target: str) -> str:
        """Targets are counted from the slice's first column, once a row, not columns from the matrix's first."""
        start = self.start(cols, segment)
        return f"{self._places_of(cols)}[None, :] == {target} - {f'({start})' if '+' in start else start}"

    def _word_eq(self, value: Value) -> Texts | None:
        """A column's number that is a row's target, as a pick compares them: other columns than exist do not matter."""
        place, target = value.args
        if place.word != "index" or place.cols is None or target.rows is None or not self._hoistable(target):
            return None
        dim = self._dim(place)
        at, _ = self.beside(dim, (self.place_of(target, dim), ATOM))
        return tuple((self.at_column(dim, s, at), COMPARE) for s in range(self.geometry.segments_of(dim)))

    def within_columns(self, columns: str, length: str) -> str:
        """Where tiles are whole no mask is left: WHOLE_N is compiled in, as its kin is."""
        return f"WHOLE_N | ({columns} < {length})"

    def within_rows(self, rows: str, length: str) -> str:
        return f"WHOLE_M | ({rows} < {length})"

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
        self._check_apart(value, 1)
        return self._laid(value, super()._pairs(value, which))

    def _check_apart(self, value: Value, apart: int) -> None:
        cols = value.args[0].cols
        assert cols is not None
        if self._in_lanes(cols, apart):
            raise LoweringError(f'the Hopper kernel cannot split columns of "{cols}" that are {apart} apart')

    def _halves(self, value: Value, which: int) -> Texts:
        if self.geometry.half_group:
            return super()._halves(value, which)
        if value.rows is None:
            raise LoweringError("the Hopper kernel splits no halves off a vector")
        self._check_apart(value, self.geometry.group_places(value) // 2)
        return self._laid(value, super()._halves(value, which))

    def _word_join(self, value: Value) -> Texts:
        texts = super()._word_join(value)
        return texts if self.geometry.half_group else self._laid(value, texts)

    def _group(self, value: Value) -> Texts:
        """Laid where other words make values of this width too."""
        texts = super()._group(value)
        assert value.cols is not None
        return texts if self.geometry.half_group or self._by_groups(value.cols, value) else self._laid(value, texts)

    def _by_groups(self, cols: Dim, word: Value) -> bool:
        """Whether values over `cols` have the layout that reducing this word's groups gives them."""
        first = self._grouped(cols)
        same = first is not None and grouped_columns(first) == grouped_columns(word)
        return same and self.geometry.ratio(cols) not in (1, Fraction(1, 2))

    _word_group_sum = _word_group_max = _word_group_min = _group

    def _word_interleave(self, value: Value) -> Texts:
        return self._laid(value, super()._word_interleave(value))

    def _laid(self, value: Value, texts: Texts) -> Texts:
        """In the layout that every value of this width has; where it has it already this is nothing."""
        assert value.cols is not None
        return tuple((f"gl.convert_layout({text}, {self.layout(value.cols)})", ATOM) for text, _ in texts)

    def _word_spread(self, value: Value) -> Texts:
        if not self.geometry.half_group:
            return self._laid(value, self._spread_from_groups(value))
        text = self.inner.atom(value.args[0])
        return tuple((f"{text} + gl.zeros_like({z})", SUM) for z in self.products)  # one column a group: it broadcasts

    def _spread_from_groups(self, value: Value) -> Texts:
        (narrow,) = value.args
        assert narrow.cols is not None
        if narrow.rows is None or self._by_groups(narrow.cols, value):
            return super()._word_spread(value)
        text = f"gl.convert_layout({self.inner.plain(narrow)}, {self._group_layout(value)})"
        return ((f"spread({text}, {self._group_text(value)})", ATOM),)

    def _word_accumulate(self, value: Value) -> Texts | None:
        """What is added, alone: the copy engine adds it to memory, and no tile is loaded for it. Where it reaches none,
        because a slice is too narrow, threads load, add and store."""
        out, added = value.args
        name = str(out.attrs["name"])
        info = self.tensors.params[name]
        assert value.cols is not None
        if not self.described(self.param_names[name], info, value.cols):
            return None
        if added.rows is None or added.cols is None or info.dtype != "float32":
            raise LoweringError("the Hopper kernel adds whole tiles alone, and to fp32 alone")
        return self.inner.texts(added)

    def as_float(self, value: Value, text: str) -> str:
        bf16 = self.tensors.params[str(value.attrs["name"])].dtype == "bfloat16"
        return f"unpacked({text})" if bf16 else super().as_float(value, text)

    def load_described(self, text: str, cols: Dim, segment: int) -> str:
        self.rings[text] = self.geometry.width(cols)
        self.used.pop(text, None)  # the slice reads the ring; the loader has the descriptor
        count = self.geometry.segments_of(cols)
        at = f"slot * {count} + {segment}" if count > 1 else "slot"
        return f"{text}_ring.index({at}).load({self.layout(cols)})"


_BY_COLUMN = "gl.BlockedLayout([WARPS, 1], [1, 32], [1, WARPS], [1, 0])"  # of [WARPS, n]: a thread has whole columns


@dataclass(frozen=True, slots=True)
class Staged:
    """What leaves through shared memory: the write into a slot, and the copy from there to memory, or its addition
    to memory, which waits for the slice's fence. Both stand at the slice's end, so that a slot is waited for when all
    else is done."""

    pointer: str
    write: str
    copy: str


class HopperEpilogue(Epilogue):
    slice_type = HopperSlice
    slice: HopperSlice
    groups = 1  # of warps that take tiles by turns

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.staged: list[Staged] = []
        self.pairs: dict[str, str] = {}  # outputs that may be staged where a tile of their shape was read
        self.parts: dict[str, tuple[int, int]] = {}  # buffers of a row a warp: how many of a slice, and their columns
        self.left: list[str] = []  # the writes of these rows
        self.gathered: list[str] = []  # what reduces them to one

    def store_described(self, pointer: str, cols: Dim, segment: int, text: str) -> None:
        count = self.slice.geometry.segments_of(cols)
        at = f"out_slot * {count} + {segment}" if count > 1 else "out_slot"
        self._pair(pointer, cols)
        place = f"[row, {self.slice.start(cols, segment)}]"
        slot = f"{pointer}_ring.index({at})"
        added = pointer in self.slice.param_names.values()  # an output that is a parameter too
        copy = "tma_add" if added else "tma_store"
        self.staged.append(Staged(pointer, f"{slot}.store({text})", f"{copy}({pointer}, {place}, {slot})"))

    def _column_partial(self, output: str, value: Value) -> None:
        """Each warp reduces its own rows and leaves one in shared memory. After the barriers of the slice's end threads
        that have a column each reduce these few."""
        cols, new = value.args[0].cols, self.slice.names.new
        assert cols is not None
        n, count, width = (
            self.slice.sizes.text(cols),
            self.slice.geometry.segments_of(cols),
            self.slice.width_text(cols),
        )
        parts, pointer = new(f"{output}_parts"), self.slice.use(self.slice.output_names[output])
        self.parts[parts] = (count, self.slice.geometry.width(cols))
        if not self.gathered:
            self.by_column = new("by_column")
            self.gathered.append(f"{self.by_column}: gl.constexpr = {_BY_COLUMN}")
        for s in range(count):
            own = str(s) if self.groups == 1 else f"WHICH * {count} + {s}" if count > 1 else "WHICH"
            slot, columns, part = f"{parts}.index({own})", new("columns"), new(f"{output}_part")
            in_warps = f"{value.word.removeprefix('tile_')}_in_warps({self._existing_rows(value, s)}, WARPS)"
            self._write(f"{part} = {in_warps}")
            self.left.append(f"{slot}.store({part})")
            place = f"gl.arange(0, {width}, layout=gl.SliceLayout(0, {self.by_column}))"
            row, mask = f"{pointer} + row // BLOCK_M * {n}", self.slice.within_columns(columns, n)
            reduced = f"{REDUCE[value.word]}({slot}.load({self.by_column}), 0)"
            self.gathered += [
                f"{columns} = {self.slice.start(cols, s)} + {place}",
                f"tl.store({row} + {columns}, {reduced}, mask={mask})",
            ]

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
        """Finds a tile of the same shape and dtype that the slice has read before, and that no other output takes."""
        names = {text: name for name, text in self.slice.output_names.items()}
        dtype = self.tensors.outputs[names[pointer]].dtype
        for name, text in self.slice.param_names.items():
            same = text in self.slice.rings and self.tensors.params[name].dtype == dtype
            if same and self.tensors.params[name].dims[1] == cols and text not in self.pairs.values():
                self.pairs.setdefault(pointer, text)
                return

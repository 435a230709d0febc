"""The values of an epilogue over one slice of the tile: parameters, positions, and columns rearranged, as text."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import Expressions, Names, Text, Texts, author_names, uses
from coda_synth.coda_api.geometry import Geometry
from coda_synth.coda_api.groups import group_size
from coda_synth.coda_api.program import Form, Kernel, Kind, TypeKind, Value, walk
from coda_synth.coda_api.spelling import ATOM, SUM
from coda_synth.coda_api.storage import accumulated_into, torch_name
from coda_synth.coda_api.unit_text import SizeNames, TensorInfo, Tensors, itemsize, narrow


class SliceValues:
    """Texts of an epilogue's values in one slice. `inner` collects the slice's statements, `outer` those of values that
    do not depend on the column and are computed once a tile."""

    def __init__(
        self, name: str, source: str, kernel: Kernel, live: Mapping[str, Value], geometry: Geometry, tensors: Tensors
    ) -> None:
        self.kernel, self.live, self.geometry, self.tensors = kernel, live, geometry, tensors
        self.names = Names((name, f"{name}_epilogue", f"{name}_loader", f"{name}_fetcher", f"{name}_consumer"))
        self.param_names = {p.name: self.names.new(p.name) for p in kernel.params}
        self.output_names = {name: self._output_name(name, value) for name, value in live.items()}
        self.sizes = SizeNames(self.names, geometry.sizes, group_symbols(live))
        for dim in (kernel.rows, kernel.cols, *((kernel.gemm.inner,) if kernel.gemm else ())):
            self.sizes.text(dim)  # so that signatures begin M, N, K
        self.wanted = author_names(source, kernel.name, live)
        count = uses(live.values())
        self.outer = Expressions(self.names, self.wanted, count, self._outer_leaf)
        self.inner = Expressions(self.names, self.wanted, count, self._leaf, self._adapt)
        self.blocks: dict[str, int] = {}  # descriptors: columns of their boxes
        self.rings: dict[str, int] = {}  # those that a loader brings into shared memory, where a backend has one
        self.hoisted: dict[str, None] = {}  # outer names that the slice reads
        self.used: dict[str, None] = {}  # parameters and outputs that the slice touches
        self.products = [
            self.names.new("z" if geometry.segments == 1 else f"z_{s}") for s in ("low", "high")[: geometry.segments]
        ]
        self._columns: dict[tuple[Fraction, int], str] = {}
        self._parts: dict[int, tuple[Texts, Texts]] = {}  # id(rotation) -> cos, sin
        self._split: dict[tuple[int, str], tuple[str, str]] = {}  # (id(tile), the call that splits it) -> both parts
        self._targets: dict[tuple[str, str], str] = {}  # (a row's target, the number of columns) -> its place
        self._has_rows = False

    # -- parameters and geometry

    def _output_name(self, name: str, value: Value) -> str:
        """What is accumulated is stored where it was loaded from."""
        param = accumulated_into(value)
        return self.param_names[param] if param else self.names.new(f"{name}_out")

    def use(self, text: str) -> str:
        """The text's name of a parameter or output, remembered as one that the slice is passed."""
        self.used[text] = None
        return text

    def columns(self, cols: Dim, segment: int = 0) -> str:
        """The name of the [width] vector of global columns of a value over `cols` in this slice."""
        key = (self.geometry.ratio(cols), segment)
        if key not in self._columns:
            start, width = self.start(cols, segment), self.width_text(cols)
            base = {Fraction(1): "cols", Fraction(1, 2): "half_cols", Fraction(2): "double_cols"}.get(
                key[0], "group_cols"
            )
            name = base if not segment else f"{base}_high"
            self._columns[key] = self.inner.assign(name, self.column_text(cols, f"{start} + tl.arange(0, {width})"))
        return self._columns[key]

    def along(self, pointer: str, cols: Dim, segment: int) -> str:
        """The addresses of a vector's elements at the columns of this slice."""
        return f"{pointer} + {self.columns(cols, segment)}"

    def repeated(self, pointer: str, cols: Dim, segment: int, length: Dim) -> str:
        """The same of a vector that is repeated along the columns."""
        return f"{pointer} + {self.columns(cols, segment)} % {self.sizes.text(length)}"

    def column_text(self, cols: Dim, places: str) -> str:
        """The columns at places of a value over `cols`: those that only fill a group up lie past the last column."""
        columns, width = self.geometry.run(cols)
        length = self.sizes.text(cols).strip("()")
        return places if columns == width else f"columns_at({places}, {columns}, {width}, {length})"

    def start(self, cols: Dim, segment: int = 0) -> str:
        """The first place, over all tiles, of a segment of a value over `cols`."""
        ratio, group = self.geometry.ratio(cols), self.geometry.half_group
        if ratio == 1:
            return f"col + {group // 2}" if segment else "col"
        if ratio.numerator != 1:
            return (
                f"col * {ratio.numerator}"
                if ratio.denominator == 1
                else f"col * {ratio.numerator} // {ratio.denominator}"
            )
        if group and ratio == Fraction(1, 2):
            return f"col // {group} * {group // 2} + col % {group}"
        return f"col // {ratio.denominator}"

    def width_text(self, cols: Dim) -> str:
        ratio = Fraction(self.geometry.width(cols), self.geometry.segment_n)
        if ratio == 1:
            return "SLICE"
        return f"{ratio} * SLICE" if ratio.denominator == 1 else str(self.geometry.width(cols))

    def rows(self) -> str:
        """The name of the [BLOCK_M] vector of global rows."""
        if not self._has_rows:
            self.inner.lines.append("rows = row + tl.arange(0, BLOCK_M)")
            self._has_rows = True
        return "rows"

    def rows_beside(self, cols: Dim) -> str:
        """The same beside a value over `cols`; a backend with explicit layouts has another vector for some."""
        return self.rows()

    def beside(self, cols: Dim, text: Text) -> Text:
        """A row value [BLOCK_M, 1] beside a value over `cols`, likewise."""
        return text

    def inside(self, cols: Dim, segment: int) -> str:
        """The mask of a slice's columns that exist."""
        return self.within_columns(f"{self.columns(cols, segment)}[None, :]", self.sizes.text(cols))

    def within_columns(self, columns: str, length: str) -> str:
        """The mask of those columns that exist; a backend may know that all of a tile's do."""
        return f"{columns} < {length}"

    def within_rows(self, rows: str, length: str) -> str:
        """And of rows."""
        return f"{rows} < {length}"

    # -- values that do not depend on the column: computed once a tile

    def _hoistable(self, value: Value) -> bool:
        if value.cols is not None or value.form is not Form.TILE or value.word in ("number", "size"):
            return False
        return value.rows is not None or value.word == "param"

    def _hoist(self, value: Value) -> Texts:
        text, _ = self.outer.texts(value)[0]
        if not text.isidentifier():
            text = self.outer.assign(self.wanted.get(id(value), "r"), text)
            self.outer.define(value, ((text, ATOM),))
        self.hoisted[text] = None
        return ((text, ATOM),)

    def _outer_leaf(self, value: Value) -> Texts | None:
        if value.word == "size":
            return ((self.sizes.text(self._dim(value)), ATOM),)
        if value.word == "index":
            return ((self.outer.assign("at", "rows[:, None]"), ATOM),)
        if value.word == "cast" and value.rows is None:
            return self._rounded_number(value, self.outer)
        if value.word == "cast":
            dtype = torch_name(str(value.attrs["dtype"]))
            return ((f"{narrow(self.outer.atom(value.args[0]), dtype)}.to(tl.float32)", ATOM),)
        if value.word != "param":
            return None
        return self._outer_param(value)

    def _outer_param(self, value: Value) -> Texts:
        name = str(value.attrs["name"])
        param = next(p for p in self.kernel.params if p.name == name)
        text = self.param_names[name]
        if param.type.kind is TypeKind.SIZE:
            return ((self.sizes.text(param.type.dims[0]), ATOM),)
        if param.type.kind is TypeKind.SCALAR:
            if name in self.tensors.device_scalars:
                return ((self.outer.assign(name, f"tl.load({text})"), ATOM),)
            return ((text, ATOM),)
        load = f"tl.load({text} + rows, mask=rows < {self.sizes.text(param.type.dims[0])}, other=0)[:, None]"
        if param.type.kind is TypeKind.TENSOR:
            load = f"{load}.to(tl.float32)"
        return ((self.outer.assign(f"{name}_rows", load), ATOM),)

    def place_of(self, target: Value, cols: Dim) -> str:
        """The name of the [BLOCK_M, 1] column of each row's target, -1 where there is none: 32 bits, to compare with
        every column."""
        text, n = self.outer.atom(target), self.sizes.text(cols)
        key = (text, n)
        if key not in self._targets:
            inside = f"tl.where(({text} >= 0) & ({text} < {n}), {text}, -1)"
            self._targets[key] = self.outer.assign("target_at", f"{inside}.to(tl.int32)")
            self.hoisted[self._targets[key]] = None
        return self._targets[key]

    def at_column(self, cols: Dim, segment: int, target: str) -> str:
        """The mask of the elements whose column is their row's target."""
        return f"{self.columns(cols, segment)}[None, :] == {target}"

    # -- values of a slice

    def _adapt(self, value: Value, arg: Value, text: Text) -> Text:
        """An argument as an operation's result needs it; a backend with explicit layouts converts row values."""
        return text

    def _leaf(self, value: Value) -> Texts | None:
        if self._hoistable(value):
            return self._hoist(value)
        if value.word == "gemm":
            return tuple((name, ATOM) for name in self.products)
        spell = getattr(self, f"_word_{value.word}", None)
        return spell(value) if spell else None

    def _dim(self, value: Value) -> Dim:
        dim = value.attrs["dim"]
        assert isinstance(dim, Dim)
        return dim

    def _word_param(self, value: Value) -> Texts:
        name = str(value.attrs["name"])
        assert value.cols is not None
        if value.rows is None:
            vector, length = self.use(self.param_names[name]), self.sizes.text(value.cols)
            texts = []
            for s in range(self.geometry.segments_of(value.cols)):
                cols = self.columns(value.cols, s)
                mask = self.within_columns(cols, length)
                at = self.along(vector, value.cols, s)
                texts.append((f"tl.load({at}, mask={mask}, other=0)[None, :]", ATOM))
            return self._floats(value, tuple(texts))
        return self._floats(
            value, tuple((self._load(name, value.cols, s), ATOM) for s in range(self.geometry.segments_of(value.cols)))
        )

    def _floats(self, value: Value, texts: Texts) -> Texts:
        """Loaded once, in fp32; integers stay integers."""
        name = str(value.attrs["name"])
        wanted = f"{name}_tile" if value.rows is not None else f"{name}_cols"
        converted = (self.as_float(value, text) if value.kind == "float" else text for text, _ in texts)
        return tuple((self.inner.assign(wanted, text), ATOM) for text in converted)

    def as_float(self, value: Value, text: str) -> str:
        """What was loaded of a parameter, in fp32."""
        return f"{text}.to(tl.float32)"

    def _load(self, name: str, cols: Dim, segment: int) -> str:
        text = self.use(self.param_names[name])
        if self.described(text, self.tensors.params[name], cols):
            return self.load_described(text, cols, segment)
        at, mask = self.place(cols, segment)
        return f"tl.load({text} + {at}, mask={mask}, other=0)"

    def load_described(self, text: str, cols: Dim, segment: int) -> str:
        """The text of the load of one segment through a descriptor."""
        return f"{text}.load([row, {self.start(cols, segment)}])"

    def described(self, text: str, info: TensorInfo, cols: Dim) -> bool:
        """TMA reaches this matrix: boxes must be at least 16 bytes wide. Remembers the box."""
        width = self.geometry.width(cols)
        if self.tensors.form != "descriptor" or width * itemsize(info.dtype) < 16:
            return False
        self.blocks[text] = width
        return True

    def place(self, cols: Dim, segment: int) -> tuple[str, str]:
        rows, columns, n = self.rows_beside(cols), self.columns(cols, segment), self.sizes.text(cols)
        m = self.sizes.text(self.kernel.rows)
        return (
            f"{rows}.to(tl.int64)[:, None] * {n} + {columns}[None, :]",
            f"({self.within_rows(f'{rows}[:, None]', m)}) & ({self.within_columns(f'{columns}[None, :]', n)})",
        )

    def _word_size(self, value: Value) -> Texts:
        return ((self.sizes.text(self._dim(value)), ATOM),)

    def _word_index(self, value: Value) -> Texts:
        dim = self._dim(value)
        return tuple((f"{self.columns(dim, s)}[None, :]", ATOM) for s in range(self.geometry.segments_of(dim)))

    def _word_cycle(self, value: Value) -> Texts:
        dim, param = self._dim(value), value.args[0]
        name = str(param.attrs["name"])
        vector, length = self.use(self.param_names[name]), self.tensors.params[name].dims[0]
        places = (self.repeated(vector, dim, s, length) for s in range(self.geometry.segments_of(dim)))
        loads = (f"tl.load({place})[None, :].to(tl.float32)" for place in places)
        return tuple((self.inner.assign(f"{name}_cols", load), ATOM) for load in loads)

    def _word_part(self, value: Value) -> Texts:
        self.inner.texts(value.args[0])
        return self._parts[id(value.args[0])][int(value.attrs["index"])]  # type: ignore[call-overload]

    def _word_rotation(self, value: Value) -> Texts:
        segments = max(len(self.inner.texts(a)) for a in value.args)
        cos, sin = [], []
        for s in range(segments):
            c, n = self.names.new("cos"), self.names.new("sin")
            position, _ = self._adapt(value, value.args[0], (self.inner.plain(value.args[0], s), ATOM))
            hi, lo = self.inner.plain(value.args[1], s), self.inner.plain(value.args[2], s)
            self.inner.lines.append(f"{c}, {n} = rotation({position}.to(tl.float32), {hi}, {lo})")
            cos.append((c, ATOM))
            sin.append((n, ATOM))
        self._parts[id(value)] = (tuple(cos), tuple(sin))
        return tuple(cos)

    def _parted(self, value: Value, which: int, parts: tuple[str, str], call: str) -> Texts:
        """One of the two values that a call of the library makes of a value; both are made once."""
        key = (id(value.args[0]), call)
        if key not in self._split:
            a, b = self._split[key] = (self.names.new(parts[0]), self.names.new(parts[1]))
            self.inner.lines.append(f"{a}, {b} = {call}")
        return ((self._split[key][which], ATOM),)

    def _pairs(self, value: Value, which: int) -> Texts:
        return self._parted(value, which, ("even", "odd"), f"pairs({self.inner.plain(value.args[0])})")

    def _word_even(self, value: Value) -> Texts:
        return self._pairs(value, 0)

    def _word_odd(self, value: Value) -> Texts:
        return self._pairs(value, 1)

    def _word_interleave(self, value: Value) -> Texts:
        a, b = self._of_one_dtype(value)
        return ((f"interleave({a}, {b})", ATOM),)

    def _of_one_dtype(self, value: Value) -> list[str]:
        """The two parts of a value: positions are narrower integers than those that are loaded."""
        texts = [self.inner.plain(arg) for arg in value.args]
        if all(arg.kind is Kind.FLOAT for arg in value.args) or value.kind is Kind.BOOL:
            return texts
        return [f"tl.cast({text}, tl.{'float32' if value.kind is Kind.FLOAT else 'int64'})" for text in texts]

    def _halves(self, value: Value, which: int) -> Texts:
        """A segment in a walk by halves; else split off, out of whole groups."""
        if self.geometry.half_group:
            return (self.inner.texts(value.args[0])[-which],)
        whole = f"low_high({self.inner.plain(value.args[0])}, {self._group_text(value)})"
        return self._parted(value, which, ("low", "high"), whole)

    def _word_low(self, value: Value) -> Texts:
        return self._halves(value, 0)

    def _word_high(self, value: Value) -> Texts:
        return self._halves(value, 1)

    def _word_join(self, value: Value) -> Texts:
        if self.geometry.half_group:
            return tuple(self.inner.texts(arg)[0] for arg in value.args[:2])
        a, b = self._of_one_dtype(value)
        return ((f"joined({a}, {b}, {self._group_text(value)})", ATOM),)

    def _group(self, value: Value) -> Texts:
        reduce = {
            "group_sum": ("tl.sum", "{} + {}", "0.0"),
            "group_max": ("tl.max", "maximum({}, {})", 'float("-inf")'),
            "group_min": ("tl.min", "minimum({}, {})", 'float("inf")'),
        }
        word, merge, neutral = reduce[value.word]
        texts = [self._only_columns(value, s, t, neutral) for s, (t, _) in enumerate(self.inner.texts(value.args[0]))]
        if len(texts) == 1:
            return ((f"{value.word}({texts[0]}, {self._group_text(value)})", ATOM),)
        low, high = (f"{word}({t}, 1)[:, None]" for t in texts)  # halves mode: the slice is exactly one group
        return ((merge.format(low, high), ATOM if "(" in merge else SUM),)

    def _only_columns(self, value: Value, segment: int, text: str, neutral: str) -> str:
        """What a group's word reduces, without what stands at places that only fill the group up."""
        cols = value.args[0].cols
        assert cols is not None
        padded = self.geometry.group_places(value) > group_size(value, self.geometry.sizes)
        return f"tl.where({self.inside(cols, segment)}, {text}, {neutral})" if padded else text

    _word_group_sum = _word_group_max = _word_group_min = _group

    def _group_text(self, value: Value) -> str:
        group = value.attrs["group"]
        assert isinstance(group, Dim)
        places = self.geometry.group_places(value)
        return self.sizes.text(group) if places == group_size(value, self.geometry.sizes) else str(places)

    def _word_spread(self, value: Value) -> Texts:
        text = self.inner.plain(value.args[0])
        if self.geometry.half_group and self.geometry.group_places(value) == self.geometry.half_group:
            wide = (f"tl.broadcast_to({text}, (BLOCK_M, SLICE))", ATOM)  # one column a group, over both halves
            return (wide, wide)
        return ((f"spread({text}, {self._group_text(value)})", ATOM),)

    def _word_cast(self, value: Value) -> Texts:
        dtype = torch_name(str(value.attrs["dtype"]))
        if value.rows is None and value.cols is None:
            return self._rounded_number(value, self.inner)
        return tuple(
            (f"{narrow(self.inner.atom(value.args[0], s), dtype)}.to(tl.float32)", ATOM)
            for s in range(len(self.inner.texts(value.args[0])))
        )

    def _rounded_number(self, value: Value, into: Expressions) -> Texts:
        """As a tensor without dims: a number may be one of Python's."""
        number = f"tl.cast({into.plain(value.args[0])}, tl.float32)"
        return ((f"{narrow(number, torch_name(str(value.attrs['dtype'])))}.to(tl.float32)", ATOM),)


def group_symbols(live: Mapping[str, Value]) -> frozenset[str]:
    """The symbols of the groups that a kernel's words name: their sizes are compiled in."""
    groups = [g for v in walk(live) if isinstance(g := v.attrs.get("group"), Dim)]
    return frozenset(s for g in groups for s in g.all_symbols)

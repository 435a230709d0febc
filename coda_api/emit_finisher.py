"""A finisher as Triton text: a program for each block of rows for vectors and folds, one program for sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import Expressions, Names, Texts, author_names, uses
from coda_synth.coda_api.program import Finisher, Form, TypeKind, Value, walk
from coda_synth.coda_api.spelling import ATOM
from coda_synth.coda_api.storage import torch_name
from coda_synth.coda_api.unit_text import SizeNames, TensorInfo, Tensors, UnitParam, UnitText, function, narrow

BLOCK_ROWS = 32  # few rows a program, so that even a few thousand rows fill the device
BLOCK_ROWS_OF_SUMS = 1024  # one program walks all rows
BLOCK_PLACES = 8  # of a fold: 32 bytes, the least that memory moves, so that as many programs as can be share it
TURNS = 32  # read at once, of a fold's places
TILES = 32  # partials read at once
TILES_OF_FOLDS, WARPS_OF_FOLDS = 64, 8  # for each of so many rows: 64 values a thread, most on their way at once
TILES_OF_SUMS, WARPS_OF_SUMS = 16, 16  # for each of so many rows: what one program holds must fit its registers

# By word: what changes nothing, how two values merge, and how a block of [tiles, rows] comes to one value a row.
_TOTALS = {
    "total_sum": ("0.0", "{0} + {1}", "tl.sum({0}, 0)"),
    "total_max": ('float("-inf")', "maximum({0}, {1})", "reduce_max({0}, 0)"),
    "total_min": ('float("inf")', "minimum({0}, {1})", "reduce_min({0}, 0)"),
}


def emit_finisher(
    name: str, source: str, finisher: Finisher, live: Mapping[str, Value], tensors: Tensors
) -> list[UnitText]:
    """One function for each kind of live output: vectors (`name`), sums (`name`_sums) and folds (`name`_folds, and
    `name`_folds_2 and so on for those of another dim)."""
    texts = []
    kept: dict[int, str] = {}
    for kind in ("vectors", "sums", "folds"):
        chosen = {output: v for output, v in live.items() if _kind(finisher, v) == kind}
        for number, dim in enumerate(dict.fromkeys(v.rows for v in chosen.values()), 1):
            own = (name if kind == "vectors" else f"{name}_{kind}") + (f"_{number}" if number > 1 else "")
            alike = {output: v for output, v in chosen.items() if v.rows == dim}
            texts.append(_FinisherEmitter(own, source, finisher, alike, tensors, kind, kept).emit())
        if kind == "vectors":
            kept = {id(v): output for output, v in chosen.items() if _worth_keeping(v, tensors.outputs[output])}
    return texts


def _worth_keeping(value: Value, stored: TensorInfo) -> bool:
    """Whether a vector that is stored anyway is read again rather than made from its partials a second time, by the one
    program that sums it. Only what is stored as it is."""
    exact = stored.dtype == "float32" and value.kind == "float" and value.word != "cast"
    return exact and any(v.form is Form.PARTIAL for v in walk([value]))


def _kind(finisher: Finisher, value: Value) -> str:
    if value.rows is None:
        return "sums"
    return "vectors" if value.rows == finisher.dim else "folds"


class _FinisherEmitter:
    """`vectors` writes per-row values, `gathered` what is made of sums or folds over the rows after the walk. kept:
    outputs of an earlier launch, by the id of their values."""

    def __init__(
        self,
        name: str,
        source: str,
        finisher: Finisher,
        live: Mapping[str, Value],
        tensors: Tensors,
        kind: str,
        kept: Mapping[int, str],
    ) -> None:
        self.kept = kept
        self.name, self.finisher, self.live, self.tensors, self.kind = name, finisher, live, tensors, kind
        self.names = Names((name,))
        self.param_names = {p.name: self.names.new(p.name) for p in finisher.params}
        self.output_names = {o: self.names.new(f"{o}_out") for o in live}
        self.sizes = SizeNames(self.names, {}, frozenset())
        self.wanted = author_names(source, finisher.name, live)
        self.count = uses(live.values())
        self.vectors = Expressions(self.names, self.wanted, self.count, self._vector_leaf)
        self.gathered = Expressions(self.names, self.wanted, self.count, self._gathered_leaf)
        self.running: dict[int, str] = {}  # id(sum or fold) -> its accumulator over the rows
        self.moments: dict[int, tuple[str, str]] = {}
        self.used: dict[str, None] = {}
        self.tile_params: dict[str, UnitParam] = {}
        self.m = self.sizes.text(finisher.dim)

    def emit(self) -> UnitText:
        block = {"sums": BLOCK_ROWS_OF_SUMS, "folds": BLOCK_PLACES}.get(self.kind, BLOCK_ROWS)
        lines = self._vector_lines() if self.kind == "vectors" else self._gathering_lines()
        params = self._params(block)
        names = [f"{p.name}: tl.constexpr" if p.kind in ("constexpr", "tile_width") else p.name for p in params]
        grid: Literal["rows", "one"] = "one" if self.kind == "sums" else "rows"
        text, warps = function(self.name, names, lines), self._warps
        return UnitText(self.name, text, tuple(params), grid, block, self._grid_dim(), warps=warps)

    @property
    def _warps(self) -> int:
        """0: what every finisher has."""
        return WARPS_OF_SUMS if self._holds_many else WARPS_OF_FOLDS if self.kind == "folds" else 0

    @property
    def _holds_many(self) -> bool:
        """Whether one program walks over all rows and over the partials of each."""
        return self.kind == "sums" and bool(self.tile_params)

    @property
    def _rows(self) -> str:
        """How many rows a vector holds."""
        return "TURNS * BLOCK" if self.kind == "folds" else "BLOCK"

    def _grid_dim(self) -> Dim | None:
        return next(iter(self.live.values())).rows

    # -- results

    def _vector_lines(self) -> list[str]:
        for output, value in self.live.items():
            self.vectors.lines.append(self._store(output, value, self.vectors, "rows", self.m))
        return ["rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *self.vectors.lines]

    def _store(self, output: str, value: Value, texts: Expressions, at: str, length: str) -> str:
        rounded = value.word == "cast"
        text = texts.atom(value.args[0]) if rounded else texts.plain(value)
        if rounded:  # the outermost cast is the store's own rounding
            text = narrow(text, self.tensors.outputs[output].dtype)
        pointer = self.output_names[output]
        return f"tl.store({pointer} + {at}, {text}, mask={at} < {length})" if at else f"tl.store({pointer}, {text})"

    def _gathering_lines(self) -> list[str]:
        """A walk over all rows that adds up what sums and folds need, then the arithmetic on the results."""
        for value in walk(self.live):
            if value.word in ("sum", "fold"):
                name = self.running[id(value)] = self.names.new(f"running_{value.word}")
                text = self.vectors.plain(value.args[0])
                self.vectors.lines.append(f"{name} += tl.where(rows < {self.m}, {text}, 0.0)")
        folds = self.kind == "folds"
        dim = self._grid_dim()
        at, length = ("place", self.sizes.text(dim)) if folds and dim else ("", "")
        stores = [self._store(o, v, self.gathered, at, length) for o, v in self.live.items()]
        steps = [f"for start in range(0, {self.m}, BLOCK):", "    rows = start + tl.arange(0, BLOCK)"]
        head, loop, tail = self._turns(length) if folds else ([], steps, [])
        zeros = [f"{name} = tl.zeros(({self._rows},), tl.float32)" for name in self.running.values()]
        walked = (f"    {line}" for line in self.vectors.lines)
        return [*head, *zeros, *loop, *walked, *tail, *self.gathered.lines, *stores]

    def _turns(self, length: str) -> tuple[list[str], list[str], list[str]]:
        """What stands before a fold's walk, at its head and after it. The rows of a step are TURNS times BLOCK places
        in one vector, whose runs the compiler must see: a choice between rows would hide them, and threads would load
        one value each from as many lines of memory. So places past the end take rows of the next turn, never stored."""
        every = "tl.arange(0, TURNS * BLOCK)"
        place = "place = tl.program_id(0) * BLOCK + "
        head = [f"turn = {every} // BLOCK", f"{place}{every} % BLOCK"]
        loop = [f"for start in range(0, {self.m} // {length}, TURNS):", f"    rows = (start + turn) * {length} + place"]
        return head, loop, [f"{place}tl.arange(0, BLOCK)"]

    def _gathered_leaf(self, value: Value) -> Texts | None:
        if value.word == "sum":
            return ((f"tl.sum({self.running[id(value)]}, 0)", ATOM),)
        if value.word == "fold":
            return ((f"tl.sum(tl.reshape({self.running[id(value)]}, (TURNS, BLOCK)), 0)", ATOM),)
        return self._common(value, self.gathered)

    # -- vectors

    def _common(self, value: Value, into: Expressions) -> Texts | None:
        if value.word == "size":
            dim = value.attrs["dim"]
            assert isinstance(dim, Dim)
            return ((self.sizes.text(dim), ATOM),)
        if value.word == "cast":
            return self._cast(value, into)
        if value.word != "param":
            return None
        name = str(value.attrs["name"])
        kind = next(p.type.kind for p in self.finisher.params if p.name == name)
        if kind is TypeKind.SIZE:
            return ((self.sizes.text(next(p.type.dims[0] for p in self.finisher.params if p.name == name)), ATOM),)
        text = self._use(name)
        if kind is not TypeKind.SCALAR:
            return None
        return ((into.assign(name, f"tl.load({text})") if name in self.tensors.device_scalars else text, ATOM),)

    def _cast(self, value: Value, into: Expressions) -> Texts:
        """Rounded where it stands; a number may be one of Python's."""
        plain = value.rows is None and value.form is not Form.SUM
        text = f"tl.cast({into.plain(value.args[0])}, tl.float32)" if plain else into.atom(value.args[0])
        return ((f"{narrow(text, torch_name(str(value.attrs['dtype'])))}.to(tl.float32)", ATOM),)

    def _use(self, name: str) -> str:
        self.used[name] = None
        return self.param_names[name]

    def _vector_leaf(self, value: Value) -> Texts | None:
        if output := self.kept.get(id(value)):
            text = self.output_names.setdefault(output, self.names.new(f"{output}_out"))
            load = f"tl.load({text} + rows, mask=rows < {self.m}, other=0)"
            return ((self.vectors.assign(f"{output}_rows", load), ATOM),)
        common = self._common(value, self.vectors)
        if common:
            return common
        if value.word == "param":
            name = str(value.attrs["name"])
            load = f"tl.load({self._use(name)} + rows, mask=rows < {self.m}, other=0)"
            return (
                (
                    self.vectors.assign(f"{name}_rows", f"{load}.to(tl.float32)" if value.kind == "float" else load),
                    ATOM,
                ),
            )
        if value.word == "index":
            return (("rows", ATOM),)
        if value.word == "part" and value.args[0].word == "total_moments":
            return ((self._moments(value.args[0])[int(value.attrs["index"])], ATOM),)  # type: ignore[call-overload]
        if value.word == "total_logsumexp":
            return ((self._logsumexp(value), ATOM),)
        if value.word in _TOTALS:
            return ((self._total(value), ATOM),)
        return None

    # -- walks over the tiles of a partial

    def _walk(self, value: Value, update: list[str], reads: Expressions) -> None:
        """A loop over the tiles: `reads` holds what its lines need, `update` what they do."""
        tiles = self._tiles(value)
        self.vectors.lines += [f"for first in range(0, {tiles}, TILES):"]
        at = ["tiles = first + tl.arange(0, TILES)", f"live = (tiles[:, None] < {tiles}) & (rows[None, :] < {self.m})"]
        at += [f"at = tiles[:, None] * {self.m} + rows[None, :]"]
        self.vectors.lines += [f"    {line}" for line in [*at, *reads.lines, *update]]

    def _tiles(self, value: Value) -> str:
        """The number of tiles of the partials that an expression reads: all have one tiling."""
        partial = self._first_partial(value)
        if partial not in self.tile_params:
            name = self.names.new(f"{partial}_tiles")
            self.tile_params[partial] = UnitParam(name, "tiles", partial)
        return self.tile_params[partial].name

    def _first_partial(self, value: Value) -> str:
        kinds = {p.name: p.type.kind for p in self.finisher.params}
        names = (str(v.attrs["name"]) for v in walk([value]) if v.word == "param")
        return next(name for name in names if kinds[name] is TypeKind.PARTIAL)

    def _reader(self, *roots: Value) -> Expressions:
        """Expressions over [TILES, rows] blocks; what is no partial is computed before the loop."""

        def leaf(value: Value) -> Texts | None:
            if value.form is not Form.PARTIAL:
                text = self.vectors.texts(value)
                if value.word == "number":
                    return text
                name = text[0][0] if text[0][0].isidentifier() else self.vectors.assign("v", text[0][0])
                self.vectors.define(value, ((name, ATOM),))
                return ((f"{name}[None, :]" if value.rows is not None else name, ATOM),)
            if value.word == "param":
                name = str(value.attrs["name"])
                return (
                    (reads.assign(f"{name}_block", f"tl.load({self._use(name)} + at, mask=live, other=0.0)"), ATOM),
                )
            return self._cast(value, reads) if value.word == "cast" else None

        reads = Expressions(self.names, {}, self.count, leaf)
        return reads

    def _start(self, wanted: str, neutral: str, shape: str = "") -> str:
        name = self.names.new(wanted)
        self.vectors.lines.append(f"{name} = tl.full(({shape or f'{self._rows},'}), {neutral}, tl.float32)")
        return name

    def _total(self, value: Value) -> str:
        neutral, merge, reduce = _TOTALS[value.word]
        reads, wanted = self._reader(), self.wanted.get(id(value), "total")
        text = f"tl.where(live, {reads.plain(value.args[0])}, {neutral})"
        if self.kind == "folds":  # a total for each value of the block: threads meet once, after the walk
            block = self._start(f"{wanted}_block", neutral, f"TILES, {self._rows}")
            self._walk(value, [f"{block} = {merge.format(block, text)}"], reads)
            return self.vectors.assign(wanted, reduce.format(block))
        total = self._start(wanted, neutral)
        self._walk(value, [f"{total} = {merge.format(total, reduce.format(text))}"], reads)
        return total

    def _logsumexp(self, value: Value) -> str:
        reads = self._reader()
        text = reads.plain(value.args[0])
        top, weight = self._start("top", 'float("-inf")'), self._start("weight", "0.0")
        x, new, base = (self.names.new(n) for n in ("x", "new", "base"))
        update = [
            f'{x} = tl.where(live, {text}, float("-inf"))',
            f"{new} = tl.maximum({top}, tl.max({x}, 0))",
            f'{base} = tl.where({new} == float("-inf"), 0.0, {new})',
            f"{weight} = {weight} * tl.exp({top} - {base}) + tl.sum(tl.exp({x} - {base}[None, :]), 0)",
            f"{top} = {new}",
        ]
        self._walk(value, update, reads)
        return self.vectors.assign(self.wanted.get(id(value), "lse"), f"{top} + tl.log({weight})")

    def _moments(self, value: Value) -> tuple[str, str]:
        """Mean and variance (divided by the length) by Chan's rule, in two walks: the mean, then deviations from it."""
        if id(value) in self.moments:
            return self.moments[id(value)]
        partial = self._first_partial(value)
        reduced = self.tensors.params[partial].dims[1]
        n, width = self.sizes.text(reduced), self.names.new("TILE_WIDTH")
        self.tile_params[f"{partial}_width"] = UnitParam(width, "tile_width", partial)
        counts = f"tl.minimum({width}, {n} - tiles[:, None] * {width}).to(tl.float32)"
        first, second = self._reader(), self._reader()
        mean, m2 = self._start("mean", "0.0"), self._start("m2", "0.0")
        text = first.plain(value.args[0])
        self._walk(value, [f"{mean} += tl.sum(tl.where(live, {text} * {counts}, 0.0), 0) / {n}"], first)
        mean_text, m2_text = second.atom(value.args[0]), second.plain(value.args[1])
        away = f"({mean_text} - {mean}[None, :])"
        self._walk(value, [f"{m2} += tl.sum(tl.where(live, {m2_text} + {counts} * {away} * {away}, 0.0), 0)"], second)
        self.moments[id(value)] = (mean, self.vectors.assign("variance", f"{m2} / {n}"))
        return self.moments[id(value)]

    # -- the signature

    def _params(self, rows: int) -> list[UnitParam]:
        scalar = {p.name for p in self.finisher.params if p.type.kind is TypeKind.SCALAR} - self.tensors.device_scalars
        params = [
            UnitParam(self.param_names[name], "scalar" if name in scalar else "pointer", name) for name in self.used
        ]
        params += [UnitParam(text, "pointer", output, True) for output, text in self.output_names.items()]
        params += self.sizes.params() + list(self.tile_params.values())
        params.append(UnitParam("BLOCK", "constexpr", value=rows))
        if self.kind == "folds":
            params.append(UnitParam("TURNS", "constexpr", value=TURNS))
        if self.tile_params:
            tiles = TILES_OF_SUMS if self._holds_many else TILES_OF_FOLDS if self.kind == "folds" else TILES
            params.append(UnitParam("TILES", "constexpr", value=tiles))
        return params

"""A finisher as Triton text: one program a block of rows for its vectors, one program in all for its sums."""

from __future__ import annotations

from collections.abc import Mapping

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import Expressions, LoweringError, Names, Texts, author_names, uses
from coda_synth.coda_api.program import Finisher, Form, TypeKind, Value, walk
from coda_synth.coda_api.spelling import ATOM
from coda_synth.coda_api.unit_text import SizeNames, Tensors, UnitParam, UnitText, function, triton_dtype

BLOCK_ROWS = 32  # few rows a program, so that even a few thousand rows fill the device
BLOCK_ROWS_OF_SUMS = 1024  # one program walks all rows
TILES = 32  # partials read at once

_TOTALS = {
    "total_sum": ("0.0", "{0} + tl.sum({1}, 0)"),
    "total_max": ('float("-inf")', "tl.maximum({0}, tl.max({1}, 0))"),
}
_TOTALS["total_min"] = ('float("inf")', "tl.minimum({0}, tl.min({1}, 0))")


def emit_finisher(
    name: str, source: str, finisher: Finisher, live: Mapping[str, Value], tensors: Tensors
) -> list[UnitText]:
    """Up to two functions: the live vectors', called `name`, and the live sums', called `name`_sums."""
    texts = []
    for summing in (False, True):
        chosen = {name: v for name, v in live.items() if _is_sum(v) == summing}
        if chosen:
            texts.append(_FinisherEmitter(name, source, finisher, chosen, tensors, summing).emit())
    return texts


def _is_sum(value: Value) -> bool:
    return value.rows is None


class _FinisherEmitter:
    def __init__(
        self, name: str, source: str, finisher: Finisher, live: Mapping[str, Value], tensors: Tensors, summing: bool
    ) -> None:
        self.name = f"{name}_sums" if summing else name
        self.finisher, self.live, self.tensors, self.summing = finisher, live, tensors, summing
        self.names = Names((name, f"{name}_sums"))
        self.param_names = {p.name: self.names.new(p.name) for p in finisher.params}
        self.output_names = {o: self.names.new(f"{o}_out") for o in live}
        self.sizes = SizeNames(self.names, {}, frozenset())
        self.wanted = author_names(source, finisher.name, live)
        self.count = uses(live.values())
        self.vectors = Expressions(self.names, self.wanted, self.count, self._vector_leaf)
        self.scalars = Expressions(self.names, self.wanted, self.count, self._scalar_leaf)
        self.sums: dict[int, str] = {}
        self.moments: dict[int, tuple[str, str]] = {}
        self.used: dict[str, None] = {}
        self.tile_params: dict[str, UnitParam] = {}
        self.m = self.sizes.text(finisher.dim)

    def emit(self) -> UnitText:
        rows = BLOCK_ROWS_OF_SUMS if self.summing else BLOCK_ROWS
        stores = self._sum_stores() if self.summing else self._vector_stores()
        if self.summing:
            lines = [
                *(f"{total} = tl.zeros((BLOCK,), tl.float32)" for total in self.sums.values()),
                f"for start in range(0, {self.m}, BLOCK):",
                "    rows = start + tl.arange(0, BLOCK)",
                *(f"    {line}" for line in self.vectors.lines),
                *self.scalars.lines,
                *stores,
            ]
        else:
            lines = ["rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *self.vectors.lines, *stores]
        params = self._params(rows)
        names = [f"{p.name}: tl.constexpr" if p.kind in ("constexpr", "tile_width") else p.name for p in params]
        return UnitText(
            self.name, function(self.name, names, lines), tuple(params), "one" if self.summing else "rows", rows
        )

    # -- results

    def _vector_stores(self) -> list[str]:
        for output, value in self.live.items():
            inner = value.args[0] if value.word == "cast" else value
            text = (
                f"{self.vectors.atom(inner)}.to({triton_dtype(self.tensors.outputs[output].dtype)})"
                if value.word == "cast"
                else self.vectors.plain(inner)
            )
            self.vectors.lines.append(f"tl.store({self.output_names[output]} + rows, {text}, mask=rows < {self.m})")
        return []

    def _sum_stores(self) -> list[str]:
        for value in walk(self.live):
            if value.word == "sum":
                self.sums[id(value)] = self.names.new(self.wanted.get(id(value), "total") + "_sum")
                text = self.vectors.plain(value.args[0])
                total = self.sums[id(value)]
                self.vectors.lines.append(f"{total} += tl.where(rows < {self.m}, {text}, 0.0)")
        return [f"tl.store({self.output_names[o]}, {self.scalars.plain(v)})" for o, v in self.live.items()]

    def _scalar_leaf(self, value: Value) -> Texts | None:
        if value.word == "sum":
            return ((f"tl.sum({self.sums[id(value)]}, 0)", ATOM),)
        return self._common(value, self.scalars)

    # -- vectors

    def _common(self, value: Value, into: Expressions) -> Texts | None:
        if value.word == "size":
            dim = value.attrs["dim"]
            assert isinstance(dim, Dim)
            return ((self.sizes.text(dim), ATOM),)
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

    def _use(self, name: str) -> str:
        self.used[name] = None
        return self.param_names[name]

    def _vector_leaf(self, value: Value) -> Texts | None:
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
        if value.word == "cast":
            return (
                (
                    f"{self.vectors.atom(value.args[0])}.to({triton_dtype(str(value.attrs['dtype']))}).to(tl.float32)",
                    ATOM,
                ),
            )
        if value.word == "fold":
            raise LoweringError(f"{value.line}:{value.column}: fold is not available in this version's compiler")
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
        for v in walk([value]):
            if v.word == "param" and kinds[str(v.attrs["name"])] is TypeKind.PARTIAL:
                return str(v.attrs["name"])
        raise LoweringError(f"{value.line}:{value.column}: {value.word} needs a partial")

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
            return None

        reads = Expressions(self.names, {}, self.count, leaf)
        return reads

    def _start(self, wanted: str, neutral: str) -> str:
        name = self.names.new(wanted)
        self.vectors.lines.append(f"{name} = tl.full((BLOCK,), {neutral}, tl.float32)")
        return name

    def _total(self, value: Value) -> str:
        neutral, merge = _TOTALS[value.word]
        reads = self._reader()
        text = reads.plain(value.args[0])
        total = self._start(self.wanted.get(id(value), "total"), neutral)
        self._walk(value, [f"{total} = {merge.format(total, f'tl.where(live, {text}, {neutral})')}"], reads)
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
        if self.tile_params:
            params.append(UnitParam("TILES", "constexpr", value=TILES))
        return params

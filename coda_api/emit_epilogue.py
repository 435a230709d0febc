"""The epilogue of one kernel as a Triton function over one slice of the tile: its stores and its reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.emit_slice import SliceValues
from coda_synth.coda_api.geometry import Geometry
from coda_synth.coda_api.program import Form, Kernel, Value
from coda_synth.coda_api.spelling import ATOM
from coda_synth.coda_api.unit_text import Tensors, function, mentions, narrow

# Neutral values of the running states that row partials need, by word; a state is a tuple of [rows] vectors.
STATES: dict[str, tuple[tuple[str, str], ...]] = {
    "tile_sum": (("sum", "0.0"),),
    "tile_max": (("max", 'float("-inf")'),),
    "tile_min": (("min", 'float("inf")'),),
    "tile_logsumexp": (("max", 'float("-inf")'), ("sum", "0.0")),
    "tile_moments": (("count", "0.0"), ("mean", "0.0"), ("m2", "0.0")),
    "pick": (("picked", "0.0"),),
}
_NEUTRAL = {"tile_sum": "0.0", "tile_max": 'float("-inf")', "tile_min": 'float("inf")'}
REDUCE = {"tile_sum": "tl.sum", "tile_max": "reduce_max", "tile_min": "reduce_min"}
_MERGE = {"tile_sum": "{0} + {1}", "tile_max": "maximum({0}, {1})", "tile_min": "minimum({0}, {1})"}


class Epilogue:
    """Writes one slice's stores and reductions: `states` holds the names of running values by reduction."""

    slice_type: type[SliceValues] = SliceValues
    slice: SliceValues

    def __init__(
        self, name: str, source: str, kernel: Kernel, live: Mapping[str, Value], geometry: Geometry, tensors: Tensors
    ) -> None:
        self.kernel, self.live, self.tensors = kernel, live, tensors
        self.slice = self.slice_type(name, source, kernel, live, geometry, tensors)
        self.states: dict[int, tuple[str, ...]] = {}

    def emit(self) -> None:
        """Writes everything that leaves the slice, in the outputs' order."""
        for output, value in self.live.items():
            if value.form is Form.PARTIAL and self._reduction(value).attrs["axis"] == 0:
                self._column_partial(output, value)
            elif value.form in (Form.PARTIAL, Form.PICK):
                self._row_state(self._reduction(value))
            else:
                self._store(output, value)

    def _write(self, line: str) -> None:
        self.slice.inner.lines.append(line)

    def _reduction(self, value: Value) -> Value:
        return value.args[0] if value.word == "part" else value

    def _store(self, output: str, value: Value) -> None:
        info, pointer = self.tensors.outputs[output], self.slice.use(self.slice.output_names[output])
        inner = value.args[0] if value.word == "cast" else value  # the outermost cast is the store's own rounding
        assert value.cols is not None
        for s in range(self.slice.geometry.segments_of(value.cols)):
            text = narrow(self.slice.inner.atom(inner, s), info.dtype)
            if self.slice.described(pointer, info, value.cols):
                self.store_described(pointer, value.cols, s, text)
            else:
                at, mask = self.slice.place(value.cols, s)
                self._write(f"tl.store({pointer} + {at}, {text}, mask={mask})")

    def store_described(self, pointer: str, cols: Dim, segment: int, text: str) -> None:
        """Writes the store of one segment through a descriptor."""
        self._write(f"{pointer}.store([row, {self.slice.start(cols, segment)}], {text})")

    def _column_partial(self, output: str, value: Value) -> None:
        arg = value.args[0]
        assert arg.cols is not None and arg.rows is not None
        for s in range(self.slice.geometry.segments_of(arg.cols)):
            cols, n = self.slice.columns(arg.cols, s), self.slice.sizes.text(arg.cols)
            kept = self._existing_rows(value, s)
            pointer = self.slice.use(self.slice.output_names[output])
            at = self.slice.along(f"{pointer} + row // BLOCK_M * {n}", arg.cols, s)
            mask = self.slice.within_columns(cols, n)
            self._write(f"tl.store({at}, {REDUCE[value.word]}({kept}, 0), mask={mask})")

    def _existing_rows(self, value: Value, segment: int) -> str:
        """What a partial down the rows reduces, neutral where the matrix has ended."""
        arg = value.args[0]
        assert arg.cols is not None and arg.rows is not None
        live = self.slice.within_rows(f"{self.slice.rows_beside(arg.cols)}[:, None]", self.slice.sizes.text(arg.rows))
        return f"tl.where({live}, {self.slice.inner.plain(arg, segment)}, {_NEUTRAL[value.word]})"

    def _row_state(self, value: Value) -> None:
        if id(value) in self.states:
            return
        kinds = STATES[value.word]
        if value.word == "tile_logsumexp" and len(value.args) == 2:
            kinds = (*kinds, ("weighted", "0.0"))
        base = next((o for o, v in self.live.items() if self._reduction(v) is value), "part")
        state = tuple(self.slice.names.new(f"{base}_{suffix}") for suffix, _ in kinds)
        self.states[id(value)] = state
        arg = value.args[0]
        assert arg.cols is not None
        self._enter(state, arg.cols)
        for s in range(self.slice.geometry.segments_of(arg.cols)):
            self._write(f"{', '.join(state)} = {self._merged(value, state, s)}")
        self._leave(state, arg.cols)

    def _enter(self, state: tuple[str, ...], cols: Dim) -> None:
        """Before running values of rows meet a value over `cols`; a backend with explicit layouts converts them."""

    def _leave(self, state: tuple[str, ...], cols: Dim) -> None:
        """And afterwards."""

    def _merged(self, value: Value, state: tuple[str, ...], segment: int) -> str:
        arg = value.args[0]
        assert arg.cols is not None
        x, live = self.slice.inner.plain(arg, segment), self.slice.inside(arg.cols, segment)
        if value.word in REDUCE:
            return _MERGE[value.word].format(
                state[0], f"{REDUCE[value.word]}(tl.where({live}, {x}, {_NEUTRAL[value.word]}), 1)"
            )
        if value.word == "pick":
            target, _ = self.slice.beside(arg.cols, (self.slice.place_of(value.args[1], arg.cols), ATOM))
            here = self.slice.at_column(arg.cols, segment, target)
            return f"{state[0]} + tl.sum(tl.where({here}, {x}, 0.0), 1)"
        if value.word == "tile_moments":
            return f"merge_moments({', '.join(state)}, {x}, {live})"
        if len(state) == 3:
            return f"merge_weighted({', '.join(state)}, {x}, {self.slice.inner.plain(value.args[1], segment)}, {live})"
        return f"merge_logsumexp({', '.join(state)}, {x}, {live})"

    def function_text(self, name: str, extra: Sequence[str] = ()) -> tuple[str, list[str]]:
        """The function's text and the names it is passed after product, states, `extra`, row and col, in order."""
        states = [n for state in self.states.values() for n in state]
        text = "\n".join(self.slice.inner.lines)
        passed = [
            *self.slice.hoisted,
            *self.slice.used,
            *(n for n in self.slice.sizes.used.values() if mentions(text, n)),
        ]
        constants = {self.slice.sizes.used[s] for s in self.slice.sizes.used if s in self.slice.sizes.constant}
        products = self.slice.products if self.kernel.gemm else []
        params = [
            *products,
            *states,
            *extra,
            "row",
            "col",
            *(f"{p}: tl.constexpr" if p in constants else p for p in passed),
        ]
        for constant in ("BLOCK_M", "SLICE", "WARPS", "WHOLE_M", "WHOLE_N"):
            if mentions(text, constant):
                passed.append(constant)
                params.append(f"{constant}: tl.constexpr")
        body = [*self.slice.inner.lines, *([f"return {', '.join(states)}"] if states else [])]
        return function(name, params, body), passed

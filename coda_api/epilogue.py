"""The words of a kernel: what each makes of tiles, vectors and groups, and what may leave the kernel."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.formulas import common_kind, over, unknown
from coda_synth.coda_api.over_tile import TileBody, one_dim
from coda_synth.coda_api.program import Form, Kernel, Kind, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import Broken, did_you_mean, shown
from coda_synth.coda_api.syntax import Number, UnitText
from coda_synth.coda_api.tile import read_hints
from coda_synth.coda_api.words import Word

Attrs = dict[str, Any]
_ALONG_ROWS = ("tile_sum", "tile_max", "tile_min")


class Epilogue(TileBody):
    """A kernel while it is read: its words."""

    # -- words

    def operand(self, node: ast.expr) -> Value:
        return Value("operand", line=node.lineno)

    def word_gemm(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        if node is not self._gemms[0]:
            first = self._gemms[0].lineno
            raise rules.OneGemm(
                node,
                f"a kernel is one GEMM, and line {first} has one; give its result a name, or write a second kernel",
            )
        if self.tile is None or self.tile.gemm is None:
            return unknown(node)
        return self.make(node, "gemm", (), self.tile.rows, self.tile.cols)

    def word_halve(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        cols = self._columns(node, values)
        self._check_group(node, attrs, even=True)
        return self.make(node, word.name, values, values[0].rows, cols / 2, values[0].kind, attrs=attrs)

    def word_double(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        cols = self._columns(node, values)
        self._check_group(node, attrs, even=True)
        kind = common_kind(v.kind for v in values)
        return self.make(node, word.name, values, one_dim(node, values, 0), cols * 2, kind, attrs=attrs)

    def word_group(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        cols = self._columns(node, values)
        self._check_group(node, attrs)
        return self.make(node, word.name, values, values[0].rows, cols / attrs["group"], attrs=attrs)

    def word_spread(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        cols = self._columns(node, values)
        self._check_group(node, attrs)
        return self.make(node, word.name, values, values[0].rows, cols * attrs["group"], values[0].kind, attrs=attrs)

    def _columns(self, node: ast.Call, values: list[Value]) -> Dim:
        """The columns that all values have; raises DimMismatch."""
        self.usable(node, values)
        cols = one_dim(node, values, 1)
        if cols is None or any(v.cols is None for v in values):
            raise rules.DimMismatch(node, f"{shown(node)} works on columns, and its argument has none")
        return cols

    def _check_group(self, node: ast.Call, attrs: Attrs, even: bool = False) -> None:
        group = attrs.get("group")
        if group is None:
            return
        if self.tile and self.axis(group) is not None:
            raise rules.GroupSize(
                node,
                f'"{group}" is a dim of the tile, not a group in it; use a number, or a dim of known size such as "H"',
            )
        if even and group.is_number and (group.scale.denominator != 1 or group.scale % 2):
            raise rules.GroupSize(node, f"a group of {group} columns has no two halves")

    def word_rotation(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self.usable(node, values)
        pos, high, low = values
        if pos.kind is not Kind.INT:
            raise rules.KindMismatch(
                node.args[0], f'{shown(node.args[0])}: positions are integers; declare the parameter as Index["M"]'
            )
        if (
            pos.rows is None
            or pos.cols is not None
            or high.cols is None
            or high.rows
            or low.rows
            or high.cols != low.cols
        ):
            raise rules.DimMismatch(
                node,
                "rotation takes positions over rows and two frequency vectors over the same columns, not "
                f"{over(pos)}, {over(high)}, {over(low)}",
            )
        return self._several(node, word, values, pos.rows, high.cols, Form.TILE, attrs)

    def _several(
        self,
        node: ast.Call,
        word: Word,
        values: list[Value],
        rows: Dim | None,
        cols: Dim | None,
        form: Form,
        attrs: Attrs,
        count: int = 2,
    ) -> Value:
        return self.make(
            node, word.name, values, rows, cols, form=Form.SEVERAL, attrs={**attrs, "results": count, "form": form}
        )

    def word_index(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        if self.tile is None:
            return unknown(node)
        dim, axis = attrs["dim"], self.axis(attrs["dim"])
        if axis is None or (axis == 0 and dim != self.tile.rows):
            raise rules.ReduceDim(node, f'"{dim}" is no dim of the tile {self.tile}')
        self.check_columns(node, shown(node), dim if axis == 1 else None)
        rows, cols = (dim, None) if axis == 0 else (None, dim)
        return self.make(node, word.name, values, rows, cols, Kind.INT, attrs={**attrs, "axis": axis})

    def word_size(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        return self.make(node, word.name, values, kind=Kind.INT, attrs=attrs)

    def word_cycle(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (v,) = values
        if self.tile is None:
            return unknown(node)
        if (
            v.word != "param"
            or v.rows is not None
            or v.cols is None
            or v.form is not Form.TILE
            or self.axis(v.cols) is not None
        ):
            raise rules.DimMismatch(
                node, f'cycle repeats a vector parameter over a small dim, as Tensor["H"], not {shown(node.args[0])}'
            )
        if self.axis(attrs["dim"]) != 1:
            raise rules.ReduceDim(
                node, f'cycle works along the columns, "{self.tile.cols}" or a part of them, not "{attrs["dim"]}"'
            )
        self.check_columns(node, shown(node), attrs["dim"])
        return self.make(node, word.name, values, None, attrs["dim"], v.kind, attrs=attrs)

    def word_tile(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        rows, cols, _ = self.combine(node, values)
        x = values[0]
        if self.tile is None or rows is None or cols is None or x.rows is None or x.cols is None:
            raise rules.ReduceDim(
                node,
                f"{word.name} reduces a tile, and {shown(node.args[0])} is {over(x)}; multiply it with a tile first",
            )
        axis = self._reduced_axis(node, x, attrs["dim"])
        if axis == 0 and word.name not in _ALONG_ROWS:
            raise rules.ReduceDim(
                node.args[1],
                f'{word.name} works along columns, here "{x.cols}", and not along the rows "{x.rows}"; along rows '
                f"there are {', '.join(_ALONG_ROWS[:-1])} and {_ALONG_ROWS[-1]}",
                (node.args[1], f'"{x.cols}"'),
            )
        kept, reduced = (x.rows, x.cols) if axis == 1 else (x.cols, x.rows)
        attrs = {**attrs, "axis": axis}
        count = 2 if word.results == 2 or len(values) == 2 else 1
        if count == 2:
            return self._several(node, word, values, kept, reduced, Form.PARTIAL, attrs)
        return self.make(node, word.name, values, kept, reduced, form=Form.PARTIAL, attrs=attrs)

    def _reduced_axis(self, node: ast.Call, x: Value, dim: Dim) -> int:
        for axis, own in ((0, x.rows), (1, x.cols)):
            if dim == own:
                return axis
        raise self._wrong_reduced(node, x, dim)

    def _wrong_reduced(self, node: ast.Call, x: Value, dim: Dim) -> Broken:
        axis = self.axis(dim)
        own = (x.rows, x.cols)[axis] if axis is not None else None
        likely = own if own is not None else x.cols
        fix = (node.args[1], f'"{likely}"') if likely is not None else None
        advice = f'; write "{own}"' if own is not None else did_you_mean(str(dim), [str(x.rows), str(x.cols)])
        return rules.ReduceDim(
            node.args[1], f'{shown(node.args[0])} has the dims {over(x)}, and "{dim}" is neither{advice}', fix
        )

    def word_pick(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self.usable(node, values)
        z, t = values
        if z.rows is None or z.cols is None:
            raise rules.DimMismatch(node, f"pick takes a tile, and {shown(node.args[0])} is {over(z)}")
        if t.kind is not Kind.INT or t.cols is not None or t.rows != z.rows:
            raise rules.KindMismatch(
                node.args[1], f'pick takes one column number a row: declare the parameter as Index["{z.rows}"]'
            )
        return self.make(node, word.name, values, z.rows, None, form=Form.PICK, attrs=attrs)

    def word_cast(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (x,) = values
        self.usable(node, values)
        if x.kind is Kind.BOOL:
            raise rules.KindMismatch(node, "a condition is not a number; write where(condition, 1.0, 0.0)")
        return self.make(node, word.name, values, x.rows, x.cols, attrs=attrs)

    def word_accumulate(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self.usable(node, values)
        out, x = values
        name = out.attrs.get("name")
        if out.word != "param" or out.cols is None or out.rows is None:
            raise rules.AccumulateUse(
                node.args[0], f"accumulate adds into a matrix parameter, not {shown(node.args[0])}"
            )
        uses = sum(isinstance(n, ast.Name) and n.id == name for s in self.unit.node.body for n in ast.walk(s))
        if uses != 1:
            raise rules.AccumulateUse(node, f"{name!r} is accumulated into and must be used nowhere else in the kernel")
        if not any(node is item for item in _returned(self.unit.node)):
            raise rules.AccumulateUse(node, "accumulate stands outermost in a returned value")
        rows, cols, _ = self.combine(node, values)
        return self.make(node, word.name, values, rows, cols, attrs=attrs)

    # -- outputs

    def check_output(self, node: ast.expr, value: Value) -> None:
        if value.form in (Form.PARTIAL, Form.PICK):
            return
        self.usable(node, [value])
        if value.rows is None or value.cols is None:
            raise rules.VectorStored(
                node,
                f"{shown(node)} is {over(value)}; kernels store tiles, partials and picks, and a vector made from "
                "vectors belongs to a @finisher",
            )

    meanings: ClassVar[Mapping[str, Callable[[Any, ast.Call, Word, list[Value], Attrs], Value]]] = {
        "gemm": word_gemm,
        "halve": word_halve,
        "double": word_double,
        "group": word_group,
        "spread": word_spread,
        "rotation": word_rotation,
        "index": word_index,
        "size": word_size,
        "cycle": word_cycle,
        "tile": word_tile,
        "pick": word_pick,
        "cast": word_cast,
        "accumulate": word_accumulate,
    }


def read_kernel(
    unit: UnitText, constants: Mapping[str, Number], report: Report
) -> tuple[Kernel | None, dict[str, Value] | None]:
    """A kernel and its outputs; the kernel is None where its tile is not known, the outputs where its return is not."""
    body = Epilogue(unit, constants, report)
    outputs = body.read()
    hints = read_hints(unit, constants, report)
    if body.tile is None:
        return None, outputs
    tile = body.tile
    if tile.gemm is None:
        _check_pointwise(unit, hints, report)
    kernel = Kernel(unit.name, unit.params, tile.rows, tile.cols, tile.gemm, outputs or {}, hints, unit.node.lineno)
    return kernel, outputs


_OF_A_SUM: dict[str, tuple[object, ...]] = {"mainloop": ("auto", "portable"), "split_k": (1,), "cut": ("even",)}


def _check_pointwise(unit: UnitText, hints: Mapping[str, object], report: Report) -> None:
    """Reports hints that are of a gemm's sum, where there is none."""
    for word in unit.hints:
        name = str(word.arg)
        given = hints.get(name)
        if name in hints and given not in _OF_A_SUM.get(name, (given,)):
            said = f"{name}={given!r} says how a gemm is summed, and {unit.name!r} has no gemm; leave it out"
            report.add(rules.ScheduleHint(word, said, (word, f"{name}={_OF_A_SUM[name][0]!r}".replace("'", '"'))))


def _returned(node: ast.FunctionDef) -> list[ast.expr]:
    last = node.body[-1]
    return last.value.values if isinstance(last, ast.Return) and isinstance(last.value, ast.Dict) else []

"""The dims of a preparation: matrices and vectors of weights, rearranged and folded before the program runs.

A matrix has rows and columns; a vector has its dim as rows and no columns, and meets a matrix where the names agree:
along the matrix's rows, or along its columns.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from coda_synth.coda_api import rules
from coda_synth.coda_api.body import Body
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.formulas import over
from coda_synth.coda_api.program import Form, Kind, Preparation, Type, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import shown
from coda_synth.coda_api.syntax import Number, UnitText
from coda_synth.coda_api.words import Place, Word

Attrs = dict[str, Any]


class Arranging(Body):
    """A preparation while it is read."""

    place: ClassVar[Place] = Place.PREPARATION

    def load(self, node: ast.Name, name: str, type: Type) -> Value:
        cols = type.dims[1] if len(type.dims) == 2 else None
        return self.make(node, "param", (), type.dims[0], cols, attrs={"name": name})

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        matrices = {(v.rows, v.cols) for v in values if v.cols is not None}
        vectors = {v.rows for v in values if v.cols is None and v.rows is not None}
        if len(matrices) > 1 or (not matrices and len(vectors) > 1):
            raise rules.DimMismatch(
                node, f"{shown(node)} combines {' and '.join(sorted({over(v) for v in values}))}; dims combine by name"
            )
        rows, cols = next(iter(matrices), (next(iter(vectors), None), None))
        for vector in vectors if matrices else ():
            self._meets(node, vector, rows, cols)
        return rows, cols, Form.TILE

    def _meets(self, node: ast.expr, vector: Dim | None, rows: Dim | None, cols: Dim | None) -> int:
        """0 where a vector lies along the rows of a matrix, 1 along its columns."""
        if rows == cols == vector:
            raise rules.AmbiguousDim(
                node,
                f'{shown(node)}: both dims of the matrix are "{vector}"; give them '
                "two names, which a call may bind to one",
            )
        if vector not in (rows, cols):
            raise rules.DimMismatch(
                node, f'{shown(node)}: the vector over "{vector}" meets no dim of the matrix ["{rows}", "{cols}"]'
            )
        return 0 if vector == rows else 1

    def word_arrange(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        a, b = values
        if a.rows is None or (a.rows, a.cols) != (b.rows, b.cols):
            raise rules.PreparationDim(
                node, f"{word.name} takes two weights of the same dims, not {over(a)} and {over(b)}"
            )
        axis = self._axis(node, a, attrs["dim"])
        group = attrs.get("group")
        if group is not None and (group == attrs["dim"] or (group.is_number and group.scale % 2)):
            raise rules.GroupSize(
                node, f"blocks of {group} have no two halves; join takes an even number, or a dim of known size"
            )
        rows = a.rows * 2 if axis == 0 else a.rows
        cols = a.cols * 2 if axis == 1 and a.cols is not None else a.cols
        return self.make(node, word.name, values, rows, cols, attrs={**attrs, "axis": axis})

    def _axis(self, node: ast.Call, a: Value, dim: Dim) -> int:
        if a.rows == a.cols == dim:
            raise rules.AmbiguousDim(node, f'both dims of {shown(node.args[0])} are "{dim}"; give them two names')
        if dim not in (a.rows, a.cols):
            raise rules.PreparationDim(
                node.args[-1],
                f'{shown(node.args[0])} has the dims {over(a)}, and "{dim}" is none of them',
                (node.args[-1], f'"{a.rows}"'),
            )
        return 0 if dim == a.rows else 1

    def word_transpose(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (w,) = values
        if w.cols is None:
            raise rules.PreparationDim(node, f"transpose takes a matrix, and {shown(node.args[0])} is {over(w)}")
        return self.make(node, word.name, values, w.cols, w.rows, attrs=attrs)

    def word_matvec(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        w, v = values
        if w.cols is None or v.cols is not None or v.rows is None:
            raise rules.PreparationDim(node, f"matvec takes a matrix and a vector, not {over(w)} and {over(v)}")
        axis = self._meets(node, v.rows, w.rows, w.cols)
        return self.make(node, word.name, values, w.cols if axis == 0 else w.rows, None, attrs={**attrs, "axis": axis})

    def word_cast(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        return self.make(node, word.name, values, values[0].rows, values[0].cols, attrs=attrs)

    def word_size(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        return self.make(node, word.name, values, kind=Kind.INT, attrs=attrs)

    def check_output(self, node: ast.expr, value: Value) -> None:
        if value.rows is None:
            raise rules.PreparationDim(node, f"{shown(node)} is a number; a preparation returns matrices and vectors")

    meanings: ClassVar[Mapping[str, Callable[[Any, ast.Call, Word, list[Value], Attrs], Value]]] = {
        "arrange": word_arrange,
        "transpose": word_transpose,
        "matvec": word_matvec,
        "cast": word_cast,
        "size": word_size,
    }


def read_preparation(
    unit: UnitText, constants: Mapping[str, Number], report: Report
) -> tuple[Preparation, dict[str, Value] | None]:
    """A preparation and its outputs."""
    outputs = Arranging(unit, constants, report).read()
    return Preparation(unit.name, unit.params, outputs or {}, unit.node.lineno), outputs

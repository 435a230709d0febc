"""The dims of a finisher: vectors and partials along one dim, and the sums that leave it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from coda_synth.coda_api import rules
from coda_synth.coda_api.body import Body
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.formulas import over, unknown
from coda_synth.coda_api.program import Finisher, Form, Kind, Type, TypeKind, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import shown
from coda_synth.coda_api.syntax import Number, UnitText
from coda_synth.coda_api.words import Place, Word

Attrs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Together:
    """Partial parameters of a finisher that combine tile by tile: a call must take them from one call and one dim.

    moments: they are the two values of one tile_moments, in order.
    """

    names: frozenset[str]
    moments: tuple[str, str] | None
    line: int


class Finishing(Body):
    """A finisher while it is read."""

    place: ClassVar[Place] = Place.FINISHER

    def __init__(self, unit: UnitText, constants: Mapping[str, Number], report: Report) -> None:
        super().__init__(unit, constants, report)
        self.together: list[Together] = []
        self._sources: dict[int, frozenset[str]] = {}  # partial parameters behind a partial value
        self.dim: Dim | None = self.guard(self._find_dim, None)

    def _find_dim(self) -> Dim | None:
        if None in self.unit.types.values():
            return None
        dims: dict[Dim, str] = {}
        for param in self.unit.params:
            if param.type.kind in (TypeKind.PARTIAL, TypeKind.TENSOR, TypeKind.INDEX):
                dims.setdefault(param.type.dims[0], param.name)
        if len(dims) != 1:
            listed = ", ".join(f'{name} along "{dim}"' for dim, name in dims.items()) or "no vector and no partial"
            raise rules.FinisherDim(
                self.unit.node, f"a finisher works along one dim, and {self.unit.name!r} has {listed}"
            )
        return next(iter(dims))

    def load(self, node: ast.Name, name: str, type: Type) -> Value:
        if self.dim is None:
            return unknown(node)
        if type.kind is TypeKind.PARTIAL:
            kept, reduced = type.dims
            value = self.make(node, "param", (), kept, reduced, form=Form.PARTIAL, attrs={"name": name})
            self._sources[id(value)] = frozenset({name})
            return value
        kind = Kind.INT if type.kind is TypeKind.INDEX else Kind.FLOAT
        return self.make(node, "param", (), type.dims[0], None, kind, attrs={"name": name})

    # -- elementwise

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        rows = {v.rows for v in values if v.rows is not None}
        if len(rows) > 1:
            names = " and ".join(sorted(f'"{d}"' for d in rows))
            raise rules.DimMismatch(
                node, f"{shown(node)} combines vectors over {names}; dims combine by name, never by size"
            )
        sums = any(v.form is Form.SUM for v in values)
        if sums and rows:
            raise rules.SumUse(
                node,
                f"{shown(node)} combines a sum with a vector; return the sum, and pass it to the next unit as a Scalar",
            )
        if sums:
            return None, None, Form.SUM
        partials = [v for v in values if v.form is Form.PARTIAL]
        if partials:
            return self._tile_by_tile(node, partials)
        return next(iter(rows), None), None, Form.TILE

    def _tile_by_tile(self, node: ast.expr, partials: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        reduced = {v.cols for v in partials}
        if len(reduced) > 1:
            names = " and ".join(sorted(f'"{d}"' for d in reduced))
            raise rules.MixedTilings(
                node, f"{shown(node)} combines partials over the tiles of {names}; finish each one first (total_...)"
            )
        self._mix(node, partials)
        return partials[0].rows, partials[0].cols, Form.PARTIAL

    def _mix(self, node: ast.expr, partials: Sequence[Value], moments: tuple[str, str] | None = None) -> None:
        names = frozenset().union(*(self._behind(v) for v in partials))
        if len(names) > 1:
            self.together.append(Together(names, moments, node.lineno))

    def _behind(self, value: Value) -> frozenset[str]:
        """The partial parameters that a partial value was made from, tile by tile."""
        if id(value) not in self._sources:
            behind = [self._behind(a) for a in value.args if a.form is Form.PARTIAL]
            self._sources[id(value)] = frozenset().union(*behind)
        return self._sources[id(value)]

    # -- words

    def word_total(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self._need_partials(node, word, values)
        return self.make(node, word.name, values, values[0].rows, None, attrs=attrs)

    def word_total_moments(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self._need_partials(node, word, values)
        if any(v.word != "param" for v in values) or values[0] is values[1]:
            raise rules.PartialNeeded(
                node, "total_moments takes the two partials of one tile_moments as they come: parameters, mean first"
            )
        mean, m2 = (str(v.attrs["name"]) for v in values)
        if values[0].cols != values[1].cols:
            raise rules.MixedTilings(
                node, f"{mean} and {m2} reduce different dims; total_moments takes the two values of one tile_moments"
            )
        self._mix(node, values, (mean, m2))
        attrs = {**attrs, "results": 2, "form": Form.TILE}
        return self.make(node, word.name, values, values[0].rows, None, form=Form.SEVERAL, attrs=attrs)

    def _need_partials(self, node: ast.Call, word: Word, values: list[Value]) -> None:
        for argument, value in zip(node.args, values, strict=True):
            if value.form is not Form.PARTIAL:
                advice = (
                    "; to add up a vector write sum(v)" if word.name == "total_sum" and value.rows is not None else ""
                )
                raise rules.PartialNeeded(
                    argument, f"{word.name} finishes a Partial, and {shown(argument)} is {over(value)}{advice}"
                )

    def word_sum(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (v,) = values
        if v.form is not Form.TILE or v.rows is None:
            advice = "; finish it first: sum(total_sum(p))" if v.form is Form.PARTIAL else ""
            raise rules.SumUse(node, f"sum adds up a vector, and {shown(node.args[0])} is none{advice}")
        if v.kind is Kind.BOOL:
            raise rules.KindMismatch(node, "a condition is not a number; write sum(where(condition, 1.0, 0.0))")
        return self.make(node, word.name, values, form=Form.SUM, attrs=attrs)

    def word_fold(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (v,) = values
        if v.form is not Form.TILE or v.rows is None or v.rows != self.dim or v.kind is Kind.BOOL:
            raise rules.DimMismatch(
                node, f'fold adds up a vector over "{self.dim}", and {shown(node.args[0])} is {over(v)}'
            )
        if self.dim.symbols & attrs["dim"].symbols:
            raise rules.GroupSize(
                node, f'"{attrs["dim"]}" is the finisher\'s own dim; fold to a dim of known size such as "H"'
            )
        return self.make(node, word.name, values, attrs["dim"], None, attrs=attrs)

    def word_index(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        if self.dim is None:
            return unknown(node)
        if attrs["dim"] != self.dim:
            raise rules.ReduceDim(
                node, f'this finisher works along "{self.dim}", not "{attrs["dim"]}"', (node.args[0], f'"{self.dim}"')
            )
        return self.make(node, word.name, values, self.dim, None, Kind.INT, attrs={**attrs, "axis": 0})

    def word_size(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        return self.make(node, word.name, values, kind=Kind.INT, attrs=attrs)

    def word_cast(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        rows, cols, form = self.combine(node, values)
        if values[0].kind is Kind.BOOL:
            raise rules.KindMismatch(node, "a condition is not a number; write where(condition, 1.0, 0.0)")
        return self.make(node, word.name, values, rows, cols, form=form, attrs=attrs)

    # -- outputs

    def check_output(self, node: ast.expr, value: Value) -> None:
        if value.form is Form.PARTIAL:
            raise rules.PartialLeft(
                node,
                f"{shown(node)} is still a partial; finish it with total_sum, total_max, total_min or total_logsumexp",
            )
        if value.form is Form.TILE and value.rows is None:
            raise rules.FinisherOutput(
                node, f"{shown(node)} is a number without a dim; a finisher returns vectors and sums"
            )

    meanings: ClassVar[Mapping[str, Callable[[Any, ast.Call, Word, list[Value], Attrs], Value]]] = {
        "total": word_total,
        "total_moments": word_total_moments,
        "sum": word_sum,
        "fold": word_fold,
        "index": word_index,
        "size": word_size,
        "cast": word_cast,
    }


def read_finisher(
    unit: UnitText, constants: Mapping[str, Number], report: Report
) -> tuple[Finisher | None, dict[str, Value] | None, tuple[Together, ...]]:
    """A finisher, its outputs, and the partials that its calls must take together."""
    body = Finishing(unit, constants, report)
    outputs = body.read()
    together = tuple(dict.fromkeys(body.together))
    if body.dim is None:
        return None, outputs, together
    return Finisher(unit.name, unit.params, body.dim, outputs or {}, unit.node.lineno), outputs, together

"""What a kernel's parameters are over its tile, and which values may meet there."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.body import Body
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.formulas import unknown
from coda_synth.coda_api.program import Form, Kind, Type, TypeKind, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import Broken, nearest, shown
from coda_synth.coda_api.syntax import Number, UnitText
from coda_synth.coda_api.tile import Tile, calls_of, find_tile
from coda_synth.coda_api.words import HABITS, LOOKUP, NAMES, Place

Attrs = dict[str, Any]


class TileBody(Body):
    """A kernel while it is read. Without a valid tile every load is unknown; only names and words are checked."""

    place: ClassVar[Place] = Place.KERNEL

    def __init__(self, unit: UnitText, constants: Mapping[str, Number], report: Report) -> None:
        super().__init__(unit, constants, report)
        self._gemms = calls_of(unit.node, "gemm")
        hidden = not self._gemms and any(map(_perhaps_gemm, ast.walk(unit.node)))  # that error is told where it stands
        self.tile: Tile | None = None if hidden else self.guard(lambda: find_tile(unit, self._gemms), None)

    def axis(self, dim: Dim) -> int | None:
        """0 where a dim lies over the tile's rows, 1 over its columns, None over neither."""
        return self.tile.axis(dim) if self.tile else None

    @property
    def columns(self) -> str:
        return str(self.tile.cols) if self.tile else ""

    def load(self, node: ast.Name, name: str, type: Type) -> Value:
        if self.tile is None:
            return unknown(node)
        rows, cols = self._over(node, name, type)
        kind = Kind.INT if type.kind is TypeKind.INDEX else Kind.FLOAT
        return self.make(node, "param", (), rows, cols, kind, attrs={"name": name})

    def _over(self, node: ast.Name, name: str, type: Type) -> tuple[Dim | None, Dim | None]:
        assert self.tile
        if len(type.dims) == 1:
            dim = type.dims[0]
            row = self.axis(dim) == 0
            self._check_rows(node, name, type, dim if row else None)
            if self.axis(dim) == 1:
                self.check_columns(node, f"{name}: {type}", dim)
            return (dim, None) if row else (None, dim)
        first, second = type.dims
        if self.axis(first) != 0 or self.axis(second) != 1 or self.tile.rows.symbols & second.symbols:
            raise self._not_over_tile(node, name, type)
        self._check_rows(node, name, type, first)
        self.check_columns(node, f"{name}: {type}", second)
        return first, second

    def check_columns(self, node: ast.AST, what: str, cols: Dim | None) -> None:
        """Raises where a value has 3, 5, 6, ... columns for each of the tile's, which no tile holds."""
        times = (cols / self.tile.cols if cols and self.tile else Dim()).scale.numerator
        if cols and self.tile and (cols / self.tile.cols).is_number and times & (times - 1):
            raise rules.NotOverTile(
                node,
                f'{what} has the columns "{cols}", and a tile of columns "{self.tile.cols}" holds as many, 2, 4, ... '
                "times as many, or a part of them; make it narrower where it is stored",
            )

    def _check_rows(self, node: ast.AST, name: str, type: Type, rows: Dim | None) -> None:
        assert self.tile
        if rows is not None and rows != self.tile.rows:
            raise rules.NotOverTile(node, f'{name}: {type} has rows "{rows}", but the tile has rows "{self.tile.rows}"')

    def _not_over_tile(self, node: ast.Name, name: str, type: Type) -> Broken:
        assert self.tile
        gemm = self.tile.gemm
        message = f"{name}: {type} does not lie over the tile {self.tile}, and an epilogue sees its own tile only"
        if gemm and name in (gemm.a, gemm.b):
            message += f'; it is an operand of the gemm, summed along "{gemm.inner}"'
        elif self.axis(type.dims[0]) == 1 and self.axis(type.dims[1]) == 0:
            message += "; it lies transposed: swap rows and columns of the kernel, or store it the other way round"
        return rules.NotOverTile(node, message)

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        self.usable(node, values)
        return one_dim(node, values, 0), one_dim(node, values, 1), Form.TILE

    def usable(self, node: ast.expr, values: Sequence[Value]) -> None:
        """Raises where a partial, a pick or a vector over neither dim of the tile is used as a value."""
        for index, value in enumerate(values):
            if value.form is Form.PARTIAL:
                others = any(v.rows is not None or v.cols is not None for v in values if v is not value)
                whole = repairs.outermost(self.unit.node, node)
                part = None if others else repairs.operand(node, index)  # a number can be left to whoever finishes it
                raise rules.PartialUse(
                    node,
                    f"{shown(node)} uses a partial, which holds one tile's share only; return it, finish it in a "
                    "@finisher (total_...), and pass the result to the next kernel",
                    (whole, ast.unparse(part)) if part else None,
                )
            if value.form is Form.PICK:
                raise rules.PartialUse(
                    node, f"{shown(node)} uses a pick, which one tile alone knows; return it and use it in a later unit"
                )
            if value.cols is not None and self.axis(value.cols) is None:
                raise self._small(node, value)

    def _small(self, node: ast.expr, value: Value) -> Broken:
        assert self.tile
        name, dim = value.attrs.get("name", "it"), value.cols
        if self.tile.gemm and dim == self.tile.gemm.inner:
            advice = (
                "the gemm sums along it: multiply the operand by it in an earlier unit, or fold it into the weight "
                "in a @prepare"
            )
        else:
            advice = (
                f'repeat it along the columns with cycle({name}, "{self.tile.cols}"), or '
                "declare it "
                f'over "{self.tile.cols}"'
            )
        return rules.NotOverTile(
            node,
            f'{name}: Tensor["{dim}"] lies over neither rows "{self.tile.rows}" nor '
            "columns "
            f'"{self.tile.cols}"; {advice}',
        )


def one_dim(node: ast.expr, values: Sequence[Value], axis: int) -> Dim | None:
    """The one dim along an axis of values that combine, if any has it; raises DimMismatch."""
    found = {d: v for v in values if (d := (v.rows, v.cols)[axis]) is not None}
    if len(found) > 1:
        names = " and ".join(f'"{d}"' for d in found)
        what = ("rows", "columns")[axis]
        raise rules.DimMismatch(
            node, f"{shown(node)} combines values with the {what} {names}; dims combine by name, never by size"
        )
    return next(iter(found), None)


def _perhaps_gemm(node: ast.AST) -> bool:
    """Whether this is no expression of the language, and its author may have meant the gemm: the tile is then not
    known, and every value that does not lie over a tile without it would be told as a mistake of its own."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return HABITS.get(name, name) == "gemm"
        case ast.Call(func=ast.Name(id=name)) if name not in NAMES:
            meant = HABITS.get(name) or nearest(name, [n for p, n in LOOKUP if p is Place.KERNEL])
            return meant == "gemm" or (meant is None and len(node.args) > 1)
    return False

"""The dims of a kernel: its tile, what each parameter is over it, and what each word makes of tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from coda_synth.coda_api import rules
from coda_synth.coda_api.body import Body, over, unknown
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Form, Gemm, Kernel, Kind, Type, TypeKind, Value
from coda_synth.coda_api.rules import Broken, Report, did_you_mean, shown
from coda_synth.coda_api.schedule import HINTS, Schedule, ScheduleError
from coda_synth.coda_api.syntax import Number, UnitText
from coda_synth.coda_api.words import Place, Word

Attrs = dict[str, Any]


class Epilogue(Body):
    """A kernel while it is read. Without a valid tile every load is unknown, and only names and words are checked."""

    place: ClassVar[Place] = Place.KERNEL

    def __init__(self, unit: UnitText, constants: Mapping[str, Number], report: Report) -> None:
        super().__init__(unit, constants, report)
        self.gemm: Gemm | None = None
        self._product: Value | None = None
        self._gemms = _calls(unit.node, "gemm")
        self.tile: tuple[Dim, Dim] | None = self.guard(self._find_tile, None)

    # -- the tile

    def _find_tile(self) -> tuple[Dim, Dim] | None:
        if None in self.unit.types.values():
            return None
        rows, cols = self._contract(self._gemms[0]) if self._gemms else self._pointwise()
        for dim in (rows, cols):
            if len(dim.powers) != 1 or dim.powers[0][1] != 1:
                raise rules.TileDims(
                    self.unit.node,
                    f'the tile\'s dim "{dim}" must be one symbol, perhaps times a number; symbols are local, so write "N" and the call binds it',
                )
        if rows.symbols == cols.symbols:
            raise rules.TileDims(
                self.unit.node,
                f'rows "{rows}" and columns "{cols}" share a symbol; give them two, which a call may bind to one dim',
            )
        return rows, cols

    def _contract(self, call: ast.Call) -> tuple[Dim, Dim]:
        if len(call.args) != 2 or call.keywords:
            raise rules.WordArguments(call, "gemm takes two matrix parameters: gemm(a, b)")
        (a, left), (b, right) = (self._matrix(argument) for argument in call.args)
        if a == b:
            raise rules.GemmOperand(
                call, "the operands of a gemm are two parameters; the program may pass one tensor to both"
            )
        shared = [d for d in left if d in right]
        if len(shared) != 1 or left[0] == left[1] or right[0] == right[1]:
            what = ", ".join(f'"{d}"' for d in shared) or "none"
            raise rules.Contraction(
                call,
                f"{a}: {_tensor(left)} and {b}: {_tensor(right)} must share exactly one dim, over which the gemm sums; they share {what}",
            )
        inner = shared[0]
        self.gemm = Gemm(a, b, left[0] == inner, right[1] == inner, inner)
        return left[1 - left.index(inner)], right[1 - right.index(inner)]

    def _matrix(self, node: ast.expr) -> tuple[str, tuple[Dim, ...]]:
        type = self.unit.types.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and type and type.kind is TypeKind.TENSOR and len(type.dims) == 2:
            return node.id, type.dims
        raise rules.GemmOperand(
            node,
            f"gemm takes matrix parameters as they lie, not {shown(node)}; scale the product, or make the operand in an earlier unit",
        )

    def _pointwise(self) -> tuple[Dim, Dim]:
        for param in self.unit.params:
            if param.type.kind is TypeKind.TENSOR and len(param.type.dims) == 2:
                return param.type.dims[0], param.type.dims[1]
        raise rules.TileDims(
            self.unit.node,
            f"{self.unit.name!r} has no gemm and no matrix parameter, so it has no tile; vectors belong to a @finisher",
        )

    def axis(self, dim: Dim) -> int | None:
        """0 where a dim lies over the tile's rows, 1 over its columns, None over neither."""
        assert self.tile
        rows, cols = self.tile
        if rows.symbols & dim.symbols:
            return 0
        return 1 if cols.symbols & dim.symbols else None

    # -- parameters

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
            return (dim, None) if row else (None, dim)
        first, second = type.dims
        if self.axis(first) != 0 or self.axis(second) != 1 or self.tile[0].symbols & second.symbols:
            raise self._not_over_tile(node, name, type)
        self._check_rows(node, name, type, first)
        return first, second

    def _check_rows(self, node: ast.AST, name: str, type: Type, rows: Dim | None) -> None:
        assert self.tile
        if rows is not None and rows != self.tile[0]:
            raise rules.NotOverTile(node, f'{name}: {type} has rows "{rows}", but the tile has rows "{self.tile[0]}"')

    def _not_over_tile(self, node: ast.Name, name: str, type: Type) -> Broken:
        assert self.tile
        rows, cols = self.tile
        message = (
            f'{name}: {type} does not lie over the tile ["{rows}", "{cols}"], and an epilogue sees its own tile only'
        )
        if self.gemm and name in (self.gemm.a, self.gemm.b):
            message += f'; it is an operand of the gemm, summed along "{self.gemm.inner}"'
        elif self.axis(type.dims[0]) == 1 and self.axis(type.dims[1]) == 0:
            message += "; it lies transposed: swap rows and columns of the kernel, or store it the other way round"
        return rules.NotOverTile(node, message)

    # -- elementwise

    def combine(self, node: ast.expr, values: Sequence[Value]) -> tuple[Dim | None, Dim | None, Form]:
        self.usable(node, values)
        return _one(node, values, 0), _one(node, values, 1), Form.TILE

    def usable(self, node: ast.expr, values: Sequence[Value]) -> None:
        """Raises where a partial, a pick or a vector over neither dim of the tile is used as a value."""
        for value in values:
            if value.form is Form.PARTIAL:
                raise rules.PartialUse(
                    node,
                    f"{shown(node)} uses a partial, which holds one tile's share only; return it, finish it in a @finisher (total_...), "
                    "and pass the result to the next kernel",
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
        if self.gemm and dim is not None and dim == self.gemm.inner:
            advice = "the gemm sums along it: multiply the operand by it in an earlier unit, or fold it into the weight in a @prepare"
        else:
            advice = (
                f'repeat it along the columns with cycle({name}, "{self.tile[1]}"), or declare it over "{self.tile[1]}"'
            )
        return rules.NotOverTile(
            node,
            f'{name}: Tensor["{dim}"] lies over neither rows "{self.tile[0]}" nor columns "{self.tile[1]}"; {advice}',
        )

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
        if self.tile is None or self.gemm is None:
            return unknown(node)
        return self.make(node, "gemm", (), *self.tile)

    def word_halve(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (x,) = self._with_cols(node, values)
        self._check_group(node, attrs, even=True)
        return self.make(node, word.name, values, x.rows, x.cols / 2, x.kind, attrs=attrs)  # type: ignore[operator]

    def word_double(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        self._check_group(node, attrs, even=True)
        rows, cols, _ = self.combine(node, self._with_cols(node, values))
        return self.make(node, word.name, values, rows, cols * 2, _promoted(values), attrs=attrs)  # type: ignore[operator]

    def word_group(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (x,) = self._with_cols(node, values)
        self._check_group(node, attrs)
        return self.make(node, word.name, values, x.rows, x.cols / attrs["group"], attrs=attrs)  # type: ignore[operator]

    def word_spread(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        (x,) = self._with_cols(node, values)
        self._check_group(node, attrs)
        return self.make(node, word.name, values, x.rows, x.cols * attrs["group"], x.kind, attrs=attrs)  # type: ignore[operator]

    def _with_cols(self, node: ast.Call, values: list[Value]) -> list[Value]:
        self.usable(node, values)
        if any(v.cols is None for v in values):
            raise rules.DimMismatch(node, f"{shown(node)} works on columns, and its argument has none")
        return values

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
                f"rotation takes positions over rows and two frequency vectors over the same columns, not {over(pos)}, {over(high)}, {over(low)}",
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
        if axis is None or (axis == 0 and dim != self.tile[0]):
            raise rules.ReduceDim(node, f'"{dim}" is no dim of the tile ["{self.tile[0]}", "{self.tile[1]}"]')
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
                node, f'cycle works along the columns, "{self.tile[1]}" or a part of them, not "{attrs["dim"]}"'
            )
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
        fix = (node.args[1], f'"{own}"') if own is not None else None
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

    def word_logical(self, node: ast.Call, word: Word, values: list[Value], attrs: Attrs) -> Value:
        raise NotImplementedError  # operators only; never called by name

    # -- outputs

    def check_output(self, node: ast.expr, value: Value) -> None:
        if value.form in (Form.PARTIAL, Form.PICK):
            return
        self.usable(node, [value])
        if value.rows is None or value.cols is None:
            raise rules.VectorStored(
                node,
                f"{shown(node)} is {over(value)}; kernels store tiles, partials and picks, and a vector made from vectors belongs to a @finisher",
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
    hints = _hints(unit, constants, report)
    if body.tile is None:
        return None, outputs
    return Kernel(unit.name, unit.params, *body.tile, body.gemm, outputs or {}, hints, unit.node.lineno), outputs


def _hints(unit: UnitText, constants: Mapping[str, Number], report: Report) -> dict[str, object]:
    hints: dict[str, object] = {}
    for word in unit.hints:
        value = word.value.value if isinstance(word.value, ast.Constant) else None
        if isinstance(word.value, ast.Name):
            value = constants.get(word.value.id)
        try:
            if word.arg in HINTS and type(value) is not int:
                raise ScheduleError(f"{word.arg} = {shown(word.value)} is not a whole number")
            Schedule().with_hints({**hints, str(word.arg): value})
            hints[str(word.arg)] = value
        except ScheduleError as error:
            report.add(
                rules.ScheduleHint(
                    word, f"{error}{did_you_mean(str(word.arg), HINTS) if word.arg not in HINTS else ''}"
                )
            )
    return hints


def _one(node: ast.expr, values: Sequence[Value], axis: int) -> Dim | None:
    found = {d: v for v in values if (d := (v.rows, v.cols)[axis]) is not None}
    if len(found) > 1:
        names = " and ".join(f'"{d}"' for d in found)
        what = ("rows", "columns")[axis]
        raise rules.DimMismatch(
            node, f"{shown(node)} combines values with the {what} {names}; dims combine by name, never by size"
        )
    return next(iter(found), None)


def _promoted(values: Sequence[Value]) -> Kind:
    kinds = {v.kind for v in values}
    return kinds.pop() if len(kinds) == 1 else Kind.FLOAT


def _tensor(dims: Sequence[Dim]) -> str:
    return "Tensor[" + ", ".join(f'"{d}"' for d in dims) + "]"


def _calls(node: ast.FunctionDef, name: str) -> list[ast.Call]:
    """The calls of a word in the order of the text."""
    found = [
        c
        for s in node.body
        for c in ast.walk(s)
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and c.func.id == name
    ]
    return sorted(found, key=lambda c: (c.lineno, c.col_offset))


def _returned(node: ast.FunctionDef) -> list[ast.expr]:
    last = node.body[-1]
    return last.value.values if isinstance(last, ast.Return) and isinstance(last.value, ast.Dict) else []

"""Finds the tile of a kernel from its gemm, or from its first matrix, and checks its schedule hints."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Gemm, TypeKind
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import did_you_mean, shown
from coda_synth.coda_api.schedule import ALLOWED, HINTS, Schedule, ScheduleError, mainloop_fault
from coda_synth.coda_api.syntax import Number, UnitText


@dataclass(frozen=True, slots=True)
class Tile:
    """What a kernel's epilogue sees: rows and columns, each one symbol times a number, and the gemm that fills it."""

    rows: Dim
    cols: Dim
    gemm: Gemm | None = None

    def axis(self, dim: Dim) -> int | None:
        """0 where a dim lies over the rows, 1 over the columns, None over neither."""
        if self.rows.symbols & dim.symbols:
            return 0
        return 1 if self.cols.symbols & dim.symbols else None

    def __str__(self) -> str:
        return f'["{self.rows}", "{self.cols}"]'


def find_tile(unit: UnitText, gemms: Sequence[ast.Call]) -> Tile | None:
    """The tile of a kernel; None where a broken type hides it. Raises the rule that it breaks."""
    if None in unit.types.values():
        return None
    tile = _contract(unit, gemms[0]) if gemms else _pointwise(unit)
    for dim in (tile.rows, tile.cols):
        if len(dim.powers) != 1 or dim.powers[0][1] != 1:
            raise rules.TileDims(
                unit.node,
                f'the tile\'s dim "{dim}" must be one symbol, perhaps times a number; symbols are local, '
                'so write "N" and the call binds it',
            )
    if tile.rows.symbols == tile.cols.symbols:
        raise rules.TileDims(
            unit.node,
            f'rows "{tile.rows}" and columns "{tile.cols}" share a symbol; give them '
            "two, which a call may bind to one dim",
        )
    return tile


def _contract(unit: UnitText, call: ast.Call) -> Tile:
    if len(call.args) != 2 or call.keywords:
        raise rules.WordArguments(call, "gemm takes two matrix parameters: gemm(a, b)")
    (a, left), (b, right) = (_matrix(unit, argument) for argument in call.args)
    if a == b:
        advice = "the program may pass one tensor to both"
        raise rules.GemmOperand(call, f"the operands of a gemm are two parameters; {advice}")
    shared = [d for d in left if d in right]
    if len(shared) != 1 or left[0] == left[1] or right[0] == right[1]:
        what = ", ".join(f'"{d}"' for d in shared) or "none"
        raise rules.Contraction(
            call,
            f"{a}: {_tensor(left)} and {b}: {_tensor(right)} must share exactly one dim, over which the gemm sums; "
            f"they share {what}",
        )
    inner = shared[0]
    gemm = Gemm(a, b, left[0] == inner, right[1] == inner, inner)
    return Tile(left[1 - left.index(inner)], right[1 - right.index(inner)], gemm)


def _matrix(unit: UnitText, node: ast.expr) -> tuple[str, tuple[Dim, ...]]:
    type = unit.types.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Name) and type and type.kind is TypeKind.TENSOR and len(type.dims) == 2:
        return node.id, type.dims
    raise rules.GemmOperand(
        node,
        f"gemm takes matrix parameters as they lie, not {shown(node)}; scale the product, or make the operand in an "
        "earlier unit",
        repairs.matrix(node, unit.matrices),
    )


def _pointwise(unit: UnitText) -> Tile:
    for param in unit.params:
        if param.type.kind is TypeKind.TENSOR and len(param.type.dims) == 2:
            return Tile(*param.type.dims)
    raise rules.TileDims(
        unit.node,
        f"{unit.name!r} has no gemm and no matrix parameter, so it has no tile; vectors belong to a @finisher",
    )


def calls_of(node: ast.FunctionDef, name: str) -> list[ast.Call]:
    """The calls of a word in the order of the text."""
    everything = (n for statement in node.body for n in ast.walk(statement))
    calls = [n for n in everything if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name]
    return sorted(calls, key=lambda c: (c.lineno, c.col_offset))


def read_hints(unit: UnitText, constants: Mapping[str, Number], report: Report) -> dict[str, object]:
    """The schedule hints of a kernel that can work; the others are reported."""
    hints: dict[str, object] = {}
    for word in unit.hints:
        name = str(word.arg)
        try:
            value = _hint(name, word.value, constants)
            if name in hints:
                raise ScheduleError(f"{name} is said twice")
            Schedule().with_hints({**hints, name: value})
            hints[name] = value
        except ScheduleError as error:
            close = did_you_mean(name, HINTS) if name not in HINTS else ""
            report.add(rules.ScheduleHint(word, f"{error}{close}", repairs.hint(word)))
    slices = hints.get("slice_n")
    block_n = max(128, slices) if isinstance(slices, int) else 128
    asked = Schedule(block_m=128, block_n=block_n, stages=2).with_hints(hints)  # what is left out is chosen to fit
    if asked.mainloop in ("hopper", "pingpong") and (fault := mainloop_fault(asked)):
        word = next(w for w in unit.hints if w.arg == "mainloop")
        report.add(rules.ScheduleHint(word, fault, (word, 'mainloop="auto"')))
    return hints


def _hint(name: str, node: ast.expr, constants: Mapping[str, Number]) -> object:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Name):
        value = constants.get(node.id)
    kind = type(ALLOWED[name][0]) if name in ALLOWED else int
    if name in HINTS and type(value) is not kind:
        wanted = "a whole number" if kind is int else f"one of {', '.join(map(repr, ALLOWED[name]))}"
        raise ScheduleError(f"{name} = {shown(node)} is not {wanted}")
    return value


def _tensor(dims: Sequence[Dim]) -> str:
    return "Tensor[" + ", ".join(f'"{d}"' for d in dims) + "]"

"""The algebra of contractions: what commutes past a GEMM, what a weight can take in, which GEMMs become one.

Also what is prepared of weights: merged and folded matrices, and frequencies in turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coda_synth.agent.planner_expr import (
    BINDERS,
    COL,
    ROW,
    Expr,
    div,
    factors,
    mul,
    number,
    product,
    rebuild,
    sides,
    walk,
)
from coda_synth.agent.planner_plan import PreparationPlan
from coda_synth.agent.planner_stuck import Stuck
from coda_synth.coda_api.dims import Dim

if TYPE_CHECKING:
    from coda_synth.agent.planner_rules import Derivation

_TWO_PI = Expr("mul", (number(2), Expr("pi")))
_COMMUTES = "A row's scale is constant along the reduction, so it commutes past the GEMM and is applied to its product."
_FOLDS = "A gain along the inner dim is folded into the weight once, so the GEMM's operand is stored without it."
_NORMALISED = (
    "Where no GEMM makes an operand, the pass that stores it applies the row's scale and the gain in fp32, and rounds "
    "their product once."
)
_STORED = "What one GEMM's epilogue makes and the next GEMM contracts is stored once, in the activation dtype."
_MERGES = (
    "Both weights meet the same operand, so their rows are interleaved once: one GEMM puts each pair of results side "
    "by side in a tile, what combines them is tile-local, and neither product is ever stored."
)
_APART = "A tile holds one product; another one is stored by a kernel of its own and read as a tile."
_ANGLE = "An angle is a position times a frequency, kept in turns as a hi/lo pair so that far positions stay accurate."
CONTRACTIONS = (_COMMUTES, _FOLDS, _NORMALISED, _STORED, _MERGES, _APART, _ANGLE)


def contraction(d: Derivation, gemm: Expr) -> Expr:
    """A GEMM of stored operands, times what commutes past it."""
    left, right = gemm.args
    if gemm.axes == (COL, ROW):
        left, right = _transposed(d, right, gemm), _transposed(d, left, gemm)
        gemm = replace(gemm, axes=(ROW, COL), dims=(gemm.dims[1], gemm.dims[0], gemm.dims[2]))
    parts = factors(left)
    scales = _commuting(d, parts)
    left, right = _folded(d, [p for p in parts if p not in scales], right)
    operands = (_operand(d, left), _operand(d, right))
    if any(sides(p) for p, _ in scales):
        d.note(_COMMUTES)
    return mul(replace(gemm, args=operands), d.lowered(product(scales)))


def _commuting(d: Derivation, parts: list[tuple[Expr, int]]) -> list[tuple[Expr, int]]:
    """The factors along the rows, where they may wait for the product.

    A GEMM cannot know them before it stores its result, and an input is contracted as it is. But an operand that takes
    a pass of its own is made with them: rounded without them, or with the gain rounded into the weight instead, a row
    whose one large entry is exact once it is normalised would come out less exact than eager PyTorch's.
    """
    scales = [p for p in parts if COL not in sides(p[0])]
    rest = [p for p in parts if p not in scales]
    if not scales or not rest:
        return []
    if product(rest).word == "load" or _carried(product(rest)):
        return scales
    d.note(_NORMALISED)
    return []


def _carried(expr: Expr) -> bool:
    """Whether a GEMM makes it."""
    return any(e.word == "gemm" for e in walk(expr))


def _folded(d: Derivation, parts: list[tuple[Expr, int]], right: Expr) -> tuple[Expr, Expr]:
    """Gains along the inner dim move into the weight, where that saves the GEMM before it a second stored tile."""
    gains = [p for p in parts if sides(p[0]) == {COL} and d.is_weight(p[0])]
    core = product([p for p in parts if p not in gains])
    stored = _carried(core) and d.wanted.get(core, ("", ""))[1] == "activation"
    if not gains or not stored or not d.is_weight(right):
        return product(parts), right
    d.note(_FOLDS)
    gain = rebuild(product(gains), lambda e: replace(e, axes=(ROW,)) if e.word == "load" else None)
    return core, mul(right, gain)


def _operand(d: Derivation, expr: Expr) -> Expr:
    if expr.word == "load" and len(expr.axes) == 2:
        return expr
    if d.is_weight(expr):
        return _prepared(d, "scaled", expr)
    if d.wanted.get(expr, ("", "activation"))[1] != "activation":
        need = "a second store of it, rounded to the activation dtype"
        raise Stuck(d.node(expr), "a GEMM contracts an output that is kept in another dtype", need)
    if expr not in d.wanted and _carried(expr):
        d.note(_STORED)
    return d.load(d.value(expr, 2), (ROW, COL))


def _transposed(d: Derivation, expr: Expr, gemm: Expr) -> Expr:
    if any(e.word in BINDERS for e in walk(expr)):
        raise Stuck(d.node(gemm), "its product is used transposed", "a store in transposed order")
    swap = {ROW: COL, COL: ROW}
    return rebuild(expr, lambda e: replace(e, axes=tuple(swap[a] for a in e.axes)) if e.word == "load" else None)


def one_gemm(d: Derivation, expr: Expr) -> Expr:
    """The value with at most one GEMM: two of one operand are merged, any other is stored by its own kernel."""
    expr = rebuild(expr, d.merged.get)
    while len(gemms := [e for e in walk(expr) if e.word == "gemm"]) > 1:
        pair = next(((a, b) for i, a in enumerate(gemms) for b in gemms[i + 1 :] if _mergeable(d, a, b)), None)
        if pair:
            expr = _merge(d, expr, *pair)
            continue
        d.note(_APART)
        stored = {gemms[-1]: d.load(d.value(gemms[-1], 2), (ROW, COL))}
        expr = rebuild(expr, stored.get)
    return expr


def refuse_centring(d: Derivation, expr: Expr) -> None:
    """A mean taken from what a GEMM stored leaves that rounding behind, which a mean of many deviations makes large."""
    for e in walk(expr):
        centred = e.word == "sub" and any(_carried(a) for a in e.args)
        vectors = [a for a in e.args if COL not in sides(a)] if centred else []
        if any(w.word in ("sum", "moments") for a in vectors for w in walk(a)):
            reason = "it takes a row's mean from a GEMM's result, which is rounded before that mean is known"
            raise Stuck(d.node(e), reason, "the mean before the GEMM, as the operand times the mean row of its weight")


def _mergeable(d: Derivation, a: Expr, b: Expr) -> bool:
    (left, one), (other, two) = a.args, b.args
    same = left == other and one.dims == two.dims and one.axes == two.axes
    return same and one.dims[0] != one.dims[1] and d.is_weight(one) and d.is_weight(two)


def _merge(d: Derivation, expr: Expr, a: Expr, b: Expr) -> Expr:
    """Both products side by side in one tile: even columns are the first one's, odd columns the second one's."""
    d.note(_MERGES)
    cols = a.dims[1]
    weight = _prepared(d, "pack", _interleaved(_source(d, a.args[1]), _source(d, b.args[1]), cols))
    both = replace(a, args=(a.args[0], weight), dims=(a.dims[0], cols * 2, a.dims[2]))
    scale = _common_scale(expr, (a, b))
    if scale is None:
        d.merged.update({a: Expr("even", (both,)), b: Expr("odd", (both,))})
        return rebuild(expr, d.merged.get)
    scaled = mul(both, scale)
    return rebuild(expr, {mul(a, scale): Expr("even", (scaled,)), mul(b, scale): Expr("odd", (scaled,))}.get)


def _common_scale(expr: Expr, gemms: tuple[Expr, Expr]) -> Expr | None:
    """The row vector that multiplies both products wherever they stand."""
    users = [e for e in walk(expr) if any(g in e.args for g in gemms)]
    if any(e.word != "mul" or e.args[0] not in gemms or COL in sides(e.args[1]) for e in users):
        return None
    scales = {e.args[1] for e in users}
    return scales.pop() if len(scales) == 1 else None


def _interleaved(one: Expr, two: Expr, dim: Dim) -> Expr:
    """Both weights by turns along `dim`; a gain that both share along the other dim is applied to the result."""
    if one.word == two.word == "mul" and one.args[1] == two.args[1] and COL not in sides(one.args[1]):
        return mul(_interleaved(one.args[0], two.args[0], dim), one.args[1])
    return Expr("interleave", (one, two), dim=dim)


def _source(d: Derivation, load: Expr) -> Expr:
    """What a folded weight is made of, so that folding and interleaving are one preparation."""
    for unit in d.units:
        if isinstance(unit, PreparationPlan) and unit.kind == "scaled" and load.name in unit.outputs:
            return unit.outputs[load.name]
    return load


def _prepared(d: Derivation, kind: str, expr: Expr) -> Expr:
    """The load of a matrix made of weights; it lies as the first of them does."""
    like = next(e for e in walk(expr) if e.word == "load" and len(e.axes) == 2)
    doubled = {e.dim for e in walk(expr) if e.word == "interleave"}
    dims = tuple(x * 2 if x in doubled else x for x in like.dims)
    if expr not in d.made:
        unit = d.add(PreparationPlan(len(d.units), kind))
        d.made[expr] = d.output(unit, expr, dims, "w", weight=True)
    return Expr("load", name=d.made[expr], axes=like.axes, dims=dims)


def rotated(d: Derivation, expr: Expr) -> Expr | None:
    """cos or sin of a position times frequencies: a rotation. None where no position is involved."""
    parts = factors(expr.args[0])
    positions = [p for p, sign in parts if sign > 0 and p.word == "load" and d.stored[p.name].form == "index"]
    rest = [p for p in parts if p[0] not in positions]
    vectors = [p for p, _ in rest if COL in sides(p)]
    if len(positions) != 1 or not vectors or sides(positions[0]) != {ROW}:
        return None
    around = {v.dim if v.word == "cycle" else None for v in vectors}
    if len(around) != 1 or not all(d.is_weight(p) for p, _ in rest):
        raise Stuck(
            d.node(expr), "its frequencies are not made of weights alone", "frequencies as a weight of the task"
        )
    bare = product([(p.args[0] if p.word == "cycle" else p, sign) for p, sign in rest])
    length = around.pop()
    hi, lo = (Expr("cycle", (v,), dim=length) if length else v for v in _turns(d, div(bare, _TWO_PI)))
    d.note(_ANGLE)
    return Expr("part", (Expr("rotation", (positions[0], hi, lo)),), number=int(expr.word == "sin"))


def _turns(d: Derivation, turns: Expr) -> tuple[Expr, Expr]:
    dims = next(e.dims for e in walk(turns) if e.word == "load")
    hi = Expr("cast", (turns,), name="float32")
    lo = Expr("sub", (turns, hi))
    if hi not in d.made:
        unit = d.add(PreparationPlan(len(d.units), "turns"))
        d.made[hi] = d.output(unit, hi, dims, "hi", weight=True)
        d.made[lo] = d.output(unit, lo, dims, "lo", weight=True)
    return d.load(d.made[hi], (COL,)), d.load(d.made[lo], (COL,))

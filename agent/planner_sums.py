"""Operations over more than one element: contractions, reductions, picks, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from coda_synth.agent.planner_axes import ONE, Axis, uncut, whole
from coda_synth.agent.planner_expr import COL, ROW, Expr, add, div, halve, mul, neg, number, sides, sub
from coda_synth.agent.planner_moves import Axes, listed, pieces, position, ref
from coda_synth.agent.planner_stuck import Stuck
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.trace import Node

if TYPE_CHECKING:
    from coda_synth.agent.planner_graph import Reading

_FLOATS = ("float32", "bfloat16", "float16", "float64")
_REDUCTIONS = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min", "logsumexp": "logsumexp"}


def gemm(reading: Reading, node: Node, a: str, b: str, axes: Axes) -> Expr:
    """A product of two matrices at (row, column), with leading axes of length 1 or none.

    Its arguments are whole tiles of their own: the left one rows x inner, the right one inner x columns.
    """
    lead, (row, col) = axes[:-2], axes[-2:]
    row_half, _, row = uncut(row)
    half, group, col = uncut(col)
    if any(lead) or row_half or not _is_whole(row) or not _is_whole(col):
        raise Stuck(node, "its result is used in pieces or per head", "a batched or grouped contraction")
    inner = reading.dim(reading.nodes[a].shape[-1])
    left = reading.tile(a, (row[0].dim, inner), lead)
    right = reading.tile(b, (inner, col[0].dim), lead)
    dims = (row[0].dim, col[0].dim, inner)
    product = Expr("gemm", (left, right), axes=(row[0].side, col[0].side), dims=dims, node=node.name)
    return halve(product, half, group) if half else product


def _mm(reading: Reading, node: Node, axes: Axes) -> Expr:
    return gemm(reading, node, ref(node.args[0]), ref(node.args[1]), axes)


def _addmm(reading: Reading, node: Node, axes: Axes) -> Expr:
    product = gemm(reading, node, ref(node.args[1]), ref(node.args[2]), axes)
    bias = reading.operand(node.args[0], axes)
    alpha, beta = (number(cast(float, node.kwargs.get(k, 1))) for k in ("alpha", "beta"))
    return add(mul(alpha, product), mul(beta, cast(Expr, bias)))


def _reduction(reading: Reading, node: Node, axes: Axes) -> Expr:
    op = node.op.split(".")[1]
    value = reduce(reading, node, _REDUCTIONS[op], reading.argument(node), _kept(reading, node, axes))
    return div(value, _length(reading, node)) if op == "mean" else value


def moments(reading: Reading, node: Node, axes: Axes, which: int) -> Expr:
    """The mean (0) or the variance (1) of every row."""
    both = reduce(reading, node, "moments", reading.argument(node), _kept(reading, node, axes))
    value, lost = Expr("part", (both,), number=which), node.kwargs.get("correction", 1)
    if which == 0 or lost == 0:
        return value
    length = _length(reading, node)
    return mul(value, div(length, sub(length, number(cast(float, lost)))))


def _variance(reading: Reading, node: Node, axes: Axes) -> Expr:
    return moments(reading, node, axes, 1)


def _length(reading: Reading, node: Node) -> Expr:
    return Expr("size", dim=reading.dim(reading.argument(node).shape[-1]))


def _kept(reading: Reading, node: Node, axes: Axes) -> Axes:
    """The coordinates that a reduction along the last dim keeps."""
    rank, every = len(reading.argument(node).shape), len(node.args) < 2
    over = list(range(rank)) if every else [position(d, rank) for d in listed(node.args[1])]
    if over != [rank - 1]:
        raise Stuck(node, "it reduces along another dim than the last", "partials along columns")
    keep = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    return axes[:-1] if keep else axes


def reduce(reading: Reading, node: Node, word: str, source: Node, kept: Axes) -> Expr:
    """A statistic per row, or the sum of a vector."""
    dim = reading.dim(source.shape[-1])
    if len(source.shape) == 1:
        if word != "sum":
            raise Stuck(node, f"a {word} over a vector", "a finisher word that reduces a vector so")
        return Expr("total", (_counted(source, reading.tile(source.name, (dim,))),), dim=dim, node=node.name)
    lead, row = kept[:-1], kept[-1]
    if any(lead) or not _is_whole(row) or row[0].side != ROW:
        raise Stuck(node, "it reduces groups of columns, or columns", "statistics of groups, or partials along columns")
    body = reading.tile(source.name, (row[0].dim, dim), lead)
    return Expr(word, (_counted(source, body),), dims=(row[0].dim, dim), node=node.name)


def _gather(reading: Reading, node: Node, axes: Axes) -> Expr:
    if len(axes) != 2 or position(node.args[1], 2) != 1 or node.shape[1] != 1:
        raise Stuck(node, "it gathers more than one element a row", "a word that picks several columns")
    return _pick(reading, node, ref(node.args[0]), reading.at(ref(node.args[2]), axes), axes[0])


def _pick(reading: Reading, node: Node, source: str, index: Expr, row: Axis) -> Expr:
    if not _is_whole(row) or row[0].side != ROW:
        raise Stuck(node, "it picks from something else than whole rows", "a rule for it")
    dims = (row[0].dim, reading.dim(reading.nodes[source].shape[-1]))
    return _picked(reading.tile(source, dims), index, dims, node)


def _picked(body: Expr, index: Expr, dims: tuple[Dim, Dim], node: Node) -> Expr:
    """pick of a sum or difference with a row vector is the same of the pick: the index is in range where it counts."""
    if body.word in ("sub", "add") and COL not in sides(body.args[1]):
        picked = _picked(body.args[0], index, dims, node)
        return sub(picked, body.args[1]) if body.word == "sub" else add(picked, body.args[1])
    return Expr("pick", (body, index), dims=dims, node=node.name)


def loss(reading: Reading, node: Node, axes: Axes) -> Expr:
    """Negative log-likelihood of a target per row, 0 where it is ignored; or the sum or mean of it."""
    source, target = reading.argument(node), reading.nodes[ref(node.args[1])]
    weight, reduction, ignored = node.args[2:5]
    if weight is not None or len(source.shape) != 2:
        raise Stuck(node, "weighted classes, or more than rows x classes", "a rule for it")
    row = axes[0] if reduction == 0 else whole(ROW, reading.dim(target.shape[0]))
    index = reading.at(target.name, (row,))
    kept = Expr("ne", (index, number(cast(int, ignored))))
    per_row = Expr("where", (kept, neg(_pick(reading, node, source.name, index, row)), number(0.0)))
    if reduction == 0:
        return per_row
    total = Expr("total", (per_row,), dim=row[0].dim, node=node.name)
    ones = Expr("where", (kept, number(1.0), number(0.0)))
    return div(total, Expr("total", (ones,), dim=row[0].dim, node=node.name)) if reduction == 1 else total


def _log_softmax(reading: Reading, node: Node, axes: Axes) -> Expr:
    source = reading.argument(node)
    if len(axes) != 2 or position(node.args[1], 2) != 1:
        raise Stuck(node, "a softmax along another dim than the last of a matrix", "partials along columns")
    return sub(reading.at(source.name, axes), reduce(reading, node, "logsumexp", source, axes[:1]))


def _softmax(reading: Reading, node: Node, axes: Axes) -> Expr:
    return Expr("exp", (_log_softmax(reading, node, axes),))


def _convert(reading: Reading, node: Node, axes: Axes) -> Expr:
    """In exact arithmetic a conversion between float types is nothing; the language rounds where it stores."""
    source = reading.argument(node)
    value, dtype = reading.at(source.name, axes), node.dtype
    if dtype in _FLOATS and source.dtype == "bool":
        return _counted(source, value)
    if dtype == source.dtype or (dtype in _FLOATS and source.dtype in (*_FLOATS, "int64", "int32")):
        return value
    raise Stuck(node, f"it converts {source.dtype} to {dtype}", "a rule that keeps such a rounding")


def _filled(reading: Reading, node: Node, axes: Axes) -> Expr:
    op = node.op.split(".")[1]
    value = {"zeros": 0.0, "zeros_like": 0.0, "ones": 1.0, "ones_like": 1.0}.get(op)
    return number(cast(float, node.args[0 if op == "scalar_tensor" else 1]) if value is None else value)


def _counted(source: Node, value: Expr) -> Expr:
    """Conditions are summed as ones and zeros."""
    return Expr("where", (value, number(1.0), number(0.0))) if source.dtype == "bool" else value


def _is_whole(axis: Axis) -> bool:
    return len(axis) == 1 and axis[0].stride == ONE and axis[0].dim == axis[0].extent and not axis[0].half


RULES: dict[str, Callable[[Reading, Node, Axes], Expr]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "_to_copy": _convert,
    "cat": pieces,
    "stack": pieces,
    "gather": _gather,
    "var": _variance,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    **{op: _reduction for op in _REDUCTIONS},
    **{op: _filled for op in "scalar_tensor full full_like zeros zeros_like ones ones_like".split()},
}

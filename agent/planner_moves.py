"""Operations that move elements and change none: where in the argument an element of the result lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from coda_synth.agent.planner_axes import ONE, TWO, Atom, Axis, cut, merged, piece, regroup
from coda_synth.agent.planner_expr import COL, Expr
from coda_synth.agent.planner_stuck import SplitNeeded, Stuck
from coda_synth.evaluator.trace import Node

if TYPE_CHECKING:
    from coda_synth.agent.planner_graph import Reading

Axes = tuple[Axis, ...]


def ref(value: object) -> str:
    """The name in {"node": name}."""
    return cast(Mapping[str, str], value)["node"]


def listed(value: object) -> list[int]:
    return list(cast(Sequence[int], value)) if isinstance(value, (list, tuple)) else [cast(int, value)]


def position(value: object, rank: int) -> int:
    """An axis counted from the front."""
    return cast(int, value) % rank


def aligned(shape: tuple[int, ...], axes: Axes) -> Axes:
    """Coordinates of a tensor that torch broadcasts to where `axes` points."""
    return tuple(() if n == 1 else a for n, a in zip(shape, axes[len(axes) - len(shape) :], strict=True))


def _permuted(reading: Reading, node: Node, axes: Axes) -> Axes:
    rank = len(axes)
    if node.op.startswith("aten.permute"):
        order = [position(d, rank) for d in listed(node.args[1])]
    else:
        one, two = (0, rank - 1) if len(node.args) < 3 else (position(d, rank) for d in node.args[1:3])
        order = list(range(rank))
        order[one], order[two] = order[two], order[one]
    return tuple(axes[order.index(i)] for i in range(rank))


def _viewed(reading: Reading, node: Node, axes: Axes) -> Axes:
    return regroup(axes, reading.argument(node).shape, reading.graph.sizes)


def _unsqueezed(reading: Reading, node: Node, axes: Axes) -> Axes:
    axis = position(node.args[1], len(axes))
    return axes[:axis] + axes[axis + 1 :]


def _squeezed(reading: Reading, node: Node, axes: Axes) -> Axes:
    left, shape = list(axes), reading.argument(node).shape
    chosen = listed(node.args[1]) if len(node.args) > 1 else list(range(len(shape)))
    gone = {position(d, len(shape)) for d in chosen}
    return tuple(() if i in gone and n == 1 else left.pop(0) for i, n in enumerate(shape))


def _expanded(reading: Reading, node: Node, axes: Axes) -> Axes:
    return aligned(reading.argument(node).shape, axes)


def _sliced(reading: Reading, node: Node, axes: Axes) -> Axes:
    shape = reading.argument(node).shape
    values = [*node.args[1:], *([None] * 4)]
    axis = position(values[0] or 0, len(shape))
    start, step = cast(int, values[1] or 0), cast(int, values[3] or 1)
    return _cut(reading, node, axes, axis, start % shape[axis], step)


def _selected(reading: Reading, node: Node, axes: Axes) -> Axes:
    rank = len(reading.argument(node).shape)
    return _one_of_pair(reading, node, axes, position(node.args[1], rank), cast(int, node.args[2]))


def part(reading: Reading, node: Node, axes: Axes) -> Axes | None:
    """One result of a split or an unbind; None where the node is part of something else."""
    source = reading.argument(node)
    which, op = cast(int, node.args[1]), source.op.split(".")[1]
    shape = reading.argument(source).shape
    if op in ("split", "split_with_sizes"):
        axis = position(source.args[2] if len(source.args) > 2 else source.kwargs.get("dim", 0), len(shape))
        sizes = source.args[1]
        start = sizes * which if isinstance(sizes, int) else sum(listed(sizes)[:which])
        return _cut(reading, node, axes, axis, start, 1, source)
    if op == "unbind":
        axis = position(source.args[1] if len(source.args) > 1 else 0, len(shape))
        return _one_of_pair(reading, node, axes, axis, which, source)
    return None


def _cut(
    reading: Reading, node: Node, axes: Axes, axis: int, start: int, step: int, source: Node | None = None
) -> Axes:
    kept, length = node.shape[axis], reading.argument(source or node).shape[axis]
    if kept == length:
        return axes
    half = {(0, 1): "low", (kept, 1): "high", (0, 2): "even", (1, 2): "odd"}.get((start, step))
    if half is None or 2 * kept != length:
        reason = f"it takes {kept} of {length} elements, which is no half of aligned groups"
        raise Stuck(source or node, reason, "a word that cuts a tile elsewhere than in halves")
    taken = merged(axes[axis])
    if half in ("low", "high") and len(taken) == 1 and taken[0].dim == taken[0].extent not in reading.joined:
        reason = f"it cuts all {taken[0].dim * 2} columns in two, and the halves of a whole row never share a tile"
        raise Stuck(
            source or node, reason, "a preparation word that takes a part of a weight, to interleave the halves"
        )
    return (*axes[:axis], cut(taken, half), *axes[axis + 1 :])


def _one_of_pair(reading: Reading, node: Node, axes: Axes, axis: int, which: int, source: Node | None = None) -> Axes:
    length = reading.argument(source or node).shape[axis]
    outer = merged(axes[axis - 1]) if axis else ()
    if length != 2 or not outer or outer[-1].side != COL or outer[-1].stride != ONE or outer[-1].half:
        raise Stuck(source or node, f"it selects one of {length} elements", "a word that takes one column of a group")
    parity = Atom(COL, ONE, ONE, outer[-1].extent, ("even", "odd")[which % 2])
    return (*axes[:axis], (parity,), *axes[axis:])


def pieces(reading: Reading, node: Node, axes: Axes) -> Expr:
    """cat of two equal pieces, or stack of two: the one at these coordinates; raises SplitNeeded where both are."""
    parts = [ref(p) for p in cast(Sequence[object], node.args[0])]
    stacked = node.op.startswith("aten.stack")
    axis = position(node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0), len(node.shape))
    if len(parts) != 2 or (not stacked and len({reading.nodes[p].shape[axis] for p in parts}) != 1):
        raise Stuck(node, f"it puts {len(parts)} pieces of several lengths together", "a join of other than two halves")
    found, count = piece(axes[axis], node.shape[axis]), node.shape[axis]
    if found is None:
        taken = merged(axes[axis])
        if len(taken) != 1 or taken[0].half or taken[0].side != COL or taken[0].stride != ONE:
            raise Stuck(node, "its pieces lie along rows, or in a half of a half", "a rule for such a join")
        raise SplitNeeded(TWO if count == 2 else taken[0].dim)
    inside = () if stacked else (found[1],)
    return reading.at(parts[found[0]], (*axes[:axis], *inside, *axes[axis + 1 :]))


MOVES: dict[str, Callable[[Reading, Node, Axes], Axes]] = {
    "t": _permuted,
    "transpose": _permuted,
    "permute": _permuted,
    "view": _viewed,
    "_unsafe_view": _viewed,
    "reshape": _viewed,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "expand": _expanded,
    "slice": _sliced,
    "select": _selected,
}

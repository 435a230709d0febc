"""Reads a traced graph into expressions over tiles: what each output is, element by element, at its rows and columns.

A node is evaluated at coordinates, from the outputs back to the inputs, so that views, slices and broadcasts cost
nothing and leave no trace. Where it meets what the language cannot say, it raises Stuck with the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from coda_synth.agent.planner_axes import ONE, TWO, Atom, AxisError, halved, merged, named, uncut, whole
from coda_synth.agent.planner_expr import COL, JOINS, ROW, Expr, halve, number
from coda_synth.agent.planner_moves import MOVES, Axes, aligned, part, ref
from coda_synth.agent.planner_ops import SAME, pointwise
from coda_synth.agent.planner_stuck import SplitNeeded, Stuck
from coda_synth.agent.planner_sums import RULES, loss, moments
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.trace import Graph, Node, Port


class Reading:
    """One graph, read. `output(name)` gives the expression of an output; equal values are equal expressions.

    joined: the widths of tiles that are half of another, because pieces are joined in it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}
        self.ports = {p.name: p for p in graph.ports if p.role != "output"}
        self.results = {p.name: p for p in graph.ports if p.role == "output"}
        self.joined: set[Dim] = set()
        self._known: dict[tuple[str, Axes], Expr] = {}
        self._names = {d.size(graph.sizes): d for p in graph.ports for d in map(Dim.parse, p.dims)}
        self._all = Dim(ONE.scale, tuple((s, 1) for s in sorted(graph.sizes)))

    def output(self, name: str) -> Expr:
        """The output over rows x columns, over rows, or over nothing; raises Stuck."""
        dims = tuple(Dim.parse(d) for d in self.results[name].dims)
        node = self.nodes[self.graph.outputs[name]]
        if len(dims) > 2:
            raise Stuck(node, f"the output {name} has {len(dims)} dims", "outputs with leading dims flattened")
        return self.tile(node.name, dims)

    def tile(self, node: str, dims: tuple[Dim, ...], lead: Axes = ()) -> Expr:
        """A node over a whole tile; halves of groups are made apart and joined where the node joins them."""
        rows = tuple(whole(ROW, d) for d in dims[:1])
        try:
            return self.at(node, (*lead, *rows, *(whole(COL, d) for d in dims[1:])))
        except SplitNeeded as split:
            group, cols = split.group, dims[-1]
        self.joined.add(cols / 2)
        parts = tuple(self.at(node, (*lead, *rows, halved(COL, cols, group, half))) for half in ("low", "high"))
        return Expr(JOINS["even"], parts) if group == TWO else Expr(JOINS["low"], parts, dim=group)

    def at(self, name: str, axes: Axes) -> Expr:
        """A node's element at these coordinates, one tuple of atoms for each of its axes."""
        key = (name, tuple(merged(a) for a in axes))
        if key not in self._known:
            try:
                value = self._evaluate(self.nodes[name], key[1])
            except AxisError as error:
                raise Stuck(self.nodes[name], str(error), "a rule that follows such coordinates") from None
            self._known[key] = value if value.node else replace(value, node=name)
        return self._known[key]

    def dim(self, length: int) -> Dim:
        """The name of a length: a declared dim, or the simplest product of symbols."""
        return self._names.get(length) or named(self._all, length, self.graph.sizes)

    def argument(self, node: Node) -> Node:
        """The node that makes its first argument."""
        return self.nodes[ref(node.args[0])]

    def operand(self, value: object, axes: Axes) -> Expr | None:
        """An argument of an elementwise operation at the result's coordinates, broadcast as torch does."""
        if isinstance(value, (int, float)):
            return number(value)
        if not isinstance(value, dict):
            return None
        return self.at(ref(value), aligned(self.nodes[ref(value)].shape, axes))

    def _evaluate(self, node: Node, axes: Axes) -> Expr:
        op = re.sub(r"^aten\.|\..*$", "", node.op)
        if op == "input":
            return _leaf(self.ports[node.name], axes)
        if op in SAME:
            return self.at(ref(node.args[0]), axes)
        if op in MOVES:
            return self.at(ref(node.args[0]), MOVES[op](self, node, axes))
        if op in RULES:
            return RULES[op](self, node, axes)
        return self._part(node, axes) if op == "getitem" else self._pointwise(node, op, axes)

    def _part(self, node: Node, axes: Axes) -> Expr:
        """One result of an operation that has several."""
        source = self.argument(node)
        moved = part(self, node, axes)
        if moved is not None:
            return self.at(self.argument(source).name, moved)
        if source.op.startswith("aten.nll_loss_forward") and node.args[1] == 0:
            return loss(self, source, axes)
        if source.op.startswith("aten.var_mean"):
            return moments(self, source, axes, 1 - int(str(node.args[1])))
        raise Stuck(source, "an operation with several results", "a rule for it")

    def _pointwise(self, node: Node, op: str, axes: Axes) -> Expr:
        tensors = [ref(a) for a in node.args if isinstance(a, dict)]
        elementwise = tensors and all(len(self.nodes[t].shape) <= len(axes) for t in tensors)
        options = {k: v for k, v in node.kwargs.items() if k != "dtype"}
        value = pointwise(op, [self.operand(a, axes) for a in node.args], options) if elementwise else None
        if value is None:
            raise Stuck(node, f"the planner has no rule for {node.op} as it is used here", "a rule for it, or a model")
        return value


def _leaf(port: Port, axes: Axes) -> Expr:
    """An input where its dims lie along whole sides of the tile; a vector may repeat along its side."""
    dims = tuple(Dim.parse(d) for d in port.dims)
    names: list[str] = []
    wraps: list[Callable[[Expr], Expr]] = []
    for dim, axis in zip(dims, axes, strict=True):
        half, group, axis = uncut(axis)
        if len(axis) != 1:
            raise AxisError(f"{port.name} is read with its dim {dim} in pieces")
        wraps += [_along(port, axis[0]), lambda e, half=half, group=group: halve(e, half, group) if half else e]  # type: ignore[misc]
        names.append(axis[0].side)
    if len(set(names)) < len(names):
        raise AxisError(f"the diagonal of {port.name}")
    value = Expr("load", name=port.name, axes=tuple(names), dims=dims)
    for wrap in wraps:
        value = wrap(value)
    return value


def _along(port: Port, atom: Atom) -> Callable[[Expr], Expr]:
    """What makes a load lie along its side: nothing, a cycle, or a spread."""
    if atom.stride == ONE and atom.dim == atom.extent:
        return lambda e: e
    if len(port.dims) > 1 or atom.side != COL:
        raise AxisError(f"{port.name} is repeated along the {atom.side}s of the tile")
    if atom.stride == ONE:
        return lambda e: Expr("cycle", (e,), dim=atom.extent)
    if atom.stride * atom.dim == atom.extent:
        return lambda e: Expr("spread", (e,), dim=atom.stride)
    raise AxisError(f"{port.name} is repeated in the middle of its side")

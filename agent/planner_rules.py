"""From expressions to units: kernels of one GEMM each, finishers for statistics, and the order in which they run.

What is contracted is `planner_contract`'s; this module decides where every value is made and stored. It knows shapes
and algebra, and no operator by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from coda_synth.agent.planner_contract import CONTRACTIONS, contraction, one_gemm, refuse_centring, rotated
from coda_synth.agent.planner_expr import BINDERS, COL, ROW, Expr, loads_of, rebuild, sides, walk
from coda_synth.agent.planner_graph import Reading
from coda_synth.agent.planner_plan import FinisherPlan, KernelPlan, Plan, PreparationPlan, Stored, UnitPlan
from coda_synth.agent.planner_stuck import Stuck
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.trace import Graph, Node

U = TypeVar("U", KernelPlan, FinisherPlan, PreparationPlan)
_STATISTICS = ("sum", "max", "min", "logsumexp")
_PARTIAL_NAMES = {
    "tile_logsumexp": "lse",
    "tile_sum": "sums",
    "tile_max": "peak",
    "tile_min": "least",
    "pick": "chosen",
}
_VALUE_NAMES = {"rsqrt": "rstd", "div": "mean", "total_logsumexp": "lse", "total_max": "peak", "total_min": "least"}
_PARTIALS = "A statistic of a row leaves each tile as a partial; a finisher merges the partials."
_SECOND_PASS = "A value that needs its own row's statistic is made in a second pass over what was stored."


def derive(graph: Graph) -> Plan:
    """A program for the traced task; raises Stuck."""
    reading = Reading(graph)
    d = Derivation(reading)
    values = {name: reading.output(name) for name in reading.results}
    for name, value in values.items():
        d.wanted.setdefault(value, (name, reading.results[name].dtype))
    outputs = {name: d.value(value, len(reading.results[name].dims)) for name, value in values.items()}
    for name, key in outputs.items():
        if key in reading.ports:
            node = reading.nodes[graph.outputs[name]]
            raise Stuck(node, f"the output {name} is the input {key} itself", "an output that is computed")
    types = {p.name: p.dims for p in reading.ports.values()}
    return Plan(graph.task, d.stored, d.in_order(outputs.values()), types, outputs, d.said())


class Derivation:
    """One program in the making.

    wanted: the outputs' expressions, with their names and dtypes; stored: every value by its key; made: the key of
    every expression that has been stored; merged: a GEMM as columns of a wider one.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.units: list[UnitPlan] = []
        self.notes: dict[str, None] = {}
        self.wanted: dict[Expr, tuple[str, str]] = {}
        self.stored: dict[str, Stored] = {}
        self.made: dict[Expr, str] = {}
        self.merged: dict[Expr, Expr] = {}
        for port in reading.ports.values():
            form = ("index" if port.dtype == "int64" else "tensor") if port.dims else "scalar"
            self.stored[port.name] = Stored(port.name, tuple(map(Dim.parse, port.dims)), form, port.role == "weight")

    # -- values

    def value(self, expr: Expr, rank: int) -> str:
        """The key of the stored value that this expression is; it is made where it does not exist yet."""
        if expr.word == "load" and expr.axes == (ROW, COL)[:rank]:
            return expr.name
        if expr not in self.made:
            self.made[expr] = (self._scalar, self._vector, self._tile)[rank](expr)
        return self.made[expr]

    def load(self, key: str, axes: tuple[str, ...]) -> Expr:
        return Expr("load", name=key, axes=axes, dims=self.stored[key].dims)

    def lowered(self, expr: Expr) -> Expr:
        """An expression over a tile, with its operands, statistics and rotations made of stored values."""

        def change(e: Expr) -> Expr | None:
            if e.word == "gemm":
                return contraction(self, e)
            if COL not in sides(e) and any(w.word in (*BINDERS, "total") for w in walk(e)):
                rank = len(sides(e))
                return self.load(self.value(e, rank), (ROW,)[:rank])
            return rotated(self, e) if e.word in ("cos", "sin") else None

        return rebuild(expr, change)

    def _tile(self, expr: Expr) -> str:
        kernel, value = self._kernel_for(one_gemm(self, self.lowered(expr)), expr)
        return self.output(kernel, value, (kernel.rows, _columns(value)), self._name(expr, value))

    def _vector(self, expr: Expr) -> str:
        value = rebuild(expr, self._finished)
        load = next((e for e in walk(value) if e.word == "load" and e.axes), None)
        if load is None:
            raise Stuck(self.node(expr), "a vector made of numbers alone", "a unit that makes constants")
        unit = self._finisher(value, load.dims[0], scalar=False)
        return self.output(unit, value, load.dims[:1], self._name(expr, value))

    def _scalar(self, expr: Expr) -> str:
        value = rebuild(expr, self._totalled)
        rows = next((e.dim for e in walk(value) if e.word == "total" and e.dim), None)
        if rows is None:
            raise Stuck(self.node(expr), "a number that depends on no tensor", "a unit that makes constants")
        unit = self._finisher(value, rows, scalar=True)
        return self.output(unit, value, (), self._name(expr, value), form="scalar")

    # -- statistics

    def _finished(self, e: Expr) -> Expr | None:
        """Inside a vector: statistics become totals of partials, picks become stored vectors."""
        if e.word in _STATISTICS:
            self.note(_PARTIALS)
            return Expr(f"total_{e.word}", (self.load(self._partial(f"tile_{e.word}", e), (ROW,)),))
        if e.word == "part" and e.args[0].word == "moments":
            self.note(_PARTIALS)
            halves = (self.load(self._partial("tile_moments", e.args[0], i), (ROW,)) for i in (0, 1))
            return Expr("part", (Expr("total_moments", tuple(halves)),), number=e.number)
        if e.word == "pick":
            return self.load(self._partial("pick", e), (ROW,))
        return self.load(self.value(e, 0), ()) if e.word == "total" else None

    def _partial(self, word: str, e: Expr, part: int | None = None) -> str:
        known = Expr(word, (e,), number=part)
        if known not in self.made:
            kernel, body = self._kernel_for(one_gemm(self, self.lowered(e.args[0])), e.args[0])
            index = tuple(self.lowered(a) for a in e.args[1:])
            dims, dim, form = ((e.dims[0],), None, "tensor") if word == "pick" else (e.dims, e.dims[1], "partial")
            name = "ssq" if word == "tile_sum" and body.word == "pow" else _PARTIAL_NAMES.get(word, "m")
            value = Expr(word, (body, *index), dim=dim)
            if part is not None:
                value, name = Expr("part", (value,), number=part), ("mean", "m2")[part]
            self.made[known] = self.output(kernel, value, dims, name, form=form)
        return self.made[known]

    def _totalled(self, e: Expr) -> Expr | None:
        """Inside a scalar: sums over vectors that are stored, or that need no statistic."""
        if e.word != "total":
            return None
        body = e.args[0]
        if body in self.wanted or any(w.word in (*BINDERS, "total") for w in walk(body)):
            body = self.load(self.value(body, 1), (ROW,))
        return Expr("total", (body,), dim=e.dim)

    # -- units

    def _kernel_for(self, value: Expr, expr: Expr) -> tuple[KernelPlan, Expr]:
        """The kernel in which a tile's value is made, and the value in its terms."""
        gemm = next((e for e in walk(value) if e.word == "gemm"), None)
        if gemm is None:
            return self._pointwise(value, expr), value
        kernel = next((u for u in self.units if isinstance(u, KernelPlan) and u.gemm == gemm), None)
        if kernel is None:
            rows, cols = gemm.dims[:2]
            base = cols / 2 if gemm.args[1].name.startswith("pack") else cols
            return self.add(KernelPlan(len(self.units), gemm, rows, cols, base)), value
        if kernel.position in self._needs(value):
            refuse_centring(self, expr)
            self.note(_SECOND_PASS)
            value = self._from_stored(kernel, value, gemm)
            return self._pointwise(value, expr), value
        return kernel, value

    def _from_stored(self, kernel: KernelPlan, value: Expr, gemm: Expr) -> Expr:
        """The value with stored tiles of the kernel in place of what makes them; the bare product where none helps."""
        made = {e: self.load(k, (ROW, COL)) for k, e in kernel.outputs.items() if self._is_tile(k)}
        value = rebuild(value, made.get)
        if gemm in walk(value):
            product = self.load(self.output(kernel, gemm, gemm.dims[:2], "z"), (ROW, COL))
            value = rebuild(value, {gemm: product}.get)
        return value

    def _pointwise(self, value: Expr, expr: Expr) -> KernelPlan:
        tiles = [e for e in walk(value) if e.word == "load" and len(e.axes) == 2]
        if not tiles:
            raise Stuck(self.node(expr), "a matrix made of vectors alone", "a kernel without any matrix")
        for unit in self.units:  # a pass that reads one of these tiles anyway, and need not wait for this value
            if isinstance(unit, KernelPlan) and unit.gemm is None and unit.position not in self._needs(value):
                if any(load in tiles for made in unit.outputs.values() for load in loads_of(made)):
                    return unit
        rows, cols = tiles[0].dims
        return self.add(KernelPlan(len(self.units), None, rows, cols, cols))

    def _finisher(self, value: Expr, rows: Dim, scalar: bool) -> FinisherPlan:
        """A finisher along `rows` that waits for no more kernels than this value does, or a new one."""
        needs = self._needs(value)
        for unit in self.units:
            if isinstance(unit, FinisherPlan) and (unit.dim, unit.scalar) == (rows, scalar):
                waits = frozenset().union(*(self._needs(e) for e in unit.outputs.values()))
                if self._kernels(needs) <= self._kernels(waits) and unit.position not in needs:
                    return unit
        return self.add(FinisherPlan(len(self.units), rows, scalar))

    def add(self, unit: U) -> U:
        self.units.append(unit)
        return unit

    def output(
        self, unit: UnitPlan, value: Expr, dims: tuple[Dim, ...], name: str, form: str = "tensor", weight: bool = False
    ) -> str:
        """The key of a new output of a unit, or of the equal one that it has already."""
        if isinstance(unit, KernelPlan):
            self._refuse_transposed(value)
        known = next((key for key, e in unit.outputs.items() if e == value), None)
        if known:
            return known
        prefix = f"{unit.kind if isinstance(unit, PreparationPlan) else 'unit'}{unit.position}"
        names = (name, *(f"{name}{i}" for i in range(2, 100)))
        key = next(f"{prefix}.{n}" for n in names if f"{prefix}.{n}" not in self.stored)
        unit.outputs[key] = value
        self.stored[key] = Stored(key, dims, form, weight, unit.position)
        return key

    def in_order(self, outputs: Iterable[str]) -> tuple[UnitPlan, ...]:
        """The units that the outputs need, each after those whose values it reads; preparations first."""
        live = {unit for key in outputs for unit in self._needs(self.load(key, ()))}
        left = [u for u in self.units if u.position in live]
        left.sort(key=lambda u: not isinstance(u, PreparationPlan))
        done, order = set[int](), list[UnitPlan]()
        while left:
            unit = next(u for u in left if self._reads(u) <= done)
            left.remove(unit)
            done.add(unit.position)
            order.append(unit)
        return tuple(order)

    # -- questions

    def is_weight(self, expr: Expr) -> bool:
        """Whether it is made of weights and numbers alone."""
        loads = [e for e in walk(expr) if e.word in ("load", *BINDERS)]
        return all(e.word == "load" and self.stored[e.name].weight for e in loads)

    def _is_tile(self, key: str) -> bool:
        return self.stored[key].form == "tensor" and len(self.stored[key].dims) == 2

    def node(self, expr: Expr) -> Node | None:
        return self.reading.nodes.get(next((e.node for e in (expr, *expr.args) if e.node), ""))

    def said(self) -> tuple[str, ...]:
        """The notes in the order of an explanation, not of their discovery."""
        return tuple(s for s in (_PARTIALS, *CONTRACTIONS, _SECOND_PASS) if s in self.notes)

    def note(self, sentence: str) -> None:
        self.notes.setdefault(sentence)

    def _reads(self, unit: UnitPlan) -> set[int]:
        values = [*unit.outputs.values(), *([unit.gemm] if isinstance(unit, KernelPlan) and unit.gemm else [])]
        makers = {self.stored[load.name].unit for value in values for load in loads_of(value)}
        return {m for m in makers if m is not None}

    def _needs(self, value: Expr) -> frozenset[int]:
        """The units that must have run before a value can be made, directly or not."""
        found = {m for e in loads_of(value) if (m := self.stored[e.name].unit) is not None}
        pending = list(found)
        while pending:
            position = pending.pop()
            unit = next(u for u in self.units if u.position == position)
            new = self._reads(unit) - found
            found |= new
            pending += new
        return frozenset(found)

    def _kernels(self, positions: frozenset[int]) -> set[int]:
        return {u.position for u in self.units if isinstance(u, KernelPlan)} & positions

    def _refuse_transposed(self, value: Expr) -> None:
        for e in walk(value):
            if e.word == "load" and e.axes == (COL, ROW):
                reason = f"the matrix {self.stored[e.name].name} is read transposed in an epilogue"
                raise Stuck(self.node(value), reason, "a transposed tile")

    def _name(self, expr: Expr, value: Expr) -> str:
        if expr in self.wanted:
            return self.wanted[expr][0]
        return _VALUE_NAMES.get(value.word, "h" if COL in sides(value) else "v")


def _columns(value: Expr) -> Dim:
    """How many columns a tile's value has."""
    if value.word in ("load", "gemm"):
        return value.dims[1] if len(value.axes) == 2 else value.dims[0]
    if value.word == "cycle" and value.dim:
        return value.dim
    inside = _columns(next(a for a in value.args if COL in sides(a)))
    if value.word in ("even", "odd", "low", "high"):
        return inside / 2
    if value.word in ("interleave", "join"):
        return inside * 2
    return inside * value.dim if value.word == "spread" and value.dim else inside

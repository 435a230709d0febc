"""What the planner decides before any text is written: stored values, and the units that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.agent.planner_expr import Expr
from coda_synth.coda_api.dims import Dim


@dataclass(frozen=True, slots=True)
class Stored:
    """A value of the program. key: an input's name, or "unit.output". dims: as the program knows them.

    form: "tensor", "index", "scalar", "partial" (kept, reduced). weight: may enter a preparation.
    unit: the position of the unit that makes it, None for an input.
    """

    key: str
    dims: tuple[Dim, ...]
    form: str = "tensor"
    weight: bool = False
    unit: int | None = None

    @property
    def name(self) -> str:
        """The name by which units call it."""
        return self.key.rsplit(".", 1)[-1]


@dataclass(slots=True)
class KernelPlan:
    """One launch over a tile of rows x cols. base: the columns that a unit calls N (cols is base times a number)."""

    position: int
    gemm: Expr | None
    rows: Dim
    cols: Dim
    base: Dim
    outputs: dict[str, Expr] = field(default_factory=dict)


@dataclass(slots=True)
class FinisherPlan:
    """Vectors along `dim`, or scalars over it."""

    position: int
    dim: Dim
    scalar: bool
    outputs: dict[str, Expr] = field(default_factory=dict)


@dataclass(slots=True)
class PreparationPlan:
    """A rearrangement of weights. kind: "pack", "scaled" or "turns"."""

    position: int
    kind: str
    outputs: dict[str, Expr] = field(default_factory=dict)


UnitPlan = KernelPlan | FinisherPlan | PreparationPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """A derived program; every unit stands after those whose values it reads.

    inputs: of the task, with their dims as the task writes them. outputs: of the task, by name, the key of the stored
    value that each is.
    notes: what was rearranged and why it is allowed, a sentence each.
    """

    task: str
    stored: Mapping[str, Stored]
    units: tuple[UnitPlan, ...]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, str]
    notes: tuple[str, ...]

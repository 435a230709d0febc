"""What the parts of the judge tell each other about a task and about one run of a candidate, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.coda_api.program import Signature
from coda_synth.coda_api.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task without its code. row: the symbol that every activation has as its first dim and no weight has ("T"); rows
    of the outputs then depend on that row alone, except for outputs without that dim. None where there is no such
    symbol."""

    signature: Signature
    check_shapes: tuple[Mapping[str, int], ...]
    time_shapes: Mapping[str, Mapping[str, int]]
    gemms: tuple[tuple[str, str, str], ...]
    row: str | None
    styles: tuple[str, ...] = ("normal",)
    source_hash: str = ""  # of the task's text

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def shapes(self) -> tuple[Mapping[str, int], ...]:
        """All that a program is judged at, the headline's first."""
        return (*self.time_shapes.values(), *self.check_shapes)

    @property
    def headline(self) -> tuple[str, Mapping[str, int]]:
        return next(iter(self.time_shapes.items()))


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a candidate's text something comes from: a call and its line, its unit and that one's `def` line, and
    the expression that the unit returns. Lines and columns count from 1."""

    call: str
    call_line: int
    unit: str
    def_line: int
    line: int
    column: int

    def __str__(self) -> str:
        return (
            f"the call {self.call} in line {self.call_line}, whose {self.unit} (def in line {self.def_line}) returns it"
            f" in line {self.line}, column {self.column}"
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """What a run did to the judge's memory, in words. tensor: where it shows. call, value: whose launch it was, and the
    value that was stored, as far as that is known."""

    rule: str  # "WritesOutside", "ChangesInput", "Unwritten", "NotDeterministic"
    words: str
    tensor: str = ""
    call: str = ""
    value: str = ""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a task. rule: as one word. message: where, with the figures that show it."""

    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a candidate: which inputs, in which form. rows: the only rows to hand back and compare (of outputs
    that have the task's row dim; the other outputs are left out), None for everything."""

    stage: str  # "meaning", "interpreter", "device"
    sizes: Mapping[str, int]
    seed: int
    style: str
    form: str  # "reference", "pointer", "descriptor", "hopper", "auto"
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    processors: int = 132
    rows: tuple[int, ...] | None = None

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.stage}, {self.form} form, {sizes}, inputs {self.style!r}, seed {self.seed}"

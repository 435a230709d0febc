"""The types of a checked program: what the reader makes, and what reference meaning, lowering and cost model walk.

A unit's body is a graph of `Value`s without names or order: a value used twice is one object with two users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coda_synth.coda_api.dims import Dim

ACTIVATION_DTYPES = ("bfloat16", "float16", "float32")


class Form(StrEnum):
    """What a value is, beside its dims."""

    TILE = "tile"  # rows x cols, where either may be absent: a vector or a scalar
    PARTIAL = "partial"  # one value per kept element (rows) and tile of the reduced dim (cols)
    PICK = "pick"  # one value per row, written by exactly one tile; unusable in its own kernel
    SUM = "sum"  # a finisher's device scalar
    SEVERAL = "several"  # a word with several values, before it is unpacked
    UNKNOWN = "unknown"  # its expression had an error; checking goes on


class Kind(StrEnum):
    FLOAT = "float"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One operation of a unit.

    word: a word of the table, or "param" (attrs: name), "number" (attrs: value), "part" (attrs: index, of a SEVERAL).
    Operators have words too: add sub mul div pow neg lt le gt ge eq ne and or not.
    attrs: what is not a value: dim (Dim), group (Dim), dtype (str), axis (0 = reduces rows, 1 = reduces columns).
    line, column: where it is written, from 1.
    """

    word: str
    args: tuple[Value, ...] = ()
    rows: Dim | None = None
    cols: Dim | None = None
    kind: Kind = Kind.FLOAT
    form: Form = Form.TILE
    attrs: Mapping[str, object] = field(default_factory=dict)
    line: int = 0
    column: int = 0


def walk(roots: Mapping[str, Value] | list[Value]) -> Iterator[Value]:
    """Every value under the roots once, arguments before users, in an order that depends on the program alone."""
    seen: set[int] = set()

    def visit(value: Value) -> Iterator[Value]:
        if id(value) in seen:
            return
        seen.add(id(value))
        for arg in value.args:
            yield from visit(arg)
        yield value

    for root in roots.values() if isinstance(roots, Mapping) else roots:
        yield from visit(root)


class TypeKind(StrEnum):
    TENSOR = "Tensor"
    PARTIAL = "Partial"
    INDEX = "Index"
    SCALAR = "Scalar"
    SIZE = "Size"


@dataclass(frozen=True, slots=True)
class Type:
    """A declared type: Tensor["M", "K"], Partial["M", "N"] (kept, reduced), Index["M"], Size["D"], Scalar."""

    kind: TypeKind
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f'"{d}"' for d in self.dims)
        return f"{self.kind.value}[{inside}]" if self.dims else self.kind.value


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Gemm:
    """The one contraction of a kernel: C[rows, cols] = A B, with A as [rows, inner] and B as [inner, cols]."""

    a: str
    b: str
    a_transposed: bool  # the parameter lies as [inner, rows]
    b_transposed: bool  # the parameter lies as [cols, inner]
    inner: Dim


@dataclass(frozen=True, slots=True)
class Kernel:
    """One GEMM (or, without one, a pointwise pass) and one straight-line epilogue over a tile of rows x cols."""

    name: str
    params: tuple[Param, ...]
    rows: Dim
    cols: Dim
    gemm: Gemm | None
    outputs: Mapping[str, Value]
    hints: Mapping[str, object]
    line: int

    @property
    def row_symbol(self) -> str:
        return min(self.rows.symbols)

    @property
    def col_symbol(self) -> str:
        return min(self.cols.symbols)


@dataclass(frozen=True, slots=True)
class Finisher:
    """Vectors and scalars along one dim, from partials and vectors."""

    name: str
    params: tuple[Param, ...]
    dim: Dim
    outputs: Mapping[str, Value]
    line: int


@dataclass(frozen=True, slots=True)
class Preparation:
    """A rearrangement of weights, done once, outside the timed path; its matrices may have any dims."""

    name: str
    params: tuple[Param, ...]
    outputs: Mapping[str, Value]
    line: int


Unit = Kernel | Finisher | Preparation


@dataclass(frozen=True, slots=True)
class Ref:
    """A value between units. Exactly one of: a program input; an output of an earlier call; a number; a size."""

    input: str | None = None
    call: str | None = None
    output: str | None = None
    number: float | int | None = None
    size: Dim | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a unit. `binding` gives the program's dim for every local symbol of the unit."""

    name: str
    unit: Unit
    args: Mapping[str, Ref]
    binding: Mapping[str, Dim]
    line: int

    def dim(self, local: Dim) -> Dim:
        return local.substitute(self.binding)


@dataclass(frozen=True, slots=True)
class Program:
    """A checked candidate."""

    name: str
    params: tuple[Param, ...]
    calls: tuple[Call, ...]
    outputs: Mapping[str, Ref]
    units: Mapping[str, Unit]
    docstring: str
    source: str

    def live_outputs(self, call: Call) -> tuple[str, ...]:
        """The outputs of a call that some live call or the program reads; the others are never stored."""
        live = self._live()
        return tuple(name for name in call.unit.outputs if (call.name, name) in live)

    def live_calls(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if self.live_outputs(call))

    def _live(self) -> set[tuple[str, str]]:
        live = {(r.call, r.output) for r in self.outputs.values() if r.call and r.output}
        for call in reversed(self.calls):
            alive = {name: v for name, v in call.unit.outputs.items() if (call.name, name) in live}
            if not alive:
                continue
            used = {v.attrs["name"] for v in walk(alive) if v.word == "param"}
            if isinstance(call.unit, Kernel) and call.unit.gemm:
                used |= {call.unit.gemm.a, call.unit.gemm.b}
            live |= {(r.call, r.output) for name, r in call.args.items() if r.call and r.output and name in used}
        return live


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input of a task as the language sees it.

    role: "activation", "weight" (may enter a preparation), "in_place" (fp32, added to by accumulate) or "scalar".
    """

    name: str
    type: Type
    dtype: str
    role: str


@dataclass(frozen=True, slots=True)
class OutputSpec:
    name: str
    dims: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Signature:
    """What a program must compute: the task, stripped of its reference. dtype: the activation dtype, "bfloat16"."""

    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    dtype: str

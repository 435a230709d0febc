"""One unit of a plan as text: its parameters with their types, its lines, its outputs. Knows nothing of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coda_synth.agent.planner_expr import ROW, Expr
from coda_synth.agent.planner_plan import FinisherPlan, KernelPlan, PreparationPlan, Stored, UnitPlan
from coda_synth.agent.planner_text import Body, ordered
from coda_synth.coda_api.dims import Dim

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "softplus", "tanh", "sigmoid", "erf", "exp")
_ROWS, _COLS, _INNER = "M", "N", "K"
SIZE = "size "  # the key of a size that a unit is told: SIZE + the program's symbol


@dataclass(slots=True)
class Unit:
    """params: the key of what is read, the local name, the type; outputs: the key of each and its name here."""

    plan: UnitPlan
    name: str
    params: list[tuple[str, str, str]]
    lines: list[str]
    returned: dict[str, str]
    outputs: dict[str, str]

    @property
    def shape(self) -> tuple[object, ...]:
        """What makes two kernels one: all but the names of the unit, of its outputs and of what it reads."""
        types = tuple((local, kind) for _, local, kind in self.params)
        return types, tuple(self.lines), tuple(self.returned.values())


@dataclass(slots=True)
class _Scope:
    """The parameters of one unit, by what they read and as which type."""

    params: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, key: str, kind: str, name: str) -> str:
        if (key, kind) not in self.params:
            taken = set(self.params.values())
            self.params[key, kind] = next(n for n in (name, *(f"{name}{i}" for i in range(2, 100))) if n not in taken)
        return self.params[key, kind]

    def listed(self) -> list[tuple[str, str, str]]:
        return [(key, name, kind) for (key, kind), name in self.params.items()]


def unit_text(unit: UnitPlan, stored: Mapping[str, Stored], sources: Mapping[str, Expr]) -> Unit:
    """sources: what each prepared value is made of, for the names of its columns."""
    if isinstance(unit, KernelPlan):
        return _kernel(unit, stored, sources)
    return _finisher(unit, stored) if isinstance(unit, FinisherPlan) else _preparation(unit, stored)


def _kernel(unit: KernelPlan, stored: Mapping[str, Stored], sources: Mapping[str, Expr]) -> Unit:
    dim, scope = _local_dims(unit.base, {_ROWS, _COLS, _INNER}), _Scope()
    product = _product(unit, stored, scope, dim)

    values = _values(unit)
    spread = {e.args[0]: e.dim for e in ordered(values.values()) if e.word == "spread"}

    def read(e: Expr) -> str:
        value, group = stored[e.name], spread.get(e)
        if value.form == "index":
            kind = f'Index["{_ROWS}"]'
        elif not e.axes:
            kind = "Scalar"
        elif group is not None:  # one value a group of columns
            kind = _tensor([str(Dim.parse(dim(e.dims[0] * group)) / Dim.parse(dim(group)))])
        else:
            dims = (_ROWS if a == ROW else dim(d) for a, d in zip(e.axes, e.dims, strict=True))
            kind = _tensor(dims)
        return scope.add(e.name, kind, _short(value))

    for e in _loads(values):
        read(e)
    _tell_sizes(values, scope, dim)
    body = Body(values, read, dim, scope.params.values(), product, _pair(unit, sources))
    return Unit(unit, _kernel_name(unit, values), scope.listed(), body.lines, body.returned, _outputs(unit))


def _product(unit: KernelPlan, stored: Mapping[str, Stored], scope: _Scope, dim: Callable[[Dim], str]) -> str:
    """Declares the operands of the gemm and writes it; "" where there is none."""
    if unit.gemm is None:
        return ""
    names: list[str] = []
    for load, dims in zip(unit.gemm.args, ((_ROWS, _INNER), (_INNER, dim(unit.cols))), strict=True):
        kind = _tensor(dims if load.axes[0] == ROW else dims[::-1])
        weight = bool(names) and stored[load.name].weight
        names.append(scope.add(load.name, kind, "w" if weight else _short(stored[load.name])))
    return f"gemm({', '.join(names)})"


def _finisher(unit: FinisherPlan, stored: Mapping[str, Stored]) -> Unit:
    values, scope = _values(unit), _Scope()
    letters: dict[Dim, str] = {}
    for e in _loads(values):
        if stored[e.name].form == "partial":
            letters.setdefault(stored[e.name].dims[1], "NPQRS"[len(letters)])

    def dim(d: Dim) -> str:
        return letters.get(d) or (_ROWS if d == unit.dim else str(d))

    def read(e: Expr) -> str:
        value = stored[e.name]
        if value.form == "partial":
            kind = f'Partial["{_ROWS}", "{dim(value.dims[1])}"]'
        elif value.form == "index":
            kind = f'Index["{_ROWS}"]'
        else:
            kind = f'Tensor["{_ROWS}"]' if e.axes else "Scalar"
        return scope.add(e.name, kind, _short(value))

    for e in _loads(values):
        read(e)
    _tell_sizes(values, scope, dim)
    body = Body(values, read, dim, scope.params.values())
    return Unit(
        unit, "overall" if unit.scalar else "per_row", scope.listed(), body.lines, body.returned, _outputs(unit)
    )


def _preparation(unit: PreparationPlan, stored: Mapping[str, Stored]) -> Unit:
    values, scope = _values(unit), _Scope()
    dim = _whole_dims({s for e in _loads(values) for d in stored[e.name].dims for s in d.all_symbols})

    def read(e: Expr) -> str:
        return scope.add(e.name, _tensor(map(dim, stored[e.name].dims)), _short(stored[e.name]))

    for e in _loads(values):
        read(e)
    body = Body(values, read, dim, scope.params.values())
    return Unit(unit, unit.kind, scope.listed(), body.lines, body.returned, _outputs(unit))


# -- names and dims


def _local_dims(base: Dim, used: set[str]) -> Callable[[Dim], str]:
    """Columns are N times a number; any other symbol keeps its name, but for those that a kernel uses itself."""

    def write(dim: Dim) -> str:
        ratio = dim / base
        if ratio.is_number:
            return str(Dim.symbol(_COLS) * ratio)
        names = {s: Dim.symbol(f"{s}_" if s in used else s) for s in dim.all_symbols}
        return str(dim.substitute(names))

    return write


def _whole_dims(used: set[str]) -> Callable[[Dim], str]:
    """A product of symbols is one symbol here: a length of H*HQ tells neither of them."""
    letters: dict[Dim, str] = {}

    def write(dim: Dim) -> str:
        if len(dim.all_symbols) < 2:
            return str(dim)
        base = next((b for b in letters if (dim / b).is_number), dim)
        letters.setdefault(base, next(c for c in "NPQRSUVW" if c not in {*used, *letters.values()}))
        return str(Dim.symbol(letters[base]) * (dim / base))

    return write


def _tell_sizes(values: Mapping[str, Expr], scope: _Scope, dim: Callable[[Dim], str]) -> None:
    """Declares the sizes of groups and lengths that no parameter's dims give."""
    known = {s for _, kind in scope.params for s in _symbols(kind)}
    for e in ordered(values.values()):
        if e.dim is None or e.word in ("total", "cycle"):
            continue
        for symbol in sorted(e.dim.all_symbols):
            local = dim(Dim.symbol(symbol))
            written = Dim.parse(dim(e.dim))
            if written.all_symbols - known and local in written.all_symbols:
                scope.add(f"{SIZE}{symbol}", f'Size["{local}"]', local.lower())
                known.add(local)


def _symbols(kind: str) -> Iterable[str]:
    return (s for text in kind.split('"')[1::2] for s in Dim.parse(text).all_symbols)


def _values(unit: UnitPlan) -> dict[str, Expr]:
    return {key.split(".")[1]: value for key, value in unit.outputs.items()}


def _outputs(unit: UnitPlan) -> dict[str, str]:
    return {key: key.split(".")[1] for key in unit.outputs}


def _loads(values: Mapping[str, Expr]) -> list[Expr]:
    return [e for e in ordered(values.values()) if e.word == "load"]


def _tensor(dims: Iterable[str]) -> str:
    return "Tensor[" + ", ".join(f'"{d}"' for d in dims) + "]"


def _short(value: Stored) -> str:
    return f"f_{value.name}" if value.key.startswith("turns") else value.name


def _pair(unit: KernelPlan, sources: Mapping[str, Expr]) -> tuple[str, str]:
    """Initials of the weights whose products lie side by side: a, b of w_a and w_b."""
    made = sources.get(unit.gemm.args[1].name) if unit.gemm else None
    made = next((e for e in ordered([made] if made else []) if e.word == "interleave"), None)
    if made is None:
        return "a", "b"
    names = [next(e.name for e in ordered([a]) if e.word == "load" and len(e.axes) == 2) for a in made.args]
    one, two = (n.rsplit("_", 1)[-1][0].lower() for n in names)
    return (one, two) if one != two else ("a", "b")


def _kernel_name(unit: KernelPlan, values: Mapping[str, Expr]) -> str:
    words = [e.word for e in ordered(values.values())]
    start = "linear" if unit.gemm else "pointwise"
    if "rotation" in words:
        return "rotary" if unit.gemm else "rotate"
    act = next((w for w in words if w in _ACTIVATIONS), "")
    if act:
        return f"{start}_{act}"
    if any(w.startswith("tile_") for w in words):
        return f"{start}_statistics"
    return f"{start}_add" if "add" in words or "sub" in words else start

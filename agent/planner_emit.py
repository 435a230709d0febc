"""A plan as a candidate's text: the algebra in words on top, every unit once, and the program that calls them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from itertools import chain

from coda_synth.agent.planner_plan import FinisherPlan, KernelPlan, Plan, PreparationPlan, Stored
from coda_synth.agent.planner_units import SIZE, Unit, unit_text

_WIDTH = 120
_PLAIN = (
    "All that surrounds a GEMM here is elementwise, a vector along its rows or columns, or a tile of its own shape: "
    "each fits the tile that the GEMM has just made."
)
_LETTERS = {"pack": "p", "scaled": "p", "turns": "f"}


def emit(plan: Plan, hints: Mapping[str, Mapping[str, int | str]] | None = None, remark: str = "") -> str:
    """The candidate. hints: schedule hints by kernel name; remark: a sentence on the schedule."""
    units = _named(plan)
    distinct = {u.name: u for u in reversed(units)}
    parts = [_docstring(plan, remark)]
    parts += [_definition(distinct.pop(u.name), (hints or {}).get(u.name, {})) for u in units if u.name in distinct]
    return "\n\n\n".join([*parts, _program(plan, units)]) + "\n"


def kernel_names(plan: Plan) -> tuple[str, ...]:
    """The kernels of the emitted text that have a GEMM, in order; two launches of equal text share one."""
    return tuple(dict.fromkeys(u.name for u in _named(plan) if isinstance(u.plan, KernelPlan) and u.plan.gemm))


def _named(plan: Plan) -> list[Unit]:
    """Every launch with its unit's text; equal kernels get one name, and one output is then called y."""
    sources = {key: value for u in plan.units if isinstance(u, PreparationPlan) for key, value in u.outputs.items()}
    units = [unit_text(u, plan.stored, sources) for u in plan.units]
    names: dict[tuple[object, ...], str] = {}
    taken = {plan.task}
    for unit in units:
        shape = unit.shape if isinstance(unit.plan, KernelPlan) else (id(unit),)
        if shape not in names:
            names[shape] = _free(unit.name, taken)
            taken.add(names[shape])
        unit.name = names[shape]
    alone = [u for u in units if isinstance(u.plan, KernelPlan) and _only_output(plan, u)]
    for unit in units:
        if sum(u.name == unit.name for u in units) > 1 or (unit in alone and len(alone) > 1):
            fresh = ["y"] if len(unit.outputs) == 1 else [f"y{i}" for i in range(1, len(unit.outputs) + 1)]
            unit.outputs = dict(zip(unit.outputs, fresh, strict=True))
            unit.returned = dict(zip(fresh, unit.returned.values(), strict=True))
    return units


def _free(name: str, taken: Iterable[str]) -> str:
    return next(n for n in chain([name], (f"{name}{i}" for i in range(2, 1000))) if n not in taken)


def _docstring(plan: Plan, remark: str) -> str:
    text = " ".join(plan.notes or (_PLAIN,))
    lines = textwrap.wrap(text, _WIDTH - 3)
    if remark:
        lines += ["", *textwrap.wrap(remark, _WIDTH - 3)]
    body = "\n".join(lines)
    return f'"""{body}"""' if "\n" not in body or len(lines[-1]) < _WIDTH - 3 else f'"""{body}\n"""'


def _definition(unit: Unit, hints: Mapping[str, int | str]) -> str:
    kind = {KernelPlan: "kernel", FinisherPlan: "finisher", PreparationPlan: "prepare"}[type(unit.plan)]
    given = ", ".join(f"{name}={value!r}" for name, value in hints.items())
    lines = [f"@{kind}({given})" if given else f"@{kind}"]
    lines += _signature(unit.name, [f"{name}: {type}" for _, name, type in unit.params])
    lines += [f"    {line}" for line in unit.lines]
    return "\n".join([*lines, *_returned([f'"{name}": {text}' for name, text in unit.returned.items()])])


def _signature(name: str, params: list[str]) -> list[str]:
    line = f"def {name}({', '.join(params)}):"
    return [line] if len(line) <= _WIDTH else [f"def {name}(", *(f"    {p}," for p in params), "):"]


def _returned(items: list[str]) -> list[str]:
    line = f"    return {{{', '.join(items)}}}"
    return [line] if len(line) <= _WIDTH else ["    return {", *(f"        {item}," for item in items), "    }"]


# -- the program


def _program(plan: Plan, units: list[Unit]) -> str:
    params = [f"{key}: {_type(plan.stored[key], dims)}" for key, dims in plan.inputs.items()]
    lines = ["@program", *_signature(plan.task, params)]
    where = {key: key for key in plan.inputs}
    taken = {*plan.inputs, *(u.name for u in units), plan.task}
    for unit in units:
        variable = _free(_call_name(plan, unit, taken), taken)
        taken.add(variable)
        arguments = [f'size("{key[len(SIZE) :]}")' if key.startswith(SIZE) else where[key] for key, _, _ in unit.params]
        lines.append(f"    {variable} = {unit.name}({', '.join(arguments)})")
        where |= {key: f"{variable}.{name}" for key, name in unit.outputs.items()}
    return "\n".join([*lines, *_returned([f'"{name}": {where[key]}' for name, key in plan.outputs.items()])])


def _call_name(plan: Plan, unit: Unit, taken: set[str]) -> str:
    """An output's own name where the unit makes that alone, else a letter."""
    if isinstance(unit.plan, PreparationPlan):
        return _LETTERS[unit.plan.kind]
    made = _only_output(plan, unit)
    if made and made not in (*taken, *unit.outputs.values()):
        return made
    return next((letter for letter in "abcdeghijklmnoqrstuvwxyz" if letter not in taken), "call")


def _only_output(plan: Plan, unit: Unit) -> str:
    """The task's output that is all that a unit makes; "" where it makes something else too."""
    made = [name for name, key in plan.outputs.items() if key in unit.outputs]
    return made[0] if len(made) == len(unit.outputs) == 1 else ""


def _type(value: Stored, dims: tuple[str, ...]) -> str:
    if value.form == "scalar":
        return "Scalar"
    written = ", ".join(f'"{d}"' for d in dims)
    return f"{'Index' if value.form == 'index' else 'Tensor'}[{written}]"

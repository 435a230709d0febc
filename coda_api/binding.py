"""What the program passes between units, and how a call binds a unit's symbols to the program's dims."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.finishing import Together
from coda_synth.coda_api.program import Form, Ref, Type, TypeKind, Unit, Value
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import shown
from coda_synth.coda_api.syntax import UnitText


@dataclass(frozen=True, slots=True)
class CheckedUnit:
    """A unit after reading. unit: None where it is broken; outputs: None where even their names are not known."""

    text: UnitText
    unit: Unit | None
    outputs: Mapping[str, Value] | None
    together: tuple[Together, ...] = ()


@dataclass(frozen=True, slots=True)
class Actual:
    """Something that the program can pass on: where it comes from, its type and, for a partial, its tiling.

    type: None where an error hides it. tiling: the call and the reduced axis (0 rows, 1 columns). value: the unit's
    value behind an output.
    """

    ref: Ref
    type: Type | None = None
    tiling: tuple[str, int] | None = None
    value: Value | None = None
    prepared: bool = False


Arguments = Mapping[str, tuple[Actual, ast.expr]]


def bind(call: ast.Call, checked: CheckedUnit, arguments: Arguments, report: Report) -> dict[str, Dim] | None:
    """The program's dim for every symbol of the unit; None where an error hides it."""
    if checked.unit is None:
        return None  # what is wrong with the unit is said already
    pending: list[tuple[Dim, Dim, str, ast.expr]] = []
    intact = True
    for name, (actual, node) in arguments.items():
        declared = checked.text.types[name]
        if declared is None or actual.type is None:
            intact = False
        elif not _fits(report, node, checked, name, declared, actual.type):
            intact = False
        elif declared.dims:
            pending += [(d, a, name, node) for d, a in zip(declared.dims, actual.type.dims, strict=True)]
    binding = _solve([(local, given) for local, given, _, _ in pending])
    free = sorted(checked.text.symbols - binding.keys())
    if intact and free:
        raise rules.CallDim(
            call,
            f'{checked.text.name}: the dim "{free[0]}" follows from no argument; a parameter {free[0].lower()}: '
            f'Size["{free[0]}"] would bring it in',
        )
    for local, given, name, node in pending:
        if local.all_symbols <= binding.keys() and local.substitute(binding) != given:
            intact = False
            _report_dim(report, node, checked, name, local, given, binding)
    return binding if intact else None


def _fits(report: Report, node: ast.expr, checked: CheckedUnit, name: str, declared: Type, given: Type) -> bool:
    problem = _misfit(declared, given, shown(node))
    if problem:
        rule = rules.CallDim if declared.kind is given.kind else rules.CallType
        report.add(
            rule(node, f"{checked.text.name}.{name} is declared {declared}, and {shown(node)} is {given}; {problem}")
        )
    return problem is None


def _report_dim(
    report: Report, node: ast.expr, checked: CheckedUnit, name: str, local: Dim, given: Dim, binding: Mapping[str, Dim]
) -> None:
    bound = ", ".join(f'"{s}" = "{binding[s]}"' for s in sorted(local.all_symbols))
    report.add(
        rules.CallDim(
            node,
            f'{checked.text.name}.{name}: {shown(node)} has the dim "{given}" where "{local}" is declared, which is '
            f'"{local.substitute(binding)}" here ({bound or "a number"})',
        )
    )


def check_together(call: ast.Call, checked: CheckedUnit, arguments: Arguments, report: Report) -> None:
    """Reports partials that the unit combines tile by tile and that do not come from one call and one dim."""
    for group in checked.together:
        actuals = [arguments[name][0] for name in sorted(group.names)]
        if any(a.type is None or a.tiling is None for a in actuals):
            continue
        listed = " and ".join(sorted(shown(arguments[name][1]) for name in group.names))
        if len({a.tiling for a in actuals}) > 1:
            report.add(
                rules.MixedTilings(
                    call,
                    f"{checked.text.name} (line {group.line}) combines {listed} tile by tile, but they come from "
                    "different calls or dims",
                )
            )
        elif group.moments and not _are_moments(*(arguments[name][0].value for name in group.moments)):
            report.add(
                rules.MixedTilings(
                    call,
                    f"{checked.text.name} (line {group.line}): {listed} are not mean and m2 of one tile_moments, in "
                    "that order",
                )
            )


def results_of(name: str, checked: CheckedUnit, binding: dict[str, Dim] | None) -> dict[str, Actual] | None:
    """What the program may pass on of a call; None where not even the names of its outputs are known."""
    if checked.outputs is None:
        return None
    prepared = checked.text.kind == "prepare"
    return {output: _actual_of(name, output, value, binding, prepared) for output, value in checked.outputs.items()}


def _solve(pairs: list[tuple[Dim, Dim]]) -> dict[str, Dim]:
    """Symbols of the unit from (local, given) pairs, simplest first; each from a pair where it alone is unknown."""
    pairs = sorted(pairs, key=lambda p: (len(p[0].powers), p[0].scale != 1))
    binding: dict[str, Dim] = {}
    progress = True
    while progress:
        progress = False
        for local, given in pairs:
            missing = [(s, p) for s, p in local.powers if s not in binding]
            if len(missing) == 1 and abs(missing[0][1]) == 1:
                symbol, power = missing[0]
                rest = Dim(local.scale, tuple((s, p) for s, p in local.powers if s != symbol)).substitute(binding)
                binding[symbol] = given / rest if power == 1 else rest / given
                progress = True
    return binding


def _misfit(declared: Type, given: Type, text: str) -> str | None:
    """Why an argument of one type cannot be passed for another; None where its kind and rank fit."""
    if declared.kind is given.kind:
        if len(declared.dims) == len(given.dims):
            return None
        return f"{len(declared.dims)} dims are declared and {len(given.dims)} given"
    match declared.kind, given.kind:
        case _, TypeKind.PARTIAL:
            return "a partial goes to a finisher's Partial parameter; finish it there (total_...) and pass the result"
        case TypeKind.PARTIAL, _:
            return "a Partial parameter takes what tile_... returned"
        case TypeKind.SIZE, _:
            return f'pass size("{declared.dims[0]}") of the program\'s dim'
        case TypeKind.SCALAR, TypeKind.SIZE:
            return 'declare the parameter as Size["D"], and read it with size("D")'
        case TypeKind.TENSOR, TypeKind.INDEX:
            return "declare the parameter as Index"
        case TypeKind.INDEX, TypeKind.TENSOR:
            return "an Index parameter takes an integer vector of the task"
    return "the kinds differ"


def _actual_of(call: str, output: str, value: Value, binding: Mapping[str, Dim] | None, prepared: bool) -> Actual:
    ref = Ref(call=call, output=output)
    if binding is None or value.form is Form.UNKNOWN:
        return Actual(ref, prepared=prepared)
    if value.form is Form.SUM:
        return Actual(ref, Type(TypeKind.SCALAR), value=value)
    dims = tuple(d.substitute(binding) for d in (value.rows, value.cols) if d is not None)
    if value.form is Form.PARTIAL:
        axis = value.attrs["axis"]
        return Actual(ref, Type(TypeKind.PARTIAL, dims), (call, axis), value)  # type: ignore[arg-type]
    return Actual(ref, Type(TypeKind.TENSOR, dims), value=value, prepared=prepared)


def _are_moments(mean: Value | None, m2: Value | None) -> bool:
    if mean is None or m2 is None or mean.word != "part" or m2.word != "part":
        return False
    source = mean.args[0]
    return source is m2.args[0] and source.word == "tile_moments" and (mean.attrs["index"], m2.attrs["index"]) == (0, 1)


def listed(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(f'"{d}"' for d in dims) + "]" if dims else "none (a scalar)"

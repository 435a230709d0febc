"""What a program is under the sizes of a task's shapes: dims are whole, groups divide them, and a tile holds them.

Sizes are not types: a program means the same whatever they are. But a task names the shapes that it is judged at, so
what no tile can do at one of them is told with everything else that is wrong with the text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.groups import misfits
from coda_synth.coda_api.program import Call, Form, Kernel, Program, Signature, Value, walk
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.schedule import ALLOWED
from coda_synth.coda_api.storage import ref_dtype

_WIDEST = max(n for n in ALLOWED["block_n"] if isinstance(n, int))
_PASSED = "pass dims that are whole at every shape"
_DIVIDES = "take a part that is whole at every shape of the task"
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Finding:
    """What is wrong at one shape: the rule, the value where it shows (None: the call), why, and what would be right.
    part: the dim that is no whole number, if that is what is wrong."""

    rule: type[rules.Broken]
    value: Value | None
    why: str
    remedy: str
    part: Dim | None = None


def check_shapes(
    program: Program, nodes: Mapping[str, ast.Call], shapes: Sequence[Sizes], report: Report, sound: bool
) -> None:
    """Reports what does not fit at one of the shapes, each cause once with all the sizes that trigger it.

    nodes: the calls of the program by name. sound: nothing else is wrong, so that it is known which outputs are read.
    """
    said: set[tuple[object, ...]] = set()  # causes and places
    for call in program.calls:
        names = program.live_outputs(call) if sound else tuple(call.unit.outputs)
        live = {name: call.unit.outputs[name] for name in names}
        live = {n: v for n, v in live.items() if all(part.form is not Form.UNKNOWN for part in walk([v]))}
        found: dict[tuple[int, type[rules.Broken]], tuple[_Finding, list[str]]] = {}
        for sizes in shapes:
            for finding in _findings(call, live, sizes):
                _, triggers = found.setdefault((id(finding.value), finding.rule), (finding, []))
                if (words := _sizes_behind(call, finding.value, sizes)) not in triggers:
                    triggers.append(words)
        for finding, triggers in found.values():
            value = finding.value
            place = (value.line, value.column, finding.rule) if value else (call.name,)
            if said.isdisjoint(known := {(call.unit.name, finding.why), place}):
                _report(call, nodes[call.name], _in_parts(call, finding, shapes), triggers, report)
            said |= known


def check_dtypes(program: Program, nodes: Mapping[str, ast.Call], signature: Signature, report: Report) -> None:
    """Reports products of operands of two dtypes."""
    for call in program.live_calls():
        gemm = call.unit.gemm if isinstance(call.unit, Kernel) else None
        if gemm is None:
            continue
        a, b = (ref_dtype(program, signature, call.args[name]) for name in (gemm.a, gemm.b))
        if a != b:
            said = (
                f"{call.name}: gemm({gemm.a}, {gemm.b}) of {call.unit.name} gets {gemm.a} in {a} and {gemm.b} in {b}, "
                "and the operands of a gemm have one dtype; store one of them in the other's, with cast(...) "
                "outermost in the unit that returns it"
            )
            report.add(rules.OperandDtype(nodes[call.name], said))


def tile_holds(program: Program, call: Call, shapes: Sequence[Sizes], block_n: int) -> bool:
    """Whether a tile of so many columns holds all values of a call of a kernel, at each of the task's shapes."""
    live = {name: call.unit.outputs[name] for name in program.live_outputs(call)}
    return not any(finding for sizes in shapes for finding in _findings(call, live, sizes, block_n))


def _findings(call: Call, live: Mapping[str, Value], sizes: Sizes, block_n: int = 0) -> Iterator[_Finding]:
    """block_n: of the tile, 0 for the one that the kernel asks for, or else the widest."""
    if any(dim.all_symbols - sizes.keys() for dim in call.binding.values()):
        return  # a dim that the task does not have; that is said elsewhere
    for dim in call.binding.values():
        if not _whole(dim, sizes):
            yield _Finding(rules.DimSize, None, _not_whole(dim, sizes), _PASSED, dim)
            return
    local = {symbol: dim.size(sizes) for symbol, dim in call.binding.items()}
    broken = list(_broken_dims(live, local))
    yield from broken
    if isinstance(call.unit, Kernel):
        values = {id(finding.value) for finding in broken}
        whole = {name: value for name, value in live.items() if values.isdisjoint(id(v) for v in walk([value]))}
        columns = block_n or call.unit.hints.get("block_n", _WIDEST)
        assert isinstance(columns, int)
        for misfit in misfits(call.unit, whole, local, columns):
            yield _Finding(rules.TileFit, misfit.value, misfit.why, misfit.remedy)


def _broken_dims(live: Mapping[str, Value], local: Sizes) -> Iterator[_Finding]:
    """Dims of values and of words that are no whole number, and what a fold leaves over."""
    for value in walk(live):
        named = (value.rows, value.cols, value.attrs.get("group"), value.attrs.get("dim"))
        dims = [d for d in named if isinstance(d, Dim)]
        part = next((d for d in dims if not _whole(d, local)), None)
        if part is not None:
            yield _Finding(rules.DimSize, value, _not_whole(part, local), _DIVIDES, part)
        elif value.word == "fold" and value.rows and (over := value.args[0].rows):
            if over.size(local) % value.rows.size(local):
                why = f'"{value.rows}" of {value.rows.size(local)} does not divide "{over}" of {over.size(local)}'
                yield _Finding(rules.DimSize, value, why, "fold to a dim that does")
        elif value.word == "join" and len(dims) == len(named):  # in a preparation, which names the dim
            group, length = dims[-2].size(local), 2 * dims[-1].size(local)
            if group % 2 or length % group:
                why = f"groups of {group} do not divide the {length} that come of it in two halves each"
                yield _Finding(rules.DimSize, value, why, "join by a group that does")


def _whole(dim: Dim, sizes: Sizes) -> bool:
    return (length := dim.exact(sizes)).denominator == 1 and length >= 1


def _not_whole(dim: Dim, sizes: Sizes) -> str:
    return f'"{dim}" is {dim.exact(sizes)}, no whole number'


def _sizes_behind(call: Call, value: Value | None, sizes: Sizes) -> str:
    """ "H = 320, HQ = 8": the task's sizes that a finding comes from."""
    dims = list(call.binding.values())
    if value is not None:
        attrs = (value.attrs.get("group"), value.attrs.get("dim"))
        cols = (value.cols, *(arg.cols for arg in value.args))
        local = {s for d in (*attrs, *cols) if isinstance(d, Dim) for s in d.all_symbols}
        dims = [call.binding[s] for s in local if s in call.binding]
    symbols = sorted({s for dim in dims for s in dim.all_symbols})
    return ", ".join(f"{s} = {sizes[s]}" for s in symbols)


def _in_parts(call: Call, finding: _Finding, shapes: Sequence[Sizes]) -> _Finding:
    """The same with which parts of its dim are whole at every shape, if any."""
    if finding.part is None:
        return finding
    whole = _numerator(finding.part)
    over = _numerator(finding.part.substitute(call.binding) if finding.value else finding.part)
    common = gcd(*(over.size(sizes) for sizes in shapes))
    if common == 1:
        return replace(finding, remedy=f'no part of "{whole}" is whole at every shape of the task, so take all of it')
    return replace(finding, remedy=f'{finding.remedy}, where "{whole}" is a multiple of {common}')


def _numerator(dim: Dim) -> Dim:
    return Dim(powers=tuple((name, power) for name, power in dim.powers if power > 0))


def _report(call: Call, node: ast.Call, finding: _Finding, triggers: list[str], report: Report) -> None:
    likewise = f" (likewise {'; '.join(triggers[1:4])}{', ...' if triggers[4:] else ''})" if triggers[1:] else ""
    said = f"{finding.why}, in the call {call.name} with {triggers[0]}{likewise}; {finding.remedy}"
    value = finding.value
    if value is None:
        report.add(finding.rule(node, said))
    else:
        report.add_at(finding.rule, f"{value.word}: {said}", value.line, value.column)

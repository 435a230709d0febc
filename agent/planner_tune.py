"""Schedules for a derived program: a small deterministic search, led by what the judge said of the ones tried.

A schedule is never tried twice. Without measurements only what a build and the cost model can tell apart is tried:
shared memory, spills and tiles. It reads schedules out of candidates' texts, so an earlier run's attempts serve too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coda_synth.agent.planner_pieces import pieces
from coda_synth.coda_api.devices import UnknownDevice, device
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.schedule import ACCUMULATORS, Schedule, ScheduleError
from coda_synth.evaluator.evaluation import Evaluation, Verdict
from coda_synth.runs.ranking import ranked
from coda_synth.runs.record import Attempt

Hint = int | str
Hints = Mapping[str, Mapping[str, Hint]]
_TILES = ((128, 256), (128, 128), (256, 128), (64, 256), (64, 128))
# Hopper's two ways to overlap an epilogue, which only a measurement can tell apart; elsewhere they change nothing.
_MAINLOOPS: tuple[dict[str, Hint], ...] = (
    {"mainloop": "pingpong", "block_n": 128, "stages": 5},
    {"mainloop": "hopper", "block_n": 256, "stages": 3},
    {"mainloop": "pingpong", "block_n": 128, "stages": 4},
)
_UNMEASURED = 3  # tries in a row that the cost model finds no better, before it is left at that
_DEFAULT = Schedule()
_CHOSEN = ("block_m", "block_n", "stages", "mainloop")


@dataclass(frozen=True, slots=True)
class Proposal:
    """hints: by kernel, only where they differ from the default; reason: a sentence for the author's text."""

    hints: Hints
    reason: str


class Exhausted(Exception):
    """No schedule is left that the search would try; the message says what was tried and what is best."""


def next_schedule(kernels: tuple[str, ...], attempts: tuple[Attempt, ...]) -> Proposal:
    """The schedule to try after these attempts; raises Exhausted. kernels: those with a GEMM, in order."""
    judged = [a for a in attempts if a.candidate is not None]
    if not judged:
        return Proposal({}, "")
    tried = {_key(read_hints(a.candidate.source)) for a in judged if a.candidate}
    base = _base(judged)
    if base is None:
        raise Exhausted("no attempt was judged to its end, so there is nothing to improve")
    _stop_where_schedules_do_not_matter(judged, base)
    hints = {k: h for k, h in read_hints(_source(base)).items() if k in kernels}
    for kernel, change, reason in _moves(base, kernels, hints):
        proposed = _changed(hints, kernel, change)
        if proposed is None or _key(proposed) in tried or _as_it_ran(base, kernel, {**proposed[kernel], **change}):
            continue
        if _fits(proposed[kernel], base.evaluation):
            return Proposal(proposed, f"Schedule: {kernel} with {_shown(change)}, {reason}.")
    raise Exhausted(
        f"{len(tried)} schedules were tried; the best is step {base.step}'s and none of its neighbours is left"
    )


# -- what to start from


def _base(judged: list[Attempt]) -> Attempt | None:
    """The best that passed; before any did, the latest that was judged."""
    passed = ranked(judged)
    return passed[0] if passed else next((a for a in reversed(judged) if a.evaluation), None)


def _stop_where_schedules_do_not_matter(judged: list[Attempt], base: Attempt) -> None:
    verdict = base.evaluation.verdict if base.evaluation else None
    if verdict in (Verdict.REJECTED, Verdict.INCORRECT):
        raise Exhausted(
            f"the derived program was found {verdict}, which no schedule mends; this is a fault of the planner"
        )
    if verdict is not Verdict.PASSED and len(judged) >= 4:
        raise Exhausted(f"{len(judged)} schedules failed, the last one with {verdict}")
    if base.evaluation and not base.evaluation.timings and verdict is Verdict.PASSED:
        vain = [a for a in judged if a.step > base.step]
        if len(vain) >= _UNMEASURED:
            said = f"nothing was measured, and the cost model finds step {base.step} best of {len(ranked(judged))}"
            raise Exhausted(f"{said}; run on a machine with a GPU to tune further")


# -- where to go from there

Move = tuple[str, Mapping[str, Hint], str]


def _moves(base: Attempt, kernels: tuple[str, ...], hints: Hints) -> Iterator[Move]:
    """Moves in the order in which they promise most."""
    now = {k: _DEFAULT.with_hints(hints.get(k, {})) for k in kernels}
    found = base.evaluation
    assert found is not None  # the base of a search has been judged
    if found.verdict is not Verdict.PASSED:
        yield from _smaller(found, now)
        return
    for kernel, spilled in _spills(base).items():
        if kernel in now:
            yield from _fewer_registers(kernel, now[kernel], spilled)
    yield from pieces(_source(base), found, now)
    for mainloop in _MAINLOOPS if _measured_on_hopper(found) else ():
        for kernel in kernels:
            yield kernel, dict(mainloop), "to compare mainloops"
    for tile in _TILES:
        for kernel in kernels:
            yield kernel, _tile(now[kernel], *tile), "to compare tile shapes"
    if found.timings:
        yield from _neighbours(kernels, now)


def _measured_on_hopper(found: Evaluation) -> bool:
    try:
        return bool(found.timings) and device(found.timings[0].device).target == "sm_90"
    except UnknownDevice:
        return False


def _smaller(found: Evaluation, now: Mapping[str, Schedule]) -> Iterator[Move]:
    """After a build that failed: shallower pipelines first, then smaller tiles; in the kernels that are to blame."""
    said = " ".join(d.rule for d in found.diagnostics) or str(found.verdict)
    for kernel, s in now.items():
        for stages in range(s.stages - 1, 1, -1):
            yield kernel, {"stages": stages}, f"a shallower pipeline takes less shared memory after {said}"
    for kernel, s in now.items():
        for changed in ({"block_k": s.block_k // 2}, _tile(s, s.block_m, s.block_n // 2), _tile(s, 64, s.block_n // 2)):
            yield kernel, changed, f"a smaller tile after {said}"


def _fewer_registers(kernel: str, s: Schedule, spilled: int) -> Iterator[Move]:
    reason = f"because the last build spilled {spilled:,} bytes a thread"
    for width in (64, 32, 16):
        if width < (s.slice_n or s.block_n):
            yield kernel, {"slice_n": width}, f"a narrower slice of the epilogue, {reason}"
    if s.warps < 8:
        yield kernel, {"warps": 8}, f"more warps, {reason}"
    yield kernel, _tile(s, s.block_m, s.block_n // 2), f"a narrower tile, {reason}"


def _neighbours(kernels: tuple[str, ...], now: Mapping[str, Schedule]) -> Iterator[Move]:
    """One hint changed by one notch; only a measurement can tell these apart."""
    notches: tuple[tuple[str, tuple[int, ...], str], ...] = (
        ("stages", (2, 3, 4, 5, 6), "a deeper or shallower pipeline"),
        ("group_m", (1, 4, 8, 16), "another order of tiles through the L2 cache"),
        ("slice_n", (0, 32, 64, 128), "another width of the epilogue's slices"),
        ("warps", (4, 8, 16), "another number of warps"),
        ("block_k", (32, 64, 128), "another depth of a pipeline step"),
    )
    for name, values, reason in notches:
        for kernel in kernels:
            at = values.index(getattr(now[kernel], name)) if getattr(now[kernel], name) in values else 0
            for value in (*values[at + 1 : at + 2], *values[max(0, at - 1) : at]):
                yield kernel, {name: value}, f"{reason} than in the best so far"


def _tile(s: Schedule, block_m: int, block_n: int) -> dict[str, Hint]:
    """A tile, with slices no wider than it."""
    narrower: dict[str, Hint] = {"slice_n": block_n} if s.slice_n > block_n else {}
    return {"block_m": block_m, "block_n": block_n, **narrower}


def _changed(hints: Hints, kernel: str, change: Mapping[str, Hint]) -> dict[str, dict[str, Hint]] | None:
    """All hints with one kernel's changed, defaults left out but for those that are chosen for a kernel without hints;
    None where such a schedule cannot exist."""
    try:
        schedule = _DEFAULT.with_hints({**hints.get(kernel, {}), **change})
    except ScheduleError:
        return None
    said = {name: getattr(schedule, name) for name in Schedule.__slots__}
    kept = {n: v for n, v in said.items() if n in _CHOSEN or v != getattr(_DEFAULT, n)}
    return {**{k: dict(h) for k, h in hints.items()}, kernel: kept}


def _as_it_ran(base: Attempt, kernel: str, hints: Mapping[str, Hint]) -> bool:
    """Whether these hints say no more than what was chosen for each launch of the kernel without them."""
    launches = [call for call, unit in _calls(_source(base)).items() if unit == kernel]
    ran = base.evaluation.schedules if base.evaluation else {}
    return bool(launches) and all(call in ran and _says(hints, ran[call]) for call in launches)


def _says(hints: Mapping[str, Hint], ran: Schedule) -> bool:
    """Turns are never chosen for a kernel that names a mainloop of "auto"."""
    auto = hints.get("mainloop") == "auto" and ran.mainloop != "pingpong"
    return all(getattr(ran, name) == value or (name == "mainloop" and auto) for name, value in hints.items())


def _fits(hints: Mapping[str, Hint], found: Evaluation | None) -> bool:
    s = _DEFAULT.with_hints(hints)
    return s.operand_bytes() <= _shared_bytes(found) and s.block_m * s.block_n <= ACCUMULATORS * 32 * s.warps


def _shared_bytes(found: Evaluation | None) -> int:
    name = found.environment.get("model_device", "sm_90") if found else "sm_90"
    try:
        return device(name).shared_bytes
    except UnknownDevice:
        return device("sm_90").shared_bytes


def _spills(base: Attempt) -> dict[str, int]:
    """Bytes spilled by unit, worst first."""
    calls = _calls(_source(base))
    found: dict[str, int] = {}
    for resource in base.evaluation.resources if base.evaluation else ():
        unit = calls.get(resource.call, "")
        if resource.spill_bytes:
            found[unit] = max(found.get(unit, 0), resource.spill_bytes)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


# -- schedules in a text


def read_hints(source: str) -> dict[str, dict[str, Hint]]:
    """The schedule hints of every @kernel of a text; nothing where it cannot be read."""
    found: dict[str, dict[str, Hint]] = {}
    for function in _functions(source):
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "kernel":
                values = {k.arg: k.value.value for k in mark.keywords if k.arg and isinstance(k.value, ast.Constant)}
                found[function.name] = {n: v for n, v in values.items() if isinstance(v, int | str)}
    return found


def _calls(source: str) -> dict[str, str]:
    """The unit behind every call of the program."""
    found: dict[str, str] = {}
    for function in _functions(source):
        for line in function.body:
            if (
                isinstance(line, ast.Assign)
                and isinstance(line.value, ast.Call)
                and isinstance(line.targets[0], ast.Name)
            ):
                if isinstance(line.value.func, ast.Name):
                    found[line.targets[0].id] = line.value.func.id
    return found


def _functions(source: str) -> list[ast.FunctionDef]:
    try:
        return [n for n in parse_statements(source).body if isinstance(n, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return []


def _source(attempt: Attempt) -> str:
    return attempt.candidate.source if attempt.candidate else ""


def _key(hints: Hints) -> tuple[tuple[str, tuple[tuple[str, Hint], ...]], ...]:
    return tuple(sorted((k, tuple(sorted(h.items()))) for k, h in hints.items() if h))


def _shown(change: Mapping[str, Hint]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in change.items())

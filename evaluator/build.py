"""The build child: reads a candidate, plans its checks, compiles it ahead of time and models its cost. Needs no torch.

Reading happens here and not in the parent, so that a text that breaks the parser breaks this process alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import platform
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coda_synth.coda_api import cost, toolchain
from coda_synth.coda_api.devices import Device, device
from coda_synth.coda_api.errors import Diagnostic, ProgramError
from coda_synth.coda_api.generated import Generated, Resources
from coda_synth.coda_api.hopper_support import hopper_fault
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Call, Kernel, Program
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule, ScheduleError
from coda_synth.evaluator.channel import Answerable, Message, serve
from coda_synth.evaluator.evaluation import Modelled
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.evaluator.fitting import fit_sizes
from coda_synth.evaluator.places import call_of, call_places, output_places
from coda_synth.evaluator.profile import modelled_lines
from coda_synth.evaluator.remedies import built_as, over_shared, warnings
from coda_synth.evaluator.serial import from_data, to_data

Schedules = Mapping[str, Schedule]
SMALL = Schedule(block_m=16, block_n=32, block_k=16, stages=2, warps=4, group_m=2)
SMALL_PIECES = 4  # of K, at most
FEW_PROCESSORS = 2  # so that every persistent program walks several tiles
_WIDTHS = (32, 64, 128, 256)


class OverShared(Exception):
    """A launch takes more shared memory than the device gives one block; Triton finds out only when it loads."""


# ---- planning --------------------------------------------------------------------------------------------------------


def interpreter_cases(
    program: Program, facts: TaskFacts, schedules: Schedules, seed: int, form: str = "descriptor"
) -> list[Case]:
    """What proves the generated code without a device: small tiles in both forms on sizes that give each kernel more
    than two whole tiles along rows, columns and depth; the smallest odd shape; and what ships, the schedule and the
    form for the target, on one tile and a bit: a Hopper kernel is simulated."""
    small = _small_schedules(program, facts, schedules)
    base = min(facts.check_shapes, key=lambda sizes: -sum(sizes.values()))
    case = functools.partial(Case, "interpreter", processors=FEW_PROCESSORS)
    even = fit_sizes(program, base, small, 2, aligned=True)
    odd = fit_sizes(program, base, small, 2, aligned=False)
    least = min(facts.check_shapes, key=lambda sizes: sum(sizes.values()))
    shipped = fit_sizes(program, facts.headline[1], schedules, 1, aligned=True)
    forms = ((even, "descriptor"), (odd, "pointer"))
    tiled = [
        case(sizes, seed + i, style, form, small)
        for i, (style, (sizes, form)) in enumerate(zip(facts.styles, itertools.cycle(forms)))
    ]
    whole = case(shipped, seed + len(tiled), "normal", form, dict(schedules))
    return [*tiled, case(least, seed + len(tiled) + 1, "normal", "pointer", small), whole]


def _small_schedules(program: Program, facts: TaskFacts, schedules: Schedules) -> dict[str, Schedule]:
    """The smallest tile with which each kernel call lowers: a tile must hold whole groups. Where the shipped schedule
    cuts K in pieces, these do likewise."""
    base = min(facts.check_shapes, key=lambda sizes: -sum(sizes.values()))
    shipped = {call.name: schedules[call.name] for call in _kernel_calls(program)}
    chosen = {n: replace(SMALL, split_k=min(s.split_k, SMALL_PIECES), cut=s.cut) for n, s in shipped.items()}
    last: Exception = LoweringError("no tile is wide enough")
    for width in _WIDTHS:
        chosen = {name: replace(small, block_n=width) for name, small in chosen.items()}
        try:
            lower(program, facts.signature, base, form="pointer", schedules=chosen)
            return chosen
        except (ScheduleError, LoweringError) as error:
            last = error
    raise last


def _kernel_calls(program: Program) -> list[Call]:
    return [call for call in program.live_calls() if isinstance(call.unit, Kernel)]


# ---- what the parent may ask -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _program(source: str, facts_text: str) -> Program:
    facts = from_data(TaskFacts, json.loads(facts_text))
    return read(source, facts.signature, facts.shapes)


def _asked(data: Mapping[str, Any]) -> tuple[Program, TaskFacts, dict[str, Schedule]]:
    facts = from_data(TaskFacts, data["facts"])
    program = _program(data["source"], json.dumps(data["facts"]))
    return program, facts, from_data(dict[str, Schedule], data["schedules"])


def _read(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    try:
        _asked(data)
    except ProgramError as error:
        return Message({"diagnostics": to_data(error.diagnostics)})
    return Message({"diagnostics": []})


def _lowered(data: Mapping[str, Any]) -> Generated:
    """The candidate at the headline shape, for the target, with its own schedules."""
    named = {name: data[name] for name in ("source", "facts", "schedules", "target", "device")}
    return _lowered_once(json.dumps(named))  # in the order that it came in: the first shape is the headline


@functools.lru_cache(maxsize=4)
def _lowered_once(text: str) -> Generated:
    """Every question about a candidate asks for it."""
    data = json.loads(text)
    program, facts, schedules = _asked(data)
    known = {call.name for call in _kernel_calls(program)}
    if unknown := sorted(set(schedules) - known):
        raise ScheduleError(f"no kernel call is named {unknown[0]!r}; the calls are {', '.join(sorted(known))}")
    target = device(data["device"])
    fault = hopper_fault() if target.target == "sm_90" else ""
    made = lower(
        program,
        facts.signature,
        facts.headline[1],
        form=None if target.has_tma else "pointer",
        schedules=schedules,
        processors=target.sms,
        hopper=target.target == "sm_90" and not fault,
        shared_bytes=target.shared_bytes,
    )
    said = Diagnostic("PortableKernel", f"portable kernels stand in for Hopper's: {fault}", severity="note")
    return replace(made, notes=(*made.notes, said)) if fault else made


def _plan(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    program, facts, _ = _asked(data)
    generated = _lowered(data)
    schedules = generated.schedules
    cases = interpreter_cases(program, facts, schedules, data["seed"], generated.form)
    sizes = {n: fit_sizes(program, facts.headline[1], schedules, 2, aligned=n == "even") for n in ("even", "odd")}
    answer = {
        "generated_hash": hashlib.sha256(generated.source.encode()).hexdigest()[:16],
        "cases": cases,
        "schedules": schedules,
        "effective": generated.effective,
        "output_places": output_places(program),
        "call_places": call_places(program),
        "device_sizes": sizes,  # more than two of the shipped tiles along every dim, aligned and odd
    }
    return Message(to_data(answer))


def _price(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The bound and the cost of each launch at one shape on one device."""
    program, facts, _ = _asked(data)
    on, sizes = device(data["device"]), data["sizes"]
    priced = cost.program_cost(program, facts.signature, sizes, _run_as(_lowered(data)), on)
    bound = cost.bound_s(facts.signature, facts.gemms, sizes, on)
    return Message({"bound_ms": bound * 1e3, "launches": to_data(priced.launches)})


def model(
    program: Program, facts: TaskFacts, schedules: Schedules, on: Device, spills: Mapping[str, int] = {}
) -> list[Modelled]:
    """The cost model's words for every shape that the task times. spills: bytes a thread by call, from a build."""
    found = []
    for label, sizes in facts.time_shapes.items():
        priced = cost.program_cost(program, facts.signature, sizes, schedules, on, spills)
        asked = (facts.signature, facts.gemms, sizes, on)
        bound, bare, floor = cost.bound_s(*asked), cost.bare_gemm_s(*asked), cost.floor_s(*asked)
        times = (bound * 1e3, priced.seconds * 1e3, bare * 1e3, floor * 1e3)
        calls = {launch.call: launch.seconds * 1e3 for launch in priced.launches}
        found.append(Modelled(label, sizes, on.name, priced.bytes, priced.flops, *times, calls))
    return found


def _run_as(generated: Generated) -> dict[str, Schedule]:
    """The schedules with the mainloops that came of them: without a Hopper text a kernel runs the portable one."""
    ran = {call: effective.mainloop for call, effective in generated.effective.items()}
    return {call: replace(s, mainloop=ran.get(call, s.mainloop)) for call, s in generated.schedules.items()}


def _modelled(data: Mapping[str, Any], generated: Generated, resources: Sequence[Resources]) -> dict[str, object]:
    """The times of what was built: what it spills costs something."""
    (program, facts, _), on, schedules = _asked(data), device(data["device"]), _run_as(generated)
    spills = {call: max(r.spill_bytes for r in resources if r.call == call) for call in {r.call for r in resources}}
    headline, sizes = facts.headline
    launches = cost.program_cost(program, facts.signature, sizes, schedules, on, spills).launches
    lines = modelled_lines(launches, on, facts.signature.dtype)
    return {
        "modelled": model(program, facts, schedules, on, spills),
        "profile": [f"{headline}: {line}" for line in lines],
    }


def _build(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    generated = _lowered(data)
    try:
        resources = _resources(generated, data["target"])
    except toolchain.BuildError as error:
        call = call_of(generated, error.kernel)
        raise Answerable(f"{error}{built_as(generated, call)}", {"call": call}) from error
    on = device(data["device"])
    over = [r for r in resources if r.shared_bytes > on.shared_bytes]
    if over:
        mainloops = {launch.kernel for launch in generated.launches if launch.multiplies}
        found = [(r, generated.effective[r.call] if r.kernel in mainloops else None) for r in over]
        words = " ".join(over_shared(r, schedule, on) for r, schedule in found)
        raise Answerable(words, {"call": over[0].call}) from OverShared()
    built = zip(generated.launches, resources, strict=True)
    told = [w for launch, r in built for w in warnings(r, launch.multiplies, generated.effective.get(launch.call))]
    told += generated.notes
    modelled = _modelled(data, generated, resources)
    return Message(to_data({"resources": resources, "warnings": told, **modelled}))


_KEPT = 64  # compilations, the newest
_compiled: dict[str, tuple[Resources, ...]] = {}


def _resources(generated: Generated, target: str) -> tuple[Resources, ...]:
    """The compiler's findings; equal text for an equal launch is compiled once, and then takes no seconds."""
    key = hashlib.sha256(repr((generated.source, generated.launches, target)).encode()).hexdigest()
    if key in _compiled:
        return tuple(replace(found, seconds=0.0) for found in _compiled[key])
    _compiled[key] = toolchain.build(generated, target)
    for old in list(_compiled)[:-_KEPT]:
        del _compiled[old]
    return _compiled[key]


# ---- ahead of a device's checks --------------------------------------------------------------------------------------


def _of_case(data: Mapping[str, Any], case: Any) -> tuple[Generated, types.ModuleType]:
    """The candidate lowered for a case as the GPU's child does it, and its module; cases that differ in inputs alone
    share them."""
    alike = {**case, "stage": "", "seed": 0, "style": "", "rows": None}
    return _alike(json.dumps({**data, "cases": [], "kernels": [], "case": alike}))


@functools.lru_cache(maxsize=16)
def _alike(text: str) -> tuple[Generated, types.ModuleType]:
    data = json.loads(text)
    (program, facts, _), case, on = _asked(data), from_data(Case, data["case"]), device(data["device"])
    made = lower(
        program,
        facts.signature,
        case.sizes,
        form=None if on.has_tma else "pointer",
        schedules=case.schedules,
        processors=case.processors,
        hopper=on.target == "sm_90" and not hopper_fault(),
        shared_bytes=on.shared_bytes,
    )
    return made, toolchain.load(made.source)


def _kernels(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """What the device's cases launch, equal kernels once: each by its hash, with the places of case and launch."""
    found: dict[str, list[int]] = {}
    for i, case in enumerate(data["cases"]):
        generated, module = _of_case(data, case)
        for j, launch in enumerate(generated.launches):
            key = repr((getattr(module, launch.kernel).cache_key, launch.args, launch.warps, launch.stages))
            found.setdefault(hashlib.sha256(f"{data['device']} {key}".encode()).hexdigest(), [i, j])
    return Message({"kernels": found})


def _compile(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Leaves kernels in triton's cache, where the GPU's child finds them. What does not compile will be told there."""
    target = toolchain.target_of(device(data["device"]).target)
    for i, j in data["kernels"]:
        generated, module = _of_case(data, data["cases"][i])
        launch = generated.launches[j]
        with contextlib.suppress(toolchain.BuildError):
            toolchain.leave_launcher(toolchain.compile_launch(getattr(module, launch.kernel), launch, target))
    return Message({})


def _hello() -> Mapping[str, Any]:
    import triton

    return {"triton": triton.__version__, "python": platform.python_version()}


if __name__ == "__main__":
    handlers = {"read": _read, "plan": _plan, "build": _build, "price": _price}
    serve({**handlers, "kernels": _kernels, "compile": _compile}, hello=_hello)

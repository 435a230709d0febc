"""The tuner's compile worker, a child: what a candidate's kernels are, which schedules the cost model proposes for one,
and what a build ahead of time finds of each. Needs no torch; the tuner keeps one for every core.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coda_synth.coda_api import toolchain
from coda_synth.coda_api.canonical import call_names, canonical
from coda_synth.coda_api.cost import ITEMSIZE, program_cost
from coda_synth.coda_api.devices import Device, device
from coda_synth.coda_api.errors import Diagnostic, ProgramError
from coda_synth.coda_api.generated import Generated, Resources
from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Call, Kernel, Program, Signature
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule, ScheduleError
from coda_synth.coda_api.schedule_space import neighbours, passes, shapes
from coda_synth.coda_api.storage import ref_dtype
from coda_synth.evaluator.channel import Message, serve
from coda_synth.evaluator.proposed import Built, Described, Proposal, TunedKernel
from coda_synth.evaluator.serial import from_data, to_data

Schedules = Mapping[str, Schedule]


@dataclass(frozen=True, slots=True)
class Asked:
    """What every question carries: a program, what it must compute, at which sizes, for which device."""

    program: Program
    signature: Signature
    sizes: Mapping[str, int]
    on: Device

    def lowered(self, schedules: Schedules) -> Generated:
        return lower(
            self.program,
            self.signature,
            self.sizes,
            form=None if self.on.has_tma else "pointer",
            schedules=schedules,
            processors=self.on.sms,
            hopper=self.on.target == "sm_90",
            shared_bytes=self.on.shared_bytes,
        )

    def modelled_ms(self, schedules: Schedules, spills: Mapping[str, int] = {}) -> float:
        return 1e3 * program_cost(self.program, self.signature, self.sizes, schedules, self.on, spills).seconds

    def calls_of(self, kernel: str) -> list[Call]:
        return [c for c in self.program.live_calls() if isinstance(c.unit, Kernel) and c.unit.name == kernel]


@functools.lru_cache(maxsize=4)
def _program(source: str, signature_text: str) -> Program:
    return read(source, from_data(Signature, json.loads(signature_text)))


def _asked(data: Mapping[str, Any]) -> Asked:
    program = _program(data["source"], json.dumps(data["signature"], sort_keys=True))
    return Asked(program, from_data(Signature, data["signature"]), data["sizes"], device(data["device"]))


# ---- what the parent may ask -----------------------------------------------------------------------------------------


def _describe(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The program's canonical form and its kernels, those that take most of the modelled time first; or what is wrong
    with the text."""
    try:
        asked = _asked(data)
        found = kernels(asked)
    except ProgramError as error:
        return Message(to_data(Described(error.diagnostics)))
    except (LoweringError, ScheduleError) as error:
        return Message(to_data(Described((Diagnostic(type(error).__name__, str(error)),), lowers=False)))
    form = hashlib.sha256(canonical(asked.program).encode()).hexdigest()
    return Message(to_data(Described((), form, tuple(found))))


def kernels(asked: Asked) -> list[TunedKernel]:
    """Every kernel with a live call, the longest first."""
    chosen, ids = asked.lowered({}).schedules, call_names(asked.program)
    priced = program_cost(asked.program, asked.signature, asked.sizes, chosen, asked.on)
    seconds = {launch.call: launch.seconds for launch in priced.launches}
    units = {c.unit.name: asked.calls_of(c.unit.name) for c in asked.program.live_calls() if isinstance(c.unit, Kernel)}
    found = [
        TunedKernel(
            name,
            tuple(c.name for c in calls),
            ids[calls[0].name],
            sum(seconds[c.name] for c in calls) / priced.seconds,
            {c.name: chosen[c.name] for c in calls},
        )
        for name, calls in units.items()
    ]
    return sorted(found, key=lambda kernel: -kernel.share)


def _propose(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The best schedules of one kernel by the model: shapes, or neighbours of the schedule `around`."""
    around = from_data(Schedule | None, data["around"])
    now, known = from_data(dict[str, Schedule], data["schedules"]), from_data(list[Schedule], data["known"])
    found = proposals(_asked(data), data["kernel"], now, around, known, data["count"], data["seed"])
    return Message({"proposals": to_data(found)})


def proposals(
    asked: Asked, kernel: str, now: Schedules, around: Schedule | None, known: list[Schedule], count: int, seed: int
) -> list[Proposal]:
    """At most `count` schedules that lower, none of them with a text that a known one has, the best modelled first;
    what the model cannot tell apart comes in an order that the seed gives. now: of every call of the program."""
    calls = asked.calls_of(kernel)
    ranked = [Proposal(s, asked.modelled_ms(_with(now, calls, s))) for s in _space(asked, calls[0], around)]
    random.Random(seed).shuffle(ranked)
    ranked.sort(key=lambda p: float(f"{p.modelled_ms:.4g}"))
    texts = {_text(asked, _with(now, calls, s)) for s in known}
    found: list[Proposal] = []
    for proposal in ranked:
        if len(found) == count:
            break
        text = _text(asked, _with(now, calls, proposal.schedule))
        if text and text not in texts:
            found.append(proposal)
            texts.add(text)
    return found


def _space(asked: Asked, call: Call, around: Schedule | None) -> tuple[Schedule, ...]:
    assert isinstance(call.unit, Kernel)
    gemm = call.unit.gemm
    if gemm is None:
        return () if around else passes()
    width = ITEMSIZE[ref_dtype(asked.program, asked.signature, call.args[gemm.a])]
    return neighbours(around, asked.on, width) if around else shapes(asked.on, width)


def _with(now: Schedules, calls: list[Call], schedule: Schedule) -> dict[str, Schedule]:
    return {**now, **{call.name: schedule for call in calls}}


def _text(asked: Asked, schedules: Schedules) -> str:
    """The text and launches under these schedules, as one string; "" where there are none."""
    try:
        generated = asked.lowered(schedules)
    except (LoweringError, ScheduleError):
        return ""
    return repr((generated.source, generated.launches))


def _build(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Compiles the launches of one kernel's calls under `schedules`, those of every call."""
    asked, schedules = _asked(data), from_data(dict[str, Schedule], data["schedules"])
    return Message({"built": to_data(built(asked, data["kernel"], schedules))})


def built(asked: Asked, kernel: str, schedules: Schedules) -> Built:
    """The worst of the launches of one kernel's calls; a problem is an answer, not an exception."""
    calls = {call.name for call in asked.calls_of(kernel)}
    try:
        found = _resources(asked.lowered(schedules), calls, asked.on.target)
    except (LoweringError, ScheduleError, toolchain.BuildError) as error:
        return Built(asked.modelled_ms(schedules), problem=(str(error).strip().splitlines() or ["does not build"])[0])
    registers, spills, shared = (
        max((getattr(r, name) for r in found), default=0) for name in ("registers", "spill_bytes", "shared_bytes")
    )
    over = shared > asked.on.shared_bytes
    problem = f"takes {shared:,} bytes of shared memory; a block has {asked.on.shared_bytes:,}" if over else ""
    return Built(asked.modelled_ms(schedules, dict.fromkeys(calls, spills)), registers, spills, shared, problem)


def _resources(generated: Generated, calls: set[str], target: str) -> tuple[Resources, ...]:
    """Of each function once: two calls may share one."""
    wanted = {launch.kernel: launch for launch in reversed(generated.launches) if launch.call in calls}
    return toolchain.build(replace(generated, launches=tuple(wanted.values())), target)


def _hello() -> Mapping[str, Any]:
    import triton

    return {"triton": triton.__version__}


if __name__ == "__main__":
    serve({"describe": _describe, "propose": _propose, "build": _build}, hello=_hello)

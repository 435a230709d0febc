"""The candidate child: runs a candidate's meaning and its generated code, and hands back outputs, never an opinion of
them.

Started twice: with TRITON_INTERPRET=1 it interprets on the CPU, without it launches on the GPU. It makes its own
inputs from the seed, and owns every buffer that a launch touches.
"""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.default_schedules import H200_SHARED
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.hopper_support import hopper_fault
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Program, Signature
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.evaluator import baselines
from coda_synth.evaluator.buffers import fingerprint
from coda_synth.evaluator.channel import Answerable, Message, serve
from coda_synth.evaluator.contest import Contest
from coda_synth.evaluator.execution import Bound, bind, rerun, run_checked
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.inputs import Inputs, exact, make_inputs
from coda_synth.evaluator.measure import measure, shift
from coda_synth.evaluator.parts import parts
from coda_synth.evaluator.places import raised_in
from coda_synth.evaluator.quick_interpreter import quicken
from coda_synth.evaluator.race import Clock, WallClock
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.stepping import run_only, traced
from coda_synth.evaluator.stopwatch import spend, stage
from coda_synth.evaluator.tensors import pack
from coda_synth.evaluator.timing import DeviceClock
from coda_synth.tasks.catalog import task

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
PEERS = baselines.Peers(None if INTERPRETED else "inductor")


@functools.lru_cache(maxsize=8)
def _program(source: str, signature_text: str) -> Program:
    return read(source, from_data(Signature, json.loads(signature_text)))


def _asked(data: Mapping[str, Any]) -> tuple[Program, TaskFacts, Case]:
    program = _program(data["source"], json.dumps(data["facts"]["signature"], sort_keys=True))
    return program, from_data(TaskFacts, data["facts"]), from_data(Case, data["case"])


def _meaning(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The candidate's algebra in float64 on the CPU: what it says, whatever the lowering makes of it."""
    program, facts, case = _asked(data)
    with stage("inputs"):
        inputs = exact(make_inputs(task(facts.name), facts.signature, case))
    with stage("meaning"):
        outputs = evaluate(program, facts.signature, inputs, dtype=torch.float64)
    return _outputs({name: value.double().contiguous() for name, value in outputs.items()}, case, facts)


@functools.lru_cache(maxsize=1)
def _bound(source: str, facts_text: str, case_text: str) -> tuple[Bound, Inputs]:
    """The candidate lowered for a case, its inputs made, everything in place on this child's device. The last one is
    kept, since the shape that was checked is the one that is timed next."""
    facts, case = from_data(TaskFacts, json.loads(facts_text)), from_data(Case, json.loads(case_text))
    with stage("inputs"):
        inputs = make_inputs(task(facts.name), facts.signature, case, DEVICE)
    with stage("lower"):
        generated = _lowered(source, facts_text, case)
    with stage("bind"):
        return bind(generated, inputs, DEVICE), inputs


def _lowered(source: str, facts_text: str, case: Case) -> Generated:
    """For a case; those that differ in inputs alone share the text."""
    alike = replace(case, stage="", seed=0, style="", rows=None)
    return _lowered_alike(source, facts_text, json.dumps(to_data(alike), sort_keys=True))


@functools.lru_cache(maxsize=16)
def _lowered_alike(source: str, facts_text: str, case_text: str) -> Generated:
    facts, case = from_data(TaskFacts, json.loads(facts_text)), from_data(Case, json.loads(case_text))
    return lower(
        _program(source, json.dumps(to_data(facts.signature), sort_keys=True)),
        facts.signature,
        case.sizes,
        form=_form(case),
        schedules=case.schedules,
        processors=case.processors,
        hopper=DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0) and not hopper_fault(),
        shared_bytes=_shared(),
    )


def _form(case: Case) -> str | None:
    """The best that this device can run, where the case leaves it open: before Hopper there is no TMA."""
    if case.form != "auto":
        return case.form
    return "pointer" if DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0) else None


def _shared() -> int:
    """What one block may take on this GPU; the interpreter has no limit."""
    found = getattr(torch.cuda.get_device_properties(0), "shared_memory_per_block_optin", 0) if DEVICE == "cuda" else 0
    return int(found) or H200_SHARED


def _in_place(data: Mapping[str, Any]) -> tuple[Bound, Inputs]:
    return _bound(data["source"], json.dumps(data["facts"], sort_keys=True), json.dumps(data["case"], sort_keys=True))


def _execute(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """One case through the generated code: the outputs, and the faults that the judge's memory shows."""
    bound, inputs = _in_place(data)
    try:
        with stage("run"):
            faults = run_checked(bound)
    except Exception as error:  # told with the call whose code it was
        call = raised_in(bound.generated, str(bound.module.__file__), error)
        _bound.cache_clear()  # whatever is left of it
        raise Answerable(str(error), {"call": call}) from error
    if faults:  # its memory is spoilt
        faults = traced(bind(bound.generated, inputs, DEVICE), faults)
        _bound.cache_clear()
    bits = {name: fingerprint(value) for name, value in bound.outputs().items()}
    answer = _outputs(bound.outputs(), from_data(Case, data["case"]), from_data(TaskFacts, data["facts"]))
    return Message({**answer.data, "faults": to_data(faults), "form": bound.generated.form, "bits": bits}, answer.blobs)


def _steps(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The calls of a case's launches, in order; everything is in place for the first one."""
    bound, _ = _in_place(data)
    return Message({"calls": [launch.call for launch in bound.generated.launches]})


def _step(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """One launch of a case, after those before it."""
    run_only(_in_place(data)[0], data["number"])
    return Message({})


def _launches(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The call and the kernel of each launch of a case, in order, without anything in place."""
    case = from_data(Case, data["case"])
    generated = _lowered(data["source"], json.dumps(data["facts"], sort_keys=True), case)
    return Message({"launches": [(launch.call, launch.kernel) for launch in generated.launches]})


def _launch(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """One run of a case, for whoever watches this process from outside."""
    bound, _ = _in_place(data)
    if not INTERPRETED:
        torch.cuda.empty_cache()  # a profiler that runs a kernel again keeps a copy of all memory that it may write to
    rerun(bound)
    return Message({})


def _outputs(outputs: Mapping[str, torch.Tensor], case: Case, facts: TaskFacts) -> Message:
    if case.rows is not None:
        with_row = {o.name for o in facts.signature.outputs if o.dims and str(o.dims[0]) == facts.row}
        outputs = {name: value[list(case.rows)] for name, value in outputs.items() if name in with_row}
    heads, packed = pack(outputs)
    return Message({"tensors": heads}, packed)


def _peers(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """The baselines' own outputs for a case, for the oracle."""
    facts, case = from_data(TaskFacts, data["facts"]), from_data(Case, data["case"])
    _, inputs = _in_place(data)
    runs, notes = baselines.references(task(facts.name), [inputs], PEERS)
    answers = {name: _outputs(run(), case, facts) for name, (run, *_) in runs.items()}
    heads = {name: answer.data["tensors"] for name, answer in answers.items()}
    return Message(
        {"peers": heads, "notes": notes, "made": PEERS.made}, tuple(b for a in answers.values() for b in a.blobs)
    )


def _measure(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Times a candidate that passed at one shape, beside its baselines, and leaves the GPU's memory free. The outputs
    of the timed runs go to the oracle too: those of every set of inputs but the first, which was checked before."""
    facts, case = from_data(TaskFacts, data["facts"]), from_data(Case, data["case"])
    bound, inputs = _in_place(data)
    if not INTERPRETED:
        torch.cuda.empty_cache()  # what drawing the inputs took; the baselines need it
    found, programs = measure(bound, task(facts.name), facts, case.sizes, inputs, data["seconds"], _clock(), PEERS)
    answers = [_moved_back(p, shift(i, facts, case.sizes), case, facts) for i, p in enumerate(programs)][1:]
    del bound, inputs, programs
    _bound.cache_clear()
    if not INTERPRETED:
        torch.cuda.empty_cache()
    sets = [answer.data["tensors"] for answer in answers]
    return Message(
        {"measured": to_data(found), "sets": sets, "made": PEERS.made}, tuple(b for a in answers for b in a.blobs)
    )


def _parts(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """What a candidate's GEMMs take without their epilogues, and the peaks of this device: for the profile."""
    program, facts, case = _asked(data)
    bound, _ = _in_place(data)
    with stage("parts"):
        found = parts(program, facts.signature, case.sizes, bound, _clock())
    del bound
    _bound.cache_clear()  # what accumulates has gone on
    if not INTERPRETED:
        torch.cuda.empty_cache()
    return Message({"parts": to_data(found)})


_contest = Contest()


def _enter(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """One schedule of the tuner's, bound and run once."""
    _, facts, case = _asked(data)
    made = functools.partial(make_inputs, task(facts.name), facts.signature, case, DEVICE)
    text = _lowered(data["source"], json.dumps(data["facts"], sort_keys=True), case)
    _contest.enter(data["name"], text, made, DEVICE)
    return Message({})


def _race(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    return Message({"samples": to_data(_contest.race(data["names"], data["seconds"], _clock()))})


def _leave(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Ends a contest and gives its memory back."""
    _contest.leave()
    _bound.cache_clear()
    if not INTERPRETED:
        torch.cuda.empty_cache()
    return Message({})


def _clock() -> Clock:
    return WallClock() if INTERPRETED else DeviceClock()


def _moved_back(bound: Bound, shift: int, case: Case, facts: TaskFacts) -> Message:
    """The outputs of a set of inputs whose rows were moved down, in the order that the oracle knows."""
    with_row = {o.name for o in facts.signature.outputs if o.dims and str(o.dims[0]) == facts.row}
    outputs = {n: v.roll(-shift, 0) if n in with_row else v for n, v in bound.outputs().items()}
    return _outputs(outputs, case, facts)


def _compiled(*, times: Any, cache_hit: bool, **rest: Any) -> None:
    """Triton tells of every kernel that it makes, or finds on the disk."""
    spend("load kernels" if cache_hit else "compile", times.total / 1e6)


def hello() -> Mapping[str, Any]:
    torch.set_num_threads(1)  # tiny tensors, or a GPU: threads would only wait for each other and keep others waiting
    if INTERPRETED:
        toolchain.repair_interpreter()
        quicken()
        return {}
    import triton

    triton.knobs.compilation.listener = _compiled
    os.environ.setdefault("TRITON_CACHE_DIR", str(triton.knobs.cache.dir))  # torch.compile would move it elsewhere
    props = torch.cuda.get_device_properties(0)
    return {
        "device": props.name,
        "sms": str(props.multi_processor_count),
        "gpu": str(getattr(props, "uuid", props.name)),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "driver": driver_state("driver_version"),
    }


HANDLERS = {"meaning": _meaning, "execute": _execute, "peers": _peers, "measure": _measure, "parts": _parts}
HANDLERS |= {"steps": _steps, "step": _step, "launches": _launches, "launch": _launch}
HANDLERS |= {"enter": _enter, "race": _race, "leave": _leave}

if __name__ == "__main__":
    serve(HANDLERS, hello=hello)

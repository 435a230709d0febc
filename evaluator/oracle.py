"""The reference child: the only process that runs a task's code. It describes and traces the task, makes the inputs,
computes the oracle in float64 and decides whether a candidate's outputs pass.

Uses the GPU when there is one (full shapes would take minutes on a CPU); never sees a candidate.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator import correctness
from coda_synth.evaluator.channel import Message, serve
from coda_synth.evaluator.correctness import Allowed, Judgement, Oracle
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.evaluator.inputs import exact, make_inputs, of_rows
from coda_synth.evaluator.lint import lint
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.stopwatch import stage
from coda_synth.evaluator.suspects import suspect
from coda_synth.evaluator.tensors import unpack
from coda_synth.evaluator.trace import trace_task
from coda_synth.tasks.catalog import task
from coda_synth.tasks.spec import STYLES, TaskSpec

# The meaning of a program in float64 is allowed this much of the error that a kernel is allowed, this much of an
# element (a scalar enters a kernel in fp32, a frequency as two floats), and this much of the largest one (sums that
# cancel).
MEANING_FACTOR = 2.0**-16
MEANING_RELATIVE = 2.0**-22
MEANING_FLOOR = 1e-13
_AGAIN = 0x2545F491  # in the seed of further random roundings: a generator on a CPU reads 32 bits of it


def facts_of(spec: TaskSpec, dtype: str) -> TaskFacts:
    """The task as data."""
    text_hash = hashlib.sha256(spec.source.encode()).hexdigest()[:16]
    shapes = spec.check_shapes, dict(spec.time_shapes)
    return TaskFacts(signature(spec, dtype), *shapes, spec.gemms, _row_symbol(spec), STYLES, text_hash)


def _row_symbol(spec: TaskSpec) -> str | None:
    activations = [i.dims for i in spec.inputs if i.role == "activation" and i.dims]
    first = activations[0][0]
    inside = {s for i in spec.inputs if i.role == "weight" for d in i.dims for s in Dim.parse(d).all_symbols}
    return first if first not in inside and all(dims[0] == first for dims in activations) else None


def oracle(spec: TaskSpec, dtype: str, case: Case, device: str, seed: int | None = None) -> Oracle:
    """The exact outputs of a case, and the error allowed around them; of the case's rows alone where it names some.
    seed: of the random roundings, the case's own by default."""
    facts = facts_of(spec, dtype)
    with stage("inputs"):
        inputs = make_inputs(spec, facts.signature, case, device)
    if case.rows is not None:
        assert facts.row is not None
        inputs = of_rows(inputs, facts.signature, facts.row, list(case.rows))
    with stage("oracle"):
        spikes = case.style == "adversarial_rows"
        found = correctness.bounds(spec, inputs, getattr(torch, dtype), case.seed if seed is None else seed, spikes)
    if case.rows is None:
        return found
    return Oracle(found.task, {o.name: found.outputs[o.name] for o in spec.outputs if o.dims[:1] == (facts.row,)})


def judged(found: Oracle, wider: Callable[[], Oracle], outputs: Mapping[str, torch.Tensor]) -> Judgement:
    """The verdict: where few elements alone are wrong, that of an oracle after as many runs again."""
    with stage("compare"):
        judgement = correctness.judge_outputs(found, outputs)
        if judgement.passed or not correctness.few_are_wrong(found, outputs):
            return judgement
    return correctness.judge_outputs(wider(), outputs)


def widened(found: Oracle, spec: TaskSpec, dtype: str, case: Case) -> Oracle:
    """What the case's oracle allows after as many random roundings again."""
    return correctness.together(found, oracle(spec, dtype, case, _device(case), case.seed ^ _AGAIN))


def exact_oracle(found: Oracle) -> Oracle:
    """The same for a float64 evaluation of the candidate's algebra: only float64's roundoff is allowed."""
    return Oracle(found.task, {name: _exact(allowed) for name, allowed in found.outputs.items()})


def _exact(allowed: Allowed) -> Allowed:
    size = allowed.exact.abs()
    element = allowed.element * MEANING_FACTOR + size * MEANING_RELATIVE + size.max() * MEANING_FLOOR
    return Allowed(allowed.exact, torch.float64, element, {}, allowed.codes)  # every element counts: no norms


# ---- what the parent may ask -----------------------------------------------------------------------------------------


def _device(case: Case) -> str:
    """The GPU where there is one and the products are worth it: processes that share one wait for each other."""
    worth_it = math.prod(sorted(case.sizes.values())[-3:]) > _SMALL
    return "cuda" if worth_it and torch.cuda.is_available() else "cpu"


_KEPT = 64  # oracles, the newest
_SMALL = 1 << 21  # multiplications of a product that a processor makes as quickly as it asks a GPU for them
_ROOM = 4 << 30  # bytes of the GPU's memory that one child keeps beside its newest oracle: several share it
_oracles: dict[tuple[str, str, str], Oracle] = {}
_widened: dict[tuple[str, str, str], Oracle] = {}  # beside the first ones: no verdict may depend on those before it


def _oracle(name: str, dtype: str, case_text: str) -> Oracle:
    key = name, dtype, case_text
    if key not in _oracles:
        case = from_data(Case, json.loads(case_text))
        _oracles[key] = oracle(task(name), dtype, case, _device(case))
        _make_room(key)
    return _oracles[key]


def _wider(name: str, dtype: str, case_text: str) -> Oracle:
    key = name, dtype, case_text
    if key not in _widened:
        case = from_data(Case, json.loads(case_text))
        _widened[key] = widened(_oracle(*key), task(name), dtype, case)
        _make_room(key)
    return _widened[key]


def _make_room(newest: tuple[str, str, str]) -> None:
    for kept in (_oracles, _widened):
        for old in list(kept)[:-_KEPT]:
            del kept[old]
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > _ROOM:
        _keep_alone(newest)


def _keep_alone(case: tuple[str, str, str]) -> None:
    """Gives back the GPU's memory, but for that of one case's oracles."""
    for kept in (_oracles, _widened):
        for key in [key for key in kept if key != case]:
            del kept[key]
    torch.cuda.empty_cache()


def _inputs_key(case: Case) -> str:
    """Cases that differ in form or schedule alone share one oracle; a device's own draws other inputs (inputs.py)."""
    stage = "device" if case.stage == "device" else ""
    only = Case(stage, case.sizes, case.seed, case.style, "", rows=case.rows)
    return json.dumps(to_data(only), sort_keys=True)


def _describe(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    return Message({"facts": to_data(facts_of(task(data["task"]), data["dtype"]))})


def _trace(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    return Message({"graph": to_data(trace_task(task(data["task"])))})


def _expect(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Computes oracles ahead of the outputs that will be held against them."""
    for case in data["cases"]:
        _oracle(data["task"], data["dtype"], _inputs_key(from_data(Case, case)))
    return Message({})


def _decide(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    case = from_data(Case, data["case"])
    key = data["task"], data["dtype"], _inputs_key(case)
    found = _oracle(*key)
    try:
        outputs = {name: value.to(_device(case)) for name, value in unpack(data["tensors"], blobs).items()}
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        said = f"the outputs that were handed over are no tensors: {error}"
        return Message({"judgement": to_data(Judgement(math.inf, said, (said,)))})
    if case.form != "reference":
        return Message({"judgement": to_data(judged(found, functools.partial(_wider, *key), outputs))})
    with stage("compare"):
        judgement = correctness.judge_outputs(exact_oracle(found), outputs)
    if not judgement.passed:
        judgement = explained(judgement, task(data["task"]), data["dtype"], case, outputs)
    return Message({"judgement": to_data(judgement)})


def explained(
    judgement: Judgement, spec: TaskSpec, dtype: str, case: Case, outputs: Mapping[str, torch.Tensor]
) -> Judgement:
    """With the one fault in the reference that explains the outputs, where there is one."""
    if set(outputs) != {o.name for o in spec.outputs}:
        return judgement
    inputs = exact(make_inputs(spec, facts_of(spec, dtype).signature, case))
    found = suspect(spec, inputs, {name: value.cpu() for name, value in outputs.items()})
    return replace(judgement, findings=(found, *judgement.findings)) if found else judgement


def _lint(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    return Message({"findings": to_data(lint(task(data["task"]), data["dtype"]))})


def _release(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    """Gives the GPU's memory back before somebody measures on it, but for the oracle of one case."""
    _keep_alone((data["task"], data["dtype"], _inputs_key(from_data(Case, data["case"]))))
    return Message({})


def _hello() -> Mapping[str, Any]:
    torch.set_num_threads(1)  # tiny tensors, or a GPU: threads would only wait for each other
    return {"torch": torch.__version__, "cuda": torch.cuda.is_available()}


if __name__ == "__main__":
    serve(
        {
            "describe": _describe,
            "trace": _trace,
            "expect": _expect,
            "decide": _decide,
            "lint": _lint,
            "release": _release,
        },
        hello=_hello,
    )

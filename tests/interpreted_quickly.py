"""Runs checks of some tasks in triton's interpreter as it is, then again quickened, and prints whose bits
differ. A process of its own, started with TRITON_INTERPRET=1. With --rewritten before the tasks, functions of triton
that quicken replaces have another text, as a later release may have."""

from __future__ import annotations

import json
import sys

import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.build import interpreter_cases
from coda_synth.evaluator.execution import bind, rerun
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.quick_interpreter import _REPLACED, quicken
from coda_synth.tasks.catalog import task, worked_candidate

Bits = dict[str, dict[str, int]]


def bits(name: str, found: Bits) -> None:
    """Fingerprints of a task's outputs in three of its checks: both forms, small and shipped tiles."""
    spec, facts = task(name), facts_of(task(name), "bfloat16")
    program = read(worked_candidate(name), facts.signature)
    schedules = lower(program, facts.signature, facts.headline[1]).schedules
    cases = interpreter_cases(program, facts, schedules, 11)
    for case in (*cases[:2], cases[-1]):
        made = {"form": case.form, "schedules": case.schedules, "processors": case.processors}
        generated = lower(program, facts.signature, case.sizes, **made)
        found[f"{name}: {case}"] = rerun(bind(generated, make_inputs(spec, facts.signature, case), "cpu"))


def all_bits(names: list[str]) -> Bits:
    found: Bits = {}
    for name in names:
        bits(name, found)
    return found


def rewrite() -> None:
    """Every other function that quicken replaces does the same by another text."""
    for owner, name, *_ in _REPLACED[::2]:
        stock = getattr(owner, name)
        setattr(owner, name, lambda *given, stock=stock, **named: stock(*given, **named))


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if name != "--rewritten"]
    toolchain.repair_interpreter()
    stock = all_bits(names)
    if len(names) < len(sys.argv[1:]):
        rewrite()
    left = quicken()
    quick = all_bits(names)
    unlike = [name for name in stock if stock[name] != quick[name]]
    print(json.dumps({"unlike": unlike, "checks": len(stock), "left": left}))

"""Runs a worked candidate's generated Triton in the interpreter and prints, as JSON, how close it came in each form.

A process of its own, started with TRITON_INTERPRET=1: triton decides at import whether it interprets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Call, Kernel, walk
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.evaluator.execution import bind, run_checked
from coda_synth.evaluator.quick_interpreter import quicken
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

SMALL = Schedule(block_m=16, block_n=32, block_k=16, stages=1, warps=1, group_m=2)  # several tiles along every dim


def small(call: Call, sizes: Mapping[str, int], split_k: int) -> Schedule:
    """SMALL, or the least that holds whole groups; split_k: of a kernel with a gemm."""
    gemm = isinstance(call.unit, Kernel) and call.unit.gemm
    groups = [g for v in walk(call.unit.outputs) if isinstance(g := v.attrs.get("group"), Dim)]
    block_n = max([SMALL.block_n, *(call.dim(g).size(sizes) for g in groups)])
    return replace(SMALL, block_n=block_n, split_k=split_k if gemm else 1)


def results(name: str) -> dict[str, list[str | float]]:
    """By form and shape: the error ratio, the worst place, and what the run did to memory that is not its own."""
    spec = task(name)
    program = read(worked_candidate(name), signature(spec))
    found: dict[str, list[str | float]] = {}
    for form, shape, split_k in (("pointer", 0, 1), ("descriptor", 1, 1), ("pointer", 4, 2), ("pointer", 2, 4)):
        sizes = spec.check_shapes[shape]
        schedules = {call.name: small(call, sizes, split_k) for call in program.calls if isinstance(call.unit, Kernel)}
        made = spec.make_inputs(sizes, torch.Generator().manual_seed(7), "normal")
        inputs = declared_inputs(spec, made, torch.bfloat16)
        generated = lower(program, signature(spec), sizes, form=form, schedules=schedules, processors=3)
        bound = bind(generated, inputs, "cpu")
        faults = run_checked(bound)
        judged = judge_outputs(bounds(spec, inputs, torch.bfloat16, 7), bound.outputs())
        found[f"{form} {tuple(sizes.values())}"] = [judged.error_ratio, judged.worst, *map(str, faults)]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    toolchain.repair_interpreter()
    quicken()
    print(json.dumps({name: results(name) for name in sys.argv[1:]}))

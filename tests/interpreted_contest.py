"""A contest between two schedules of a program that adds to a buffer, in triton's interpreter; prints what it found as
JSON. A process of its own, started with TRITON_INTERPRET=1."""

from __future__ import annotations

import json

from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.buffers import fingerprint
from coda_synth.evaluator.contest import Contest
from coda_synth.evaluator.execution import rerun
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.quick_interpreter import quicken
from coda_synth.evaluator.race import WallClock
from coda_synth.tasks.catalog import task, worked_candidate


def main() -> dict[str, object]:
    spec = task("linear_backward")
    typed, sizes = facts_of(spec, "bfloat16").signature, min(spec.check_shapes, key=lambda s: sum(s.values()))
    program, case = read(worked_candidate(spec.name), typed), Case("interpreter", sizes, 5, "normal", "pointer")
    made, contest = [], Contest()

    def inputs() -> dict:
        made.append(make_inputs(spec, typed, case))
        return made[-1]

    for width in (32, 64):
        tile = Schedule(block_m=16, block_n=width, block_k=16, stages=2, warps=4)
        schedules = {c.name: tile for c in program.live_calls() if isinstance(c.unit, Kernel)}
        contest.enter(str(width), lower(program, typed, sizes, form="pointer", schedules=schedules), inputs, "cpu")
    first, second = contest.entered.values()
    given = made[0]["dw"]
    once = {name: rerun(bound)["dw"] for name, bound in contest.entered.items()}
    samples = contest.race(["64", "32"], 0.1, WallClock())
    left = fingerprint(first.inputs["dw"].tensor)  # by the last run of the race, which was the narrow one's
    second.restore()
    found = {
        "times inputs were made": len(made),
        "shared": first.inputs is second.inputs,
        "kept": sorted(first.kept),
        "order": list(samples),
        "positive": all(s.median_ms > 0 for s in samples.values()),
        "the last run added once": left == once["32"],
        "and it added": left != fingerprint(given),
        "restored": fingerprint(first.inputs["dw"].tensor) == fingerprint(given),
        "a live buffer is untouched": made[0]["dw"].data_ptr() != first.inputs["dw"].tensor.data_ptr(),
        "the same bits afterwards": once == {name: rerun(bound)["dw"] for name, bound in contest.entered.items()},
    }
    contest.leave()
    return {**found, "empty": contest.entered == {}}


if __name__ == "__main__":
    toolchain.repair_interpreter()
    quicken()
    print(json.dumps(main()))

"""What the judge costs and whether it errs: rejects a second, a warm evaluation, false alarms, escapes.

    python benchmarks/judge.py [EVALUATIONS]
    python benchmarks/judge.py --device cuda

Exits 1 where a figure misses its aim. Escapes are counted by tests/test_red_team.py, which this runs. On a GPU: one
evaluation that checks and times two shapes, in warm children whose baselines are compiled, of a candidate whose kernel
nobody has compiled before; and where its time goes.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.judge import Judge, JudgeError
from coda_synth.tasks.catalog import task_names, worked_candidate

from benchmarks.arguments import count

REJECTS_A_SECOND = 200
WARM_S = 5.0
SHAPES = ("llama3-8b", "llama3-1b")


def main() -> int:
    parser = argparse.ArgumentParser(description="what the judge costs, and whether it errs")
    parser.add_argument("evaluations", nargs="?", type=count, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    try:
        return int(_missed(options.device, options.evaluations))
    except JudgeError as error:
        sys.exit(str(error))


def _missed(device: str, evaluations: int) -> bool:
    """Whether any figure misses its aim."""
    with Judge(device=device) as judge:
        if device == "cuda":
            return _warm_on_device(judge)
        missed = [_rejects(judge), _warm(judge), _false_alarms(judge, evaluations)]
    return any([*missed, _escapes()])


def _rejects(judge: Judge, count: int = 400) -> bool:
    """Bad candidates, each another text, that the language refuses."""
    source = worked_candidate("linear_swiglu")
    judge.evaluate(Candidate("linear_swiglu", source.replace("silu", "sillu")))
    start = time.perf_counter()
    for number in range(count):
        found = judge.evaluate(Candidate("linear_swiglu", source.replace("silu", f"sillu{number}")))
        assert found.verdict is Verdict.REJECTED
    rate = count / (time.perf_counter() - start)
    print(f"read and rejected: {rate:.0f} a second (aim {REJECTS_A_SECOND})")
    return rate < REJECTS_A_SECOND


def _warm(judge: Judge) -> bool:
    """A candidate of one GEMM that passes, in warm children, with its build."""
    source = worked_candidate("linear_bias_gelu")
    seconds = []
    for number in range(4):
        start = time.perf_counter()
        found = judge.evaluate(Candidate("linear_bias_gelu", f"{source}\n# {number}\n"))
        assert found.verdict is Verdict.PASSED, found.diagnostics
        seconds.append(time.perf_counter() - start)
    print(f"one GEMM, warm: {min(seconds[1:]):.2f} s (aim {WARM_S:.0f}); the first, cold: {seconds[0]:.2f} s")
    return min(seconds[1:]) > WARM_S


def _warm_on_device(judge: Judge) -> bool:
    """A candidate of one GEMM, checked and timed at two shapes; each time another kernel of the same speed."""
    source = worked_candidate("linear_bias_gelu")
    seconds = []
    for _ in range(4):
        factor = 1 + random.randrange(1 << 20) * 2.0**-42  # one after rounding
        text = source.replace("gelu(gemm(x, w) + b)", f"gelu(gemm(x, w) + b) * {factor:.13f}")
        start = time.perf_counter()
        found = judge.evaluate(Candidate("linear_bias_gelu", text), shapes=SHAPES)
        seconds.append(time.perf_counter() - start)
        assert found.verdict is Verdict.PASSED and len(found.timings) == len(SHAPES), found.diagnostics
        waited = ", ".join(f"{stage} {s:.2f}" for stage, s in found.seconds.items())
        worked = ", ".join(f"{step} {s:.2f}" for step, s in found.stages.items() if s >= 0.05)
        print(f"{seconds[-1]:.2f} s: {waited}; side by side: {worked}", flush=True)
    print(f"checked and timed at {len(SHAPES)} shapes, warm: {median(seconds[1:]):.2f} s (aim {WARM_S:.0f})", end="; ")
    print(f"the first, cold: {seconds[0]:.2f} s")
    return median(seconds[1:]) > WARM_S


def _false_alarms(judge: Judge, evaluations: int) -> bool:
    """Worked candidates on fresh seeds: everything but PASSED is a false alarm."""
    names, alarms = task_names(), 0
    for number in range(evaluations):
        name = names[number % len(names)]
        found = judge.evaluate(Candidate(name, worked_candidate(name)))
        if found.verdict is not Verdict.PASSED:
            alarms += 1
            print(f"false alarm: {name}, seed {found.seed}: {found.diagnostics[0]}")
    print(f"false alarms: {alarms} in {evaluations} evaluations on fresh seeds")
    return alarms > 0


def _escapes() -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/test_red_team.py"], capture_output=True, text=True
    )
    print(f"red team: {done.stdout.strip().splitlines()[-1]}")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())

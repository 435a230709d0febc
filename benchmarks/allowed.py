"""Every task's worked candidate under the judge's own bound on this GPU, at real widths and 512 tokens.

    python benchmarks/allowed.py [TASK ...] [--shape llama3-8b] [--tokens 512]

Prints, for each task, the kernels' form and the worst error over the allowed one, ours and that of eager PyTorch at the
same precision: at most 1 passes. Exits 1 where one does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.correctness import judge_outputs
from coda_synth.evaluator.execution import bind, run_checked
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.oracle import oracle
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate


def judged(name: str, shape: str, tokens: int, seed: int) -> tuple[str, float, str, float]:
    """The form, our error over the allowed one, where it is worst (or what else is wrong), and eager's ratio."""
    spec, sig = task(name), signature(task(name))
    sizes = {**spec.time_shapes[shape], "T": tokens}
    case = Case("device", sizes, seed, "normal", "auto")
    made = lower(read(worked_candidate(name), sig), sig, sizes, hopper=torch.cuda.get_device_capability() == (9, 0))
    inputs = make_inputs(spec, sig, case, "cuda")
    bound = bind(made, inputs, "cuda")
    faults = run_checked(bound)
    allowed = oracle(spec, sig.dtype, case, "cuda")
    ours = judge_outputs(allowed, bound.outputs())
    with torch.enable_grad():
        eager = judge_outputs(allowed, {n: v.detach().contiguous() for n, v in spec.reference(**inputs).items()})
    return (
        made.form,
        float("inf") if faults else ours.error_ratio,
        faults[0] if faults else ours.worst,
        eager.error_ratio,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="worked candidates under the judge's bound")
    parser.add_argument("tasks", nargs="*", help="all by default")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA device")
    failed = 0
    for name in options.tasks or task_names():
        try:
            form, ratio, worst, eager = judged(name, options.shape, options.tokens, 7)
        except Exception as error:
            form, ratio, worst, eager = "-", float("inf"), f"{type(error).__name__}: {str(error)[-160:]}", float("nan")
        failed += not ratio <= 1.0
        print(f"{name:34s} {form:10s} {ratio:7.3f} eager {eager:7.3f}  {worst if not ratio <= 1 else ''}", flush=True)
        torch.cuda.empty_cache()
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

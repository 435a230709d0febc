"""Every task's worked candidate under the judge's own bound on this GPU, at real widths and 512 tokens.

    python benchmarks/allowed.py [TASK ...] [--shape llama3-8b] [--tokens 512] [--json FILE]
    python benchmarks/allowed.py --device cpu --tiny

Prints, for each task, the kernels' form and the worst error over the allowed one, ours and that of eager PyTorch at the
same precision: at most 1 passes. Exits 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if "cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.evaluator.correctness import judge_outputs
from coda_synth.evaluator.execution import bind, run_checked
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.oracle import oracle
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names

from benchmarks.contest import clock_of, lowered, machine, one_line, tiny_sizes


def judged(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The form, our error over the allowed one, where it is worst (or what else is wrong), and eager's ratio."""
    spec, sig, device = task(name), signature(task(name)), options.device
    sizes = tiny_sizes(spec) if options.tiny else {**spec.time_shapes[options.shape], "T": options.tokens}
    case = Case("device", sizes, seed, "normal", "auto")
    made = lowered(spec, sizes, device, options.tiny)
    inputs = make_inputs(spec, sig, case, device)
    bound = bind(made, inputs, device)
    faults = run_checked(bound)
    allowed = oracle(spec, sig.dtype, case, device)
    ours = judge_outputs(allowed, bound.outputs())
    with torch.enable_grad():
        eager = judge_outputs(allowed, {n: v.detach().contiguous() for n, v in spec.reference(**inputs).items()})
    ratio, worst = (float("inf"), str(faults[0])) if faults else (ours.error_ratio, ours.worst)
    return {"task": name, "form": made.form, "ratio": ratio, "worst": worst, "eager": eager.error_ratio}


def main() -> int:
    options = _options()
    clock_of(options.device)
    print(f"{machine(options.device)}; the worst error over the allowed one")
    rows = []
    for name in options.tasks or (("linear_bias_gelu", "residual_rmsnorm") if options.tiny else task_names()):
        try:
            row = judged(name, options, 7)
        except Exception as error:  # one task must not end the table
            row = {"task": name, "form": "-", "ratio": float("inf"), "worst": one_line(error), "eager": float("nan")}
        rows.append(row)
        said = row["worst"] if not row["ratio"] <= 1 else ""
        print(f"{name:34s} {row['form']:10s} {row['ratio']:7.3f} eager {row['eager']:7.3f}  {said}", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    failed = sum(not row["ratio"] <= 1 for row in rows)
    print(f"{failed} failed")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options.device), "rows": rows}, indent=1) + "\n")
    return int(failed > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="worked candidates under the judge's bound")
    parser.add_argument("tasks", nargs="*", help="all by default")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes; on a CPU always")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.tiny = options.tiny or options.device == "cpu"
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this needs a CUDA device; --device cpu --tiny shows that it runs")
    return options


if __name__ == "__main__":
    sys.exit(main())

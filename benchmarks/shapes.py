"""Every task's worked candidate through the judge at every shape that the task times, check only, on this GPU.

    python benchmarks/shapes.py [TASK ...] [--json FILE]
    python benchmarks/shapes.py --device cpu [TASK ...]

Prints a line for each task: the verdict, the worst error over the allowed one on small shapes and at each real one, and
seconds. At most 1 passes. A real shape is held against the float64 reference at a secret sample of its rows, and whole
where it mixes rows (docs/evaluation.md). Without a GPU the judge stops at the interpreter. Exits 1 unless all passed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict
from coda_synth.evaluator.judge import Judge, JudgeError
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from benchmarks.arguments import output, task_name


def judged(judge: Judge, name: str) -> dict[str, Any]:
    """The verdict, and the worst error over the allowed one by shape: "small" is everything but the task's own."""
    start = time.perf_counter()
    shapes = task(name).time_shapes
    found = judge.evaluate(Candidate(name, worked_candidate(name)), measure=False, shapes=tuple(shapes))
    worst = {label: _worst(found, sizes) for label, sizes in shapes.items()}
    rest = [
        c.error_ratio for c in found.checks if c.stage == "device" and dict(c.sizes) not in map(dict, shapes.values())
    ]
    said = "" if found.verdict is Verdict.PASSED else str(found.diagnostics[0])
    return {
        "task": name,
        "verdict": str(found.verdict),
        "seed": found.seed,
        "small": max(rest, default=None),
        **worst,
        "said": said,
        "checks": len(found.checks),
        "seconds": round(time.perf_counter() - start, 2),
        "device": found.environment.get("device", "cpu"),
    }


def _judged_or_why_not(judge: Judge, name: str) -> dict[str, Any]:
    """One task must not end the table."""
    try:
        return judged(judge, name)
    except JudgeError as error:
        return {"task": name, "verdict": "not judged", "said": str(error), "checks": 0, "seconds": 0.0}


def _worst(found: Evaluation, sizes: Any) -> float | None:
    """None where the shape was not reached."""
    return max(
        (c.error_ratio for c in found.checks if c.stage == "device" and dict(c.sizes) == dict(sizes)), default=None
    )


def main() -> int:
    options = _options()
    labels = list(dict.fromkeys(label for name in task_names() for label in task(name).time_shapes))
    columns = ["small", *labels]
    print(_line("task", "verdict", columns, "s"))
    rows = []
    with Judge(device=options.device) as judge:
        for name in options.tasks or task_names():
            rows.append(row := _judged_or_why_not(judge, name))
            cells = ["-" if row.get(c) is None else f"{row[c]:.3f}" for c in columns]
            seconds = f"{row['seconds']:.1f}"
            print(_line(name, row["verdict"], cells, seconds), *row["said"].splitlines()[:1], flush=True)
    failed = [row["task"] for row in rows if row["verdict"] != str(Verdict.PASSED)]
    print(f"{len(rows) - len(failed)} of {len(rows)} passed, {sum(row['checks'] for row in rows)} checks")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return int(bool(failed))


def _line(name: str, verdict: str, cells: list[str], seconds: str) -> str:
    return f"{name:34s} {verdict:14s}" + "".join(f"{cell:>11s}" for cell in cells) + f"{seconds:>7s}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="worked candidates through the judge at their real shapes")
    parser.add_argument("tasks", nargs="*", type=task_name, help="all by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=output)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

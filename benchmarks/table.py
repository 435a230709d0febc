"""The table of all tasks in markdown, from what h200.py and shapes.py wrote: errors and times beside each other.

    python benchmarks/table.py H200.json [MORE.json ...] [--judged SHAPES.json ...]

Of a task and shape that several files hold the last one counts. Needs no device and no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gap import over

HEAD = ("task", "shape", "correct", "error over allowed", "error over eager's", "ms") + (
    "bare GEMMs",
    "eager",
    "torch.compile",
    "max-autotune",
    "share of the gap",
)
_TIMES = ("bare_gemm", "eager", "compile", "max_autotune")


def table(timed: Sequence[Mapping[str, Any]], judged: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Markdown lines. timed: rows of h200.py; judged: rows of shapes.py by task."""
    latest = {(row["task"], row["shape"]): row for row in timed}
    ruled = [HEAD, ["---"] * len(HEAD), *(cells(row, judged.get(row["task"])) for row in latest.values())]
    return [f"| {' | '.join(row)} |" for row in ruled]


def cells(row: Mapping[str, Any], judged: Mapping[str, Any] | None) -> list[str]:
    ratio = judged.get(row["shape"]) if judged else None
    correct = "not judged" if judged is None else "yes" if judged["verdict"] == "PASSED" else "NO"
    share = row.get("share")
    return [
        row["task"],
        row["shape"],
        correct,
        "-" if ratio is None else f"{ratio:.2f}",
        f"{over(row['error'], row['eager_error']):.2f}",
        f"{row['ms']:.3f}",
        *(f"{row[peer]:.3f}" if row.get(peer) else "-" for peer in _TIMES),
        f"{share['value']:.2f} [{share['low']:.2f}, {share['high']:.2f}]" if share else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="the table of all tasks, in markdown")
    parser.add_argument("timed", nargs="+", type=Path, help="what h200.py --json wrote")
    parser.add_argument("--judged", nargs="+", default=(), type=Path, help="what shapes.py --json wrote")
    options = parser.parse_args()
    timed = [row for path in options.timed for row in json.loads(path.read_text())["rows"]]
    judged = [row for path in options.judged for row in json.loads(path.read_text())["rows"]]
    print("\n".join(table(timed, {row["task"]: row for row in judged})))


if __name__ == "__main__":
    main()

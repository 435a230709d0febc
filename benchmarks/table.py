"""The table of all tasks in markdown, from what h200.py and shapes.py wrote: errors and times beside each other.

    python benchmarks/table.py H200.json [MORE.json ...] [--judged SHAPES.json ...]

Of a task and shape that several files hold the last one counts; laps that last have rows of their own. Needs no
device and no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.arguments import read_by
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
    latest = {(row["task"], _timed_at(row)): row for row in timed}
    ruled = [HEAD, ["---"] * len(HEAD), *(cells(row, judged.get(row["task"])) for row in latest.values())]
    return [f"| {' | '.join(row)} |" for row in ruled]


def cells(row: Mapping[str, Any], judged: Mapping[str, Any] | None) -> list[str]:
    ratio = judged.get(row["shape"]) if judged else None
    correct = "not judged" if judged is None else "yes" if judged["verdict"] == "PASSED" else "NO"
    share = row.get("share")
    return [
        row["task"],
        _timed_at(row),
        correct,
        "-" if ratio is None else f"{ratio:.2f}",
        f"{over(row['error'], row['eager_error']):.2f}",
        f"{row['ms']:.3f}",
        *(f"{row[peer]:.3f}" if row.get(peer) else "-" for peer in _TIMES),
        f"{share['value']:.2f} [{share['low']:.2f}, {share['high']:.2f}]" if share else "-",
    ]


def _timed_at(row: Mapping[str, Any]) -> str:
    """The shape, and whether in laps that last: h200.py --lasting."""
    return f"{row['shape']}, lasting" if row.get("lasting") else str(row["shape"])


def _rows(author: str, *needed: str) -> Callable[[str], list[Mapping[str, Any]]]:
    """A file with rows that a benchmark wrote, each with what is needed of it."""

    def read(path: Path) -> list[Mapping[str, Any]]:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [{**row, **{key: row[key] for key in needed}} for row in rows]

    return read_by(read, f"what {author} --json wrote")


def main() -> None:
    timed = _rows("h200.py", "task", "shape", "error", "eager_error", "ms")
    judged = _rows("shapes.py", "task", "verdict")
    parser = argparse.ArgumentParser(description="the table of all tasks, in markdown")
    parser.add_argument("timed", nargs="+", type=timed, help="what h200.py --json wrote")
    parser.add_argument("--judged", nargs="+", default=(), type=judged, help="what shapes.py --json wrote")
    options = parser.parse_args()
    verdicts = {row["task"]: row for rows in options.judged for row in rows}
    print("\n".join(table([row for rows in options.timed for row in rows], verdicts)))


if __name__ == "__main__":
    main()

"""The rounds of runs: a table of verdicts and measured times, and the curve of time over bound, from the record.

    python benchmarks/rounds.py RUNS [--json FILE] [--svg FILE]

RUNS is a folder of runs. A round is one program of the author's; a cell has its time in ms at the headline shape, the
bare GEMMs, timed beside it, over it, and it over the bound; or why there is no time. Needs no device and no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.agent.budget import by_tuner
from coda_synth.runs.record import Attempt
from coda_synth.runs.store import Store, StoreError

from benchmarks.arguments import output

Round = Mapping[str, Any]
_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 380, 60, 30
_COLOURS = ("#0b5cad", "#b06a00", "#2c7a2f", "#8250df", "#cf222e", "#57606a", "#1b7c83")


def rounds(attempts: Sequence[Attempt]) -> list[Round]:
    """The author's programs in order: a verdict, and figures where it was measured."""
    return [_round(a) for a in attempts if a.evaluation is not None and not by_tuner(a)]


def _round(attempt: Attempt) -> Round:
    assert attempt.evaluation is not None
    found: dict[str, Any] = {"step": attempt.step, "verdict": str(attempt.evaluation.verdict)}
    if not attempt.evaluation.timings:
        return found
    timing = attempt.evaluation.timings[0]
    over = {name: timing.ratio(name) for name in ("bare_gemm", "compile")}
    return {**found, "ms": timing.median_ms, "over_bound": timing.median_ms / timing.bound_ms, **over}


def table(runs: Mapping[str, Sequence[Round]]) -> list[str]:
    """Markdown lines, a row for each task."""
    most = max(map(len, runs.values()), default=0)
    rows = [["task", *map(str, range(1, most + 1)), "torch.compile over the best"], ["---"] * (most + 2)]
    for task, own in runs.items():
        timed = [r for r in own if "ms" in r]
        best = min(timed, key=lambda r: float(r["ms"]), default=None)
        peer = f"{best['compile']:.3f}" if best and best["compile"] else "-"
        rows.append([task, *map(_cell, own), *[""] * (most - len(own)), peer])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(one: Round) -> str:
    if "ms" not in one:
        return str(one["verdict"]).lower().replace("_", " ")
    bare = f"{one['bare_gemm']:.3f}, " if one["bare_gemm"] else ""
    return f"{one['ms']:.3f} ({bare}{one['over_bound']:.2f})"


def picture(runs: Mapping[str, Sequence[Round]]) -> str:
    """The curves as SVG; a round without a time is a gap."""
    points = {task: [(i, r["over_bound"]) for i, r in enumerate(own, 1) if "ms" in r] for task, own in runs.items()}
    last = max((len(own) for own in runs.values()), default=1)
    top = max((y for own in points.values() for _, y in own), default=2.0)
    right, bottom = _WIDTH - 190, _HEIGHT - 40

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - 1) / max(1, last - 1)
        return _LEFT + across * (right - _LEFT), bottom - (y - 1) / (top - 1) * (bottom - _TOP)

    lines = [_text(_LEFT, 16, "time over bound, by round")]
    for y in [1 + 0.2 * n for n in range(int((top - 1) / 0.2) + 1)]:
        lines.append(_line(place(1, y), place(last, y), "#d0d7de") + _text(_LEFT - 34, place(1, y)[1] + 4, f"{y:.1f}"))
    lines += [_text(place(x, 1)[0] - 4, bottom + 20, str(x)) for x in range(1, last + 1)]
    for number, (task, own) in enumerate(points.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        lines += [_line(place(*a), place(*b), colour) for a, b in pairwise(own) if b[0] == a[0] + 1]
        lines += [_point(place(*point), colour) for point in own]
        lines.append(_text(right + 24, _TOP + 22 * number + 12, task, colour))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        "\n".join(
            [
                head + ' font-family="sans-serif" font-size="13">',
                f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
                *lines,
                "</svg>",
            ]
        )
        + "\n"
    )


def _line(a: tuple[float, float], b: tuple[float, float], colour: str) -> str:
    return f'<path d="M{a[0]:.1f} {a[1]:.1f} L{b[0]:.1f} {b[1]:.1f}" stroke="{colour}" stroke-width="1.6"/>'


def _point(at: tuple[float, float], colour: str) -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.5" fill="{colour}"/>'


def _text(x: float, y: float, words: str, colour: str = "#1f2328") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{words}</text>'


def _folder(text: str) -> Path:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="the rounds of runs, from their record")
    parser.add_argument("runs", type=_folder, help="a folder of runs")
    parser.add_argument("--json", type=output)
    parser.add_argument("--svg", type=output)
    options = parser.parse_args()
    store = Store(options.runs)
    try:
        records = [store.read(name) for name in sorted(store.ids())]
    except StoreError as error:
        sys.exit(str(error))
    found = {record.run.task: rounds(record.attempts) for record in records}
    print("\n".join(table(found)))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(picture(found))


if __name__ == "__main__":
    main()

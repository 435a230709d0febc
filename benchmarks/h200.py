"""Operators against bare cuBLAS, eager PyTorch, torch.compile, Liger and QuACK on one GPU, interleaved in one process.

    python benchmarks/h200.py [TASK ...] [--shape llama3-8b] [--seconds 4] [--lasting] [--no-autotune] [--json FILE]
    python benchmarks/h200.py --device cpu --tiny

For every task: the worked candidate with the schedules that the lowering chooses; its error against the reference in
float64 (worst row, relative norm), and that over eager's own; its time; and every peer's time over it, so that above 1
we are faster. A peer's outputs are checked before it is timed; a wrong one is left out, loudly. bound: the larger of
the bare GEMMs and of the least bytes at the bandwidth that a large copy reaches here, over our time. share: of the gap
between torch.compile max-autotune and the bound, how much is closed. Nothing here judges: `coda-synth evaluate` does.

A contestant runs in short bursts, each run behind a flush of L2; --lasting: for a tenth of a second at a time, without
one, as a model that trains would have it.

--tiny: a task's smallest multi-tile shape and the clock on the wall, to see on a CPU that all of it runs; such times
mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import check_shape, duration, on_cpu, output, task_name

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.tasks.catalog import task, task_names

from benchmarks import gap
from benchmarks.contest import Contest, Failed, clock_of, compile_ahead, machine, ready
from benchmarks.peers import found

PEERS = ("bare_gemm", "eager", "compile", "max_autotune", "liger", "quack")
HEADS = ("bare", "eager", "compile", "autotune", "liger", "quack")


def row_of(contest: Contest, options: argparse.Namespace) -> dict[str, Any]:
    """One task at one shape, timed; every round is kept, so that any figure can be had again from the JSON."""
    rounds = contest.rounds(options.seconds, options.lasting)
    ours, least = gap.figure(rounds["ours"]), gap.bound(_bare(rounds), contest.bytes_ms)
    closed = gap.share(rounds["max_autotune"], rounds["ours"], least) if "max_autotune" in rounds else None
    return {
        "task": contest.spec.name,
        "shape": "tiny" if options.tiny else options.shape,
        "lasting": options.lasting and options.seconds > 0,
        "direction": "backward" if contest.spec.name.endswith("backward") else "forward",
        **contest.facts(),
        "ms": ours.value,
        "interval_ms": [ours.low, ours.high],
        "bound": gap.ratio(least, rounds["ours"]).value,
        **{peer: gap.ratio(rounds[peer], rounds["ours"]).value for peer in PEERS if peer in rounds},
        "share": asdict(closed) if closed else None,
        "rounds": rounds,
    }


def _bare(rounds: Mapping[str, list[float]]) -> list[float]:
    """Nothing in each round, where a task has no GEMM."""
    return rounds.get("bare_gemm") or [0.0] * len(rounds["ours"])


def _without(contest: Contest) -> list[str]:
    return [f"{peer} does without {', '.join(outputs)}" for peer, outputs in contest.without.items()]


def line(row: Mapping[str, Any]) -> str:
    ratios = "".join(f"{row[p]:9.3f}" if row.get(p) else "        -" for p in PEERS)
    against = gap.over(row["error"], row["eager_error"])
    closed = row["share"]
    said = f"{closed['value']:7.2f} [{closed['low']:.2f}, {closed['high']:.2f}]" if closed else "      -"
    return f"{row['task']:34s}{row['error']:9.1e}{against:8.2f}{row['ms']:9.3f}{ratios}{row['bound']:8.3f}{said}"


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Geometric means over each peer, and the share of the gap closed, forward and backward."""
    said = []
    for peer in PEERS:
        if times := [row[peer] for row in rows if row.get(peer)]:
            said.append(f"geometric mean over {peer}: {gap.geometric_mean(times):.3f} of {len(times)}")
    return said + [text for direction in ("forward", "backward") for text in _closed(rows, direction)]


def _closed(rows: Sequence[Mapping[str, Any]], direction: str) -> list[str]:
    own = [row for row in rows if row["direction"] == direction]
    if not own:
        return []
    if not (counted := [row for row in own if row["share"]]):
        return [f"{direction}: no operator's gap to max-autotune was measured and above {gap.LEAST_GAP:.0%}"]
    shares = [gap.Figure(**row["share"]) for row in counted]
    whole = gap.mean(shares)
    faster = gap.geometric_mean(row["max_autotune"] for row in counted)
    behind = [row["task"] for row, share in zip(counted, shares, strict=True) if share.negative]
    return [
        f"{direction}: {whole.value:.2f} [{whole.low:.2f}, {whole.high:.2f}] of the gap to max-autotune is closed, the"
        f" mean of {len(counted)} operators of {len(own)}, whose gap exceeds {gap.LEAST_GAP:.0%} of the bound;"
        f" {faster:.3f}x over max-autotune",
        f"{direction}: negative beyond its interval: {', '.join(behind) or 'none'}",
    ]


def main() -> int:
    options = _options()
    device, versions = options.device, found()
    clock = clock_of(device)
    timed = f"{clock.name}; each run as many as take a tenth of a second" if options.lasting else clock.name
    print(f"{machine(device)}, {'tiny' if options.tiny else options.shape}, times of peers over ours; {timed}")
    print(f"peers: {', '.join(f'{name} {version}' for name, version in versions.items())}")
    heads = "".join(f"{head:>9s}" for head in HEADS)
    print(f"{'task':34s}{'error':>9s}{'/eager':>8s}{'ms':>9s}{heads}{'bound':>8s}  share")
    rows, missing = [], []
    if device == "cuda":
        compile_ahead([task(name) for name in options.tasks], options.shape)
    for name in options.tasks:
        try:
            contest = ready(task(name), options, versions, clock)
            rows.append(row_of(contest, options))
            print("\n    ".join([line(rows[-1]), *contest.left_out, *_without(contest)]), flush=True)
        except Failed as error:
            missing.append({"task": name, "why": str(error)})
            print(f"{name:34s} failed: {error}", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
        if options.json:  # after each task, so that an end in between loses nothing
            head = {"machine": machine(device), "peers": versions}
            options.json.write_text(json.dumps({**head, "rows": rows, "failed": missing}, indent=1) + "\n")
    print("\n".join(summaries(rows)))
    return int(bool(missing))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="operators against their peers on one GPU")
    parser.add_argument("tasks", nargs="*", type=task_name, help="all by default")
    parser.add_argument("--shape", default="llama3-8b")
    parser.add_argument("--seconds", type=duration, help="of racing for each task")
    parser.add_argument("--lasting", action="store_true", help="a tenth of a second of each at a time, not bursts")
    parser.add_argument("--no-autotune", dest="autotune", action="store_false", help="spare max-autotune's compiling")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes; on a CPU always")
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    options.tiny = options.tiny or options.device == "cpu"
    options.seconds = options.seconds if options.seconds is not None else 0.0 if options.tiny else 4.0
    options.tasks = options.tasks or (("linear_swiglu", "rope_backward") if options.tiny else task_names())
    if not options.tiny:
        check_shape(parser, options.tasks, options.shape)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; --device cpu --tiny shows that it runs")
    return options


if __name__ == "__main__":
    sys.exit(main())

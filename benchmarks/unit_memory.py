"""What a Llama layer keeps for its backward, bytes a token: computed, and on a GPU measured.

    python benchmarks/unit_memory.py

Computed: the unit without attention, by our pair of programs and by eager autograd of the same reference, as hooks on
saved tensors count it. Measured: layer.py's whole layers, attention's share among it: what stays allocated after a
forward whose backward is still to come, its outputs included, and the most that the forward took.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.evaluator.saved import kept_by_autograd, kept_by_program
from coda_synth.tasks.catalog import task

from benchmarks.layer import SHAPES, Ours, Shape, drawn, eager_layer


def computed(name: str, shape: Shape) -> list[str]:
    ahead, back = task("llama_unit_forward"), task("llama_unit_backward")
    ours = kept_by_program(ahead, back, shape.sizes, torch.bfloat16)
    eager = sum(size for _, size in kept_by_autograd(ahead, shape.sizes, torch.bfloat16).values())
    total = sum(ours.values())
    words = ", ".join(f"{tensor} {size / shape.tokens:,.0f}" for tensor, size in ours.items())
    return [
        f"{name}: ours keeps {total / shape.tokens:,.0f} bytes a token ({words})",
        f"{name}: eager {eager / shape.tokens:,.0f}, {eager / total:.2f} times as much",
    ]


def measured(name: str, shape: Shape) -> list[str]:
    weights, given = drawn(shape, "cuda")
    ours, eager = Ours(weights, shape, "cuda", tiny=False), eager_layer(shape, "cuda")
    x, qkv = given.x.detach(), ours.packed(given.q.detach(), given.k.detach(), given.v.detach())
    leaves = (given.q, given.k, given.v, given.x, *weights.tensors())
    said = []
    for author, run in (("ours", lambda: ours.kept(qkv, x)), ("eager", lambda: eager(*leaves))):
        stays, peak = (count / shape.tokens for count in allocated(run))
        said.append(f"{name}: {author}, measured: {stays:,.0f} bytes a token stay after a forward, at most {peak:,.0f}")
    return said


def allocated(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes on the GPU beyond what lay there before: while the result is held, and at the peak. Runs it twice: what a
    first run compiles or sets aside for good does not count."""
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = run()
    torch.cuda.synchronize()
    stays, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    del held
    return stays, peak


def main() -> None:
    argparse.ArgumentParser(description="what a Llama layer keeps for its backward").parse_args()
    for name, shape in SHAPES.items():
        print("\n".join(computed(name, shape)))
        if torch.cuda.is_available():
            print("\n".join(measured(name, shape)))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

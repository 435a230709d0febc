"""What a Llama unit keeps for its backward, bytes a token: our pair of programs, eager autograd counted and, on a GPU,
measured. Run: python benchmarks/unit_memory.py"""

from __future__ import annotations

import torch
from coda_synth.evaluator.saved import allocated_by_autograd, kept_by_autograd, kept_by_program
from coda_synth.tasks.catalog import task

BF16 = torch.bfloat16


def main() -> None:
    forward, backward = task("llama_unit_forward"), task("llama_unit_backward")
    for label, sizes in forward.time_shapes.items():
        ours = kept_by_program(forward, backward, sizes, BF16)
        eager = kept_by_autograd(forward, sizes, BF16)
        total, counted = sum(ours.values()), sum(size for _, size in eager.values())
        words = ", ".join(f"{name} {size / sizes['T']:,.0f}" for name, size in ours.items())
        print(f"{label}: ours {total / sizes['T']:,.0f} bytes a token ({words})")
        print(f"{label}: eager {counted / sizes['T']:,.0f}, {counted / total:.2f} times as much")
        if torch.cuda.is_available():
            held = allocated_by_autograd(forward, sizes, BF16)
            print(f"{label}: eager, measured as allocated: {held / sizes['T']:,.0f}")


if __name__ == "__main__":
    main()

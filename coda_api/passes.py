"""Passes: kernels without a product, which wait for memory alone. How they reach it, and which way they go.

A cache of tens of MB still holds what the launch before touched last. A pass that begins there, and ends where the next
one begins, spares the memory that much: of x in a norm over 8,192 tokens of 4,096, nearly everything. So neighbours
that share a matrix go opposite ways. A product goes from its first row to its last.
"""

from __future__ import annotations

from coda_synth.coda_api.program import Call, Form, Kernel, Program, Ref, TypeKind


def is_pass(call: Call) -> bool:
    return isinstance(call.unit, Kernel) and call.unit.gemm is None


def walks_backwards(program: Program, call: Call) -> bool:
    """Whether a kernel goes through its matrices from the end: no product, and a pass so that it goes the other way
    than the next kernel, if they share a matrix; or else than a product before it."""
    if not is_pass(call):
        return False
    kernels = [c for c in program.live_calls() if isinstance(c.unit, Kernel)]
    at = kernels.index(call)
    if at + 1 < len(kernels) and _matrices(call) & _matrices(kernels[at + 1]):
        return not walks_backwards(program, kernels[at + 1])
    return at > 0 and not is_pass(kernels[at - 1]) and bool(_matrices(call) & _matrices(kernels[at - 1]))


def _matrices(call: Call) -> set[Ref]:
    """What a call reads and writes that has rows and columns."""
    read = {call.args[p.name] for p in call.unit.params if p.type.kind is TypeKind.TENSOR and len(p.type.dims) == 2}
    made = {Ref(call=call.name, output=o) for o, v in call.unit.outputs.items() if v.form is Form.TILE}
    return read | made

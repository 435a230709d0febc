"""How much work an epilogue is: the instructions that a thread issues for each element of the product, estimated from
the words of a kernel. benchmarks/epilogue.py counts them in builds, which takes seconds; a default schedule has no time
for that. The estimate is good to a few instructions, which is what the choice of a mainloop needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Form, Kernel, Value, walk
from coda_synth.coda_api.words import LOOKUP, Place

_READ, _STORED = 2, 1  # a tile's element from shared memory, made fp32; one rounded and staged
_DOWN, _ACROSS = 8, 2  # sums of columns go through the lanes of a warp and its neighbours; those of rows wait
CHAINED = frozenset({"tile_logsumexp", "pick"})  # running values of rows that each depend on the one before
_RENAMED = frozenset("accumulate gemm even odd low high join interleave part spread cycle".split())  # nothing computed


def instructions(kernel: Kernel, live: Mapping[str, Value], size: Callable[[Dim], int]) -> float:
    """live: the outputs that are used. size: of one of the kernel's dims."""
    product = size(kernel.rows) * size(kernel.cols)
    stored = sum(_elements(v, size) for v in live.values() if v.form is Form.TILE)
    added_to = {id(v.args[0]) for v in live.values() if v.word == "accumulate"}  # in memory, which no thread reads
    computed = sum(_cost(v) * _elements(v, size) for v in walk(live) if id(v) not in added_to)
    return (computed + _STORED * stored) / product


def _elements(value: Value, size: Callable[[Dim], int]) -> int:
    """Of a tile over all of the product, or what a partial reduces; what is no tile costs a tile nothing."""
    whole = value.args[0] if value.form is Form.PARTIAL else value
    return size(whole.rows) * size(whole.cols) if whole.rows and whole.cols else 0


def _cost(value: Value) -> int:
    if value.form is Form.PARTIAL:
        return _DOWN if value.attrs.get("axis", 1) == 0 else _ACROSS
    if value.word in _RENAMED:
        return 0
    if value.word == "param":
        return _READ
    word = LOOKUP.get((Place.KERNEL, value.word))
    return word.cost[0] if word and word.cost else 1

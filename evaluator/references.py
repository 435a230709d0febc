"""The reference children: each case has one that draws its oracle and decides on it. Several share the work of a
candidate where there are cores enough, since an oracle is many small steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from coda_synth.evaluator.child import Child
from coda_synth.evaluator.compilers import cores
from coda_synth.evaluator.facts import Case

_MOST, _CORES_EACH = 5, 3
_LARGE = 1 << 27  # elements of a matrix, of which an oracle takes a hundred bytes each while it is drawn


class References:
    """One for every three cores, five at most. first: the one that is asked about a task."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = list(children)

    @classmethod
    def made(cls, make: Callable[[], Child]) -> References:
        """As many as the cores of this machine allow."""
        return cls([make() for _ in range(max(1, min(_MOST, cores() // _CORES_EACH)))])

    def shared(self, parts: int) -> list[References]:
        """Among so many who ask at the same time, or fewer where there are not enough; the last has most."""
        count = len(self._children)
        parts = min(parts, count)
        return [References(self._children[count * i // parts : count * (i + 1) // parts]) for i in range(parts)]

    @property
    def first(self) -> Child:
        return self._children[0]

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def of(self, case: Case) -> Child:
        """Cases of one seed, which may share an oracle, have the same."""
        return self._children[case.seed % len(self._children)]

    def coming(self, case: Case, following: Sequence[Case]) -> Iterator[Case]:
        """Of the cases that follow one, those whose oracle can be drawn while that one is decided on: their child is
        another, and has nothing to do. Large oracles are drawn one at a time: the GPU holds no two of them."""
        for other in following[: len(self._children) - 1]:
            if large(other):
                return
            if self.of(other) is not self.of(case) and not self.of(other).busy:
                yield other


def large(case: Case) -> bool:
    """Whether its largest matrix may be so."""
    return math.prod(sorted(case.sizes.values())[-2:]) > _LARGE

"""Compile workers, one for each core: what a candidate launches on the GPU is in triton's cache before it is asked for.

A candidate's checks on a GPU take a dozen kernels and more, which one process would compile one after the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised

_MOST = 12  # workers
_SECONDS = 180.0


class Compilers:
    """Warm children, started when first needed. Nothing depends on what becomes of them: what they did not compile, the
    GPU's child will."""

    def __init__(self, make: Callable[[], Child]) -> None:
        self._make = make
        self._children: list[Child] = []
        self._busy: list[Child] = []

    def start(self, asked: Mapping[str, Any]) -> None:
        """Begins to compile what the cases in `asked` launch, equal kernels once, when what was begun before is done.
        Ends when `wait` does."""
        self.wait()
        with contextlib.suppress(ChildFailure, ChildRaised):
            kernels = self._worker(0).request("kernels", _SECONDS, asked).data["kernels"]
            count = min(cores(), _MOST, len(kernels))
            workers = [self._worker(i) for i in range(count)]
            for i, child in enumerate(workers):
                child.post("compile", _SECONDS, {**asked, "kernels": kernels[i::count]})
                self._busy.append(child)

    def wait(self) -> None:
        """Until everything that was begun is compiled."""
        while self._busy:
            with contextlib.suppress(ChildFailure, ChildRaised):
                self._busy.pop().collect(_SECONDS)

    def close(self) -> None:
        """Ends every worker; harmless twice."""
        for child in self._children:
            child.close()
        self._children, self._busy = [], []

    def _worker(self, number: int) -> Child:
        while len(self._children) <= number:
            self._children.append(self._make())
            self._children[-1].start()
        return self._children[number]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

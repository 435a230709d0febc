"""Compile workers, one for each core: what a candidate launches on the GPU is in triton's cache before it is asked for.

A candidate's checks on a GPU take a dozen kernels and more, which one process would compile one after the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, JudgeError

_MOST = 12  # workers
_SECONDS = 180.0


class Compilers:
    """Warm children, started when first needed. Nothing depends on what becomes of them: what they did not compile, the
    GPU's child will."""

    def __init__(self, make: Callable[[], Child]) -> None:
        self._make = make
        self._children: list[Child] = []
        self._begun: threading.Thread | None = None

    def start(self, asked: Mapping[str, Any]) -> None:
        """Begins to compile what the cases in `asked` launch, equal kernels once, when what was begun before is done.
        Ends when `wait` does."""
        self.wait()
        self._begun = threading.Thread(target=self._compile, args=(asked,), daemon=True)
        self._begun.start()

    def _compile(self, asked: Mapping[str, Any]) -> None:
        ended = OSError, ValueError  # a worker that `close` ended meanwhile
        with contextlib.suppress(ChildFailure, ChildRaised, JudgeError, *ended):
            kernels = self._worker(0).request("kernels", _SECONDS, asked).data["kernels"]
            count = min(cores(), _MOST, len(kernels))
            workers = [self._worker(i) for i in range(count)]
            for i, child in enumerate(workers):
                child.post("compile", _SECONDS, {**asked, "kernels": kernels[i::count]})
            for child in workers:
                with contextlib.suppress(ChildFailure, ChildRaised, *ended):
                    child.collect(_SECONDS)

    def wait(self) -> None:
        """Until everything that was begun is compiled."""
        if self._begun:
            self._begun.join()
            self._begun = None

    def close(self) -> None:
        """Ends every worker, whatever it is at; harmless twice."""
        while self._children:  # whoever waits for one of them starts no more than one other
            for child in self._children:
                child.close()
            self._children = []
            self.wait()

    def _worker(self, number: int) -> Child:
        while len(self._children) <= number:
            self._children.append(self._make())
            self._children[-1].start()
        return self._children[number]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

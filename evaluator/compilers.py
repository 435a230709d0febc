"""Compile workers, one for each core: what a candidate launches on the GPU is in triton's cache before it is asked for.

A candidate's checks on a GPU take a dozen kernels and more, which one process would compile one after the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from coda_synth.evaluator.aside import Aside, Ended
from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, JudgeError

_MOST = 12  # workers
_SECONDS = 90.0
_FAILED = (ChildFailure, ChildRaised, JudgeError, OSError, ValueError)  # the last two where `close` ended it meanwhile


class Compilers:
    """Warm children, started when first needed. Nothing depends on what becomes of them: what they did not compile, the
    GPU's child will."""

    def __init__(self, make: Callable[[], Child]) -> None:
        self._make = make
        self._children: list[Child] = []
        self._begun: Aside | None = None
        self._compiled: set[str] = set()  # hashes

    def start(self, asked: Mapping[str, Any]) -> None:
        """Begins to compile what the cases in `asked` launch, equal kernels once; ends what nobody has waited for."""
        self._end()
        self._begun = Aside(lambda ended: self._compile(asked, ended), lambda: list(self._children))

    def wait(self, given_up: Ended | None = None) -> None:
        """Until what was begun is compiled or nobody wants it any more, for two limits of a worker's at most."""
        if self._begun:
            self._begun.wait(given_up)

    def close(self) -> None:
        """Ends every worker, whatever it is at; harmless twice."""
        self._end()
        for child in self._children:
            child.close()
        self._children = []

    def _end(self) -> None:
        """Kills the workers of what is still going on; the next one starts them again."""
        if self._begun:
            self._begun.end()
        self._begun = None

    def _compile(self, asked: Mapping[str, Any], ended: Ended) -> None:
        """A thread for each worker, which keeps that one's limits. What was compiled before is in the cache."""
        with contextlib.suppress(*_FAILED):
            kernels: dict[str, list[int]] = self._worker(0).request("kernels", _SECONDS, asked).data["kernels"]
            new = [name for name in kernels if name not in self._compiled]
            count = min(cores(), _MOST, len(new))
            parts = [(self._worker(i), asked, {name: kernels[name] for name in new[i::count]}) for i in range(count)]
            threads = [threading.Thread(target=self._work, args=(*part, ended), daemon=True) for part in parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _work(self, child: Child, asked: Mapping[str, Any], kernels: Mapping[str, list[int]], ended: Ended) -> None:
        if not ended.is_set():
            with contextlib.suppress(*_FAILED):
                child.request("compile", _SECONDS, {**asked, "kernels": list(kernels.values())})
                self._compiled |= kernels.keys()

    def _worker(self, number: int) -> Child:
        while len(self._children) <= number:
            self._children.append(self._make())
        return self._children[number]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

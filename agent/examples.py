"""Which worked programs a task's author is shown: the longest, none of which holds a kernel of the task's own."""

from __future__ import annotations

import functools

from coda_synth.coda_api.canonical import kernel_forms
from coda_synth.coda_api.reader import read
from coda_synth.prompts.build import EXAMPLES
from coda_synth.tasks.catalog import worked_candidate, worked_names


@functools.cache
def examples(name: str) -> dict[str, str]:
    """By the name of their task. Kernels are compared by their arithmetic, however they are spelt."""
    own = _forms(name) if name in worked_names() else frozenset()
    others = sorted((n for n in worked_names() if n != name), key=lambda n: (-len(worked_candidate(n)), n))
    found: dict[str, str] = {}
    for other in others:
        if len(found) < EXAMPLES and not own & _forms(other):
            found[other] = worked_candidate(other)
    return found


@functools.cache
def _forms(name: str) -> frozenset[str]:
    return kernel_forms(read(worked_candidate(name)))

"""Where a child's time goes: seconds by named step, kept until the answer that carries them. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_STEPS = 100  # of which an answer may tell the time

_spent: dict[str, float] = {}
_inner: list[float] = [0.0]  # seconds of steps inside each step that is open


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Adds the time that passes inside to `name`; what a step inside takes counts as that one's alone."""
    start = time.perf_counter()
    _inner.append(0.0)
    try:
        yield
    finally:
        whole = time.perf_counter() - start
        _add(name, whole - _inner.pop())
        _inner[-1] += whole


def spend(name: str, seconds: float) -> None:
    """What somebody else saw pass inside the step that is open, and that is `name`'s alone."""
    _add(name, seconds)
    _inner[-1] += seconds


def _add(name: str, seconds: float) -> None:
    _spent[name] = _spent.get(name, 0.0) + seconds


def told(said: Any) -> Mapping[str, float]:
    """What an answer says of its time, which nothing depends on; nonsense is nothing."""
    if not isinstance(said, dict) or len(said) > _STEPS:
        return {}
    return {
        str(step)[:40]: float(spent) for step, spent in said.items() if type(spent) in (int, float) and 0 <= spent < 1e6
    }


def drained() -> dict[str, float]:
    """What was spent since the last time somebody asked."""
    found = dict(_spent)
    _spent.clear()
    _inner[:] = [0.0]
    return found

"""Kernels that are compiled ahead of a device's checks are what the device's child would compile: it finds them."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator import compilers
from coda_synth.evaluator.child import Child
from coda_synth.evaluator.compilers import Compilers
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.serial import to_data
from coda_synth.tasks.catalog import task, worked_candidate

ROOT = Path(__file__).resolve().parent.parent
SMALL = {"T": 128, "D": 256, "F": 256}
ODD = {"T": 33, "D": 41, "F": 55}


def asked(name: str, *sizes: Mapping[str, int]) -> dict[str, Any]:
    facts = facts_of(task(name), "bfloat16")
    cases = [Case("device", s, 1, "normal", "auto", {}, 132) for s in sizes]
    head = {"source": worked_candidate(name), "facts": to_data(facts), "schedules": {}}
    return {**head, "device": "H200", "cases": to_data(cases)}


def worker() -> Child:
    return Child("coda_synth.evaluator.build", environment={"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"})


def test_equal_kernels_are_compiled_once() -> None:
    child = worker()
    try:
        question = asked("linear_bias_gelu", SMALL, {**SMALL, "T": 256}, ODD)
        found = child.request("kernels", 60, question).data["kernels"]
        assert list(found.values()) == [[0, 0], [2, 0]]
    finally:
        child.close()


def test_what_was_compiled_ahead_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ahead = Compilers(worker)
    try:
        ahead.start(asked("linear_bias_gelu", SMALL))
        ahead.wait()
    finally:
        ahead.close()
    hits: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, cache_hit, **rest: hits.append(cache_hit))
    facts = facts_of(task("linear_bias_gelu"), "bfloat16")
    program = read(worked_candidate("linear_bias_gelu"), facts.signature)
    made = lower(program, facts.signature, SMALL, processors=132, hopper=True, shared_bytes=232448)
    toolchain.build(made)
    assert made.form == "hopper" and hits == [True]


def test_a_worker_that_dies_is_nobodys_fault() -> None:
    ahead = Compilers(functools.partial(Child, "coda_synth.evaluator.build", environment={"TRITON_INTERPRET": "0"}))
    ahead.start(asked("linear_bias_gelu", SMALL))
    while not ahead._children or ahead._children[0].pid is None:
        time.sleep(0.01)
    os.kill(ahead._children[0].pid, signal.SIGKILL)
    ahead.wait()
    ahead.close()
    assert not ahead._children


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Compilers, list[Child]]]:
    """Workers that sleep, four of them, and all that were ever made."""
    monkeypatch.setattr(compilers, "cores", lambda: 4)
    monkeypatch.setattr(compilers, "_SECONDS", 2.0)
    made: list[Child] = []

    def make() -> Child:
        made.append(Child("tests.slow_compiler", environment={"PYTHONPATH": str(ROOT)}))
        return made[-1]

    found = Compilers(make)
    yield found, made
    found.close()
    assert not any(child.pid for child in made)


def test_workers_that_hang_share_one_limit(slow: tuple[Compilers, list[Child]]) -> None:
    ahead, made = slow
    ahead.start({"seconds": 60})
    start = time.monotonic()
    ahead.wait()
    assert time.monotonic() - start < 5 and len(made) == 4


def test_who_begins_anew_waits_for_nothing_old(slow: tuple[Compilers, list[Child]]) -> None:
    ahead, made = slow
    ahead.start({"seconds": 60})
    start = time.monotonic()
    ahead.start({"seconds": 0})
    ahead.wait()
    assert time.monotonic() - start < 1.9 and len(made) == 4
    assert all(child.pid and not child.busy for child in made)


def test_what_was_compiled_is_not_asked_for_again(slow: tuple[Compilers, list[Child]]) -> None:
    ahead, _ = slow
    took = []
    for _ in range(2):
        start = time.monotonic()
        ahead.start({"seconds": 1.0})
        ahead.wait()
        took.append(time.monotonic() - start)
    assert took[0] >= 1.0 > took[1]


def test_a_worker_that_fails_leaves_the_others_watched(slow: tuple[Compilers, list[Child]]) -> None:
    ahead, made = slow
    ahead.start({"seconds": 0.5, "dies": True})
    ahead.wait()
    assert not any(child.busy for child in made)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_an_end_waits_for_no_compilation(delay: float, slow: tuple[Compilers, list[Child]]) -> None:
    ahead, made = slow
    ahead.start({"seconds": 60})
    time.sleep(delay)
    start = time.monotonic()
    ahead.close()
    ahead.close()
    assert time.monotonic() - start < 1.5 and not any(child.pid for child in made)
    assert not ahead._children and ahead._begun is None

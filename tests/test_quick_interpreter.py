"""The quickened interpreter gives the bits of triton's own; what it saves, benchmarks/soak.py shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from coda_synth.tasks.catalog import task_names

ROOT = Path(__file__).resolve().parent.parent
FEW = ["linear_swiglu", "linear_rope"]  # the slow run has every task


def compared(names: list[str]) -> dict:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(ROOT / "tests" / "interpreted_quickly.py"), *names]
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_same_bits():
    found = compared(FEW)
    assert found["unlike"] == [] and found["checks"] == 3 * len(FEW)
    assert found["left"] == []  # this release of triton is known


def test_what_another_release_has_written_anew_is_left_as_it_is():
    found = compared(["--rewritten", FEW[0]])
    assert found["unlike"] == [] and found["checks"] == 3
    left = [name.rpartition("interpreter.")[2] for name in found["left"]]
    assert left[:2] == ["_patch_lang", "block_type.__init__"]
    assert left[2:] == ["TritonSemantic.broadcast_impl_value", "TritonSemantic.binary_op_sanitize_overflow_impl"]


@pytest.mark.slow
def test_the_same_bits_for_every_task():
    found = compared(list(task_names()))
    assert found["unlike"] == [] and found["checks"] == 3 * len(task_names())

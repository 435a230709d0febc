"""A thousand evaluations in a row: nothing leaks, and each is quick. The benchmark is the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def soaked(count: int, device: str) -> str:
    program = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), str(count), device]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout


@pytest.mark.slow
def test_a_thousand_evaluations_leak_nothing() -> None:
    assert "1000 evaluations" in soaked(1000, "cpu")


@pytest.mark.gpu
@pytest.mark.slow
def test_two_hundred_evaluations_on_a_gpu_leak_nothing() -> None:
    assert "200 evaluations" in soaked(200, "cuda")

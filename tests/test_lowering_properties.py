"""Runs the drawn programs of interpreted_properties in a process in which triton interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_drawn_programs_in_the_interpreter(which: str) -> None:
    file = Path(__file__).with_name("interpreted_properties.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(file)]
    done = subprocess.run(command, env=environment, cwd=file.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

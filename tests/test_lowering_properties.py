"""Runs generated text in a process in which triton interprets: drawn programs, and some that once went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def interpreted(name: str, which: str) -> None:
    file = Path(__file__).with_name(name)
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(file)]
    done = subprocess.run(command, env=environment, cwd=file.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_drawn_programs(which: str) -> None:
    interpreted("interpreted_properties.py", which)


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_programs_that_once_went_wrong(which: str) -> None:
    interpreted("interpreted_cases.py", which)


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_groups_that_are_no_power_of_two(which: str) -> None:
    interpreted("interpreted_groups.py", which)

"""mypy --strict over the package in its installed shape: type checkers do not know that the folders lie apart."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: pip install '.[dev]'")
def test_types_are_sound() -> None:
    """No errors in any folder."""
    shape = ROOT / "build" / "types" / "coda_synth"
    shape.mkdir(parents=True, exist_ok=True)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values()
    for source in (*(ROOT / "coda_synth").glob("*.py"), ROOT / "coda_synth" / "py.typed", *map(ROOT.joinpath, folders)):
        if not (shape / source.name).is_symlink():
            (shape / source.name).symlink_to(source)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "coda_synth"]
    cache = ["--cache-dir", str(ROOT / "build" / "types" / "cache")]
    done = subprocess.run([*command, *cache], cwd=shape.parent, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if re.match(r"\S+:\d+: error:", line)]
    assert errors or "Success" in done.stdout, done.stdout + done.stderr
    assert not errors, "\n".join(errors)

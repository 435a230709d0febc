"""Degenerate tasks are found, with the evidence; the catalogue's tasks are sound."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from coda_synth.evaluator.lint import lint
from coda_synth.tasks.catalog import task, task_names

from tests.bad_tasks import BAD
from tests.representative import REPRESENTATIVE
from tests.test_cli import environ

torch.set_num_threads(1)


@pytest.mark.parametrize("what", BAD)
def test_a_degenerate_task_is_found(what: str) -> None:
    spec, rule, words = BAD[what]
    found = lint(spec, spec.dtypes[0])
    assert any(f.rule == rule and words in f.message for f in found), found


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_our_tasks_are_sound(name: str) -> None:
    assert lint(task(name)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in task_names() if n not in REPRESENTATIVE])
def test_every_other_task_is_sound(name: str) -> None:
    assert all(lint(task(name), dtype) == () for dtype in task(name).dtypes)


def test_the_command(tmp_path) -> None:
    command = [sys.executable, "-m", "coda_synth", "lint", "linear_residual", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"task": "linear_residual", "dtype": "bfloat16", "findings": []}]

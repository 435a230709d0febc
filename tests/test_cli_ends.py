"""How the real command ends where it cannot go on: one message or one JSON document, and the right code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT = {k: v for k, v in os.environ.items() if not k.startswith("CODA_SYNTH_")}
ENVIRON = {**KEPT, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}


def cli(*args: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coda_synth", *args]
    return subprocess.run(command, cwd=cwd, env={**ENVIRON, **more}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "args",
    [
        ("synthesise",),
        ("synth", "--attempts", "many"),
        ("evaluate",),
        ("export", "latest"),
        ("synth", "linear_swiglu", "--provider", "openai-compatible", "--model", "m"),
        ("synth", "linear_swiglu", "--provider", "openai-compatible", "--base-url", "http://127.0.0.1:9/v1"),
        ("synth", "linear_swiglu", "--provider", "openai-compatible", "--base-url", "localhost", "--model", "m"),
        ("synth", "linear_swiglu", "--provider", "scripted", "--replies", "empty"),
    ],
)
def test_wrong_usage_is_one_line_and_with_json_one_document(args: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli(*args, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == said["exit"] == 2
    assert done.stderr == f"coda-synth: {said['error']}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]  # no run is left behind


def test_a_reader_that_goes_away_is_no_noise(tmp_path: Path) -> None:
    for args in (("tasks",), ("tasks", "--json")):
        command = [sys.executable, "-m", "coda_synth", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=tmp_path, env=ENVIRON, text=True, **pipes) as running:
            assert running.stdout is not None and running.stderr is not None
            running.stdout.close()
            assert running.stderr.read() == ""
        assert running.returncode == 141


@pytest.mark.parametrize("delay", [0.1, 2.0])
def test_a_burst_of_ctrl_c_ends_it_once(delay: float, tmp_path: Path) -> None:
    """While it loads, and while it works."""
    file = str(ROOT / "tasks" / "linear_swiglu.coda")
    command = [sys.executable, "-m", "coda_synth", "evaluate", file, "--task", "linear_swiglu", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRON, text=True, **pipes) as running:
        time.sleep(delay)
        for _ in range(3):
            running.send_signal(signal.SIGINT)
            time.sleep(0.02)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130 and err == "coda-synth: interrupted\n"
    assert json.loads(out or '{"exit": 130}')["exit"] == 130  # before our own code is loaded nobody knows of --json


def test_doctor_where_the_record_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = cli("doctor", "--runs", "taken/runs", "--json", cwd=tmp_path)
    found = {f["name"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 3 and found["record"]["state"] == "missing" and "--runs" in found["record"]["text"]


def test_evaluate_says_where_a_repair_goes(tmp_path: Path) -> None:
    good = (ROOT / "tasks" / "linear_residual.coda").read_text(encoding="utf-8")
    (tmp_path / "other.coda").write_text(good.replace("def linear_residual(", "def other("))
    said = cli("evaluate", "other.coda", "--task", "linear_residual", cwd=tmp_path).stdout
    line = good.splitlines().index(next(x for x in good.splitlines() if x.startswith("def linear_residual("))) + 1
    assert f"other.coda:{line}:1: error ProgramName" in said
    assert f"repair: at {line}:1 write 'def linear_residual(' in place of 'def other('" in said

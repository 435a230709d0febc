"""How the real command ends where it cannot go on: one message or one JSON document, and the right code."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from coda_synth.agent import config
from coda_synth.agent.cli_evaluate import candidate_text
from coda_synth.agent.scripted import _replies

ROOT = Path(__file__).resolve().parent.parent
# CI: in CI no progress is shown, and here it is what is looked at
KEPT = {k: v for k, v in os.environ.items() if not k.startswith("CODA_SYNTH_") and k != "CI"}
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


def test_a_record_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("gone")
    words = "runs is a link to gone, and nothing is there: make that folder, remove the link, or choose another folder"
    done = cli("synth", "linear_residual", "--provider", "exchange", "--no-wait", cwd=tmp_path)
    assert done.returncode == 3 and done.stderr == f"coda-synth: {words} with --runs\n"
    done = cli("doctor", "--json", cwd=tmp_path)
    found = {f["name"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 3 and found["record"]["text"] == f"{words} with --runs"


def test_counters_that_cannot_be_had_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "bad.coda").write_text("def nothing(): ...\n")
    no = "coda-synth: note: no hardware counters: they need a GPU that measures, and"
    evaluate = ("evaluate", "bad.coda", "--task", "linear_residual")
    bench = ("bench", "--tasks", "linear_residual", "--authors", "exchange", "--repeats", "2", "--no-wait")
    for command in (evaluate, bench):
        said = cli(*command, "--counters", "--json", cwd=tmp_path)
        assert said.stderr == f"{no} torch sees none here\n" and json.loads(said.stdout)
    assert (
        cli(*evaluate, "--counters", "--device", "cpu", cwd=tmp_path).stderr
        == f"{no} none measures here, as was asked\n"
    )
    assert cli(*evaluate, cwd=tmp_path).stderr == ""


def test_evaluate_says_where_a_repair_goes(tmp_path: Path) -> None:
    good = (ROOT / "tasks" / "linear_residual.coda").read_text(encoding="utf-8")
    (tmp_path / "other.coda").write_text(good.replace("def linear_residual(", "def other("))
    said = cli("evaluate", "other.coda", "--task", "linear_residual", cwd=tmp_path).stdout
    line = good.splitlines().index(next(x for x in good.splitlines() if x.startswith("def linear_residual("))) + 1
    assert f"other.coda:{line}:1: error ProgramName" in said
    assert f"repair: at {line}:1 write 'def linear_residual(' in place of 'def other('" in said


def test_a_leaderboard_of_no_folder_says_so(tmp_path: Path) -> None:
    done = cli("leaderboard", "--runs", "elsewhere", "--json", cwd=tmp_path)
    assert done.returncode == 2 and "there is no folder elsewhere" in json.loads(done.stdout)["error"]
    (tmp_path / "elsewhere").mkdir()
    done = cli("leaderboard", "--runs", "elsewhere", cwd=tmp_path)
    assert done.returncode == 0 and "No candidate has passed yet" in done.stdout


# -- runs


class Nowhere(BaseHTTPRequestHandler):
    """A server on which nothing is found."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_several_tasks_end_with_a_summary_and_the_worst_of_their_codes(tmp_path: Path) -> None:
    """One that passes, and one where the planner's rules end: which is said of the planner, with who could go on."""
    asked = ("synth", "linear_residual", "swiglu_backward", "--attempts", "1", "--device", "cpu")
    done = cli(*asked, cwd=tmp_path, COLUMNS="120")
    assert done.returncode == 1, done.stderr
    summary = done.stdout.partition("1 of 2 passed")[2]
    assert "linear_residual   passed" in summary and "swiglu_backward   none passed" in summary
    assert "attempts used" in summary and "the author is stuck" in summary and "modelled" in summary
    assert "the planner has no rule for aten.silu_backward" in done.stdout
    assert "coda_synth synth swiglu_backward --provider exchange" in done.stdout.partition("Next:")[2]
    left_out = tmp_path / "runs" / "20260101-000000-linear_swiglu-ffff"
    left_out.mkdir()
    assert f"note: runs/{left_out.name} is left out" in cli("leaderboard", cwd=tmp_path).stdout


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    """No GPU; a server whose every path is 404, and whose address is doubted then."""
    done = cli("synth", "linear_residual", "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 3 and "CUDA" in done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), Nowhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = ("--base-url", f"http://127.0.0.1:{server.server_port}", "--model", "m", "--allow-unpriced")
        done = cli("synth", "linear_residual", "--provider", "openai-compatible", *where, cwd=tmp_path)
        server.shutdown()
    assert done.returncode == 3 and "is http://127.0.0.1" in done.stderr and "/v1" in done.stderr, done.stderr
    assert list(tmp_path.glob("runs/*")) == []


def test_a_waiting_run_says_where_the_reply_belongs_and_how_to_go_on(tmp_path: Path) -> None:
    assert cli("resume", "--waiting", cwd=tmp_path).stdout == "no run waits for a reply\n"
    done = cli("synth", "linear_residual", "--provider", "exchange", "--no-wait", cwd=tmp_path)
    (run,) = tmp_path.glob("runs/2*")
    for said in (done.stdout, done.stderr):
        assert f"the prompt is runs/{run.name}/steps/001/prompt.md; put the reply into" in said
    for text in (done.stdout, cli("show", cwd=tmp_path).stdout):
        assert "candidate" not in text.partition("Ended:")[0]  # no table of nothing
        assert text.partition("Next:\n")[2].splitlines()[0] == f"  python -m coda_synth resume {run.name}"


def test_a_variable_that_is_no_setting_is_warned_about(tmp_path: Path) -> None:
    done = cli("leaderboard", cwd=tmp_path, CODA_SYNTH_ATEMPTS="3", CODA_SYNTH_API_KEY="k")
    assert done.stderr == "coda-synth: warning: CODA_SYNTH_ATEMPTS is no setting; did you mean CODA_SYNTH_ATTEMPTS?\n"
    assert "did you mean linear_swiglu" in cli("prompt", "LINEAR-SWIGLU", cwd=tmp_path).stderr


def test_a_resumed_run_keeps_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but where the record lies; and what is said now is stronger."""
    monkeypatch.chdir(tmp_path)
    kept = {"device": "cpu", "wait": "False", "attempts": "3", "runs": "elsewhere", "seed": "5"}
    found = config.stored(kept, argparse.Namespace(attempts=9))
    assert (found.device, found.wait, found.attempts, found.runs, found.seed) == ("cpu", False, 9, "runs", 5)


def test_a_folder_where_nothing_can_be_compiled_is_no_verdict(tmp_path: Path) -> None:
    """Triton's cache cannot be made below a file, whoever asks for it."""
    (tmp_path / "taken").write_text("")
    unusable = {"TRITON_CACHE_DIR": str(tmp_path / "taken" / "cache")}
    worked = ROOT / "tasks" / "linear_residual.coda"
    common = ("linear_residual", "--device", "cpu", "--json")
    done = cli("evaluate", str(worked), "--task", *common, cwd=tmp_path, **unusable)
    assert done.returncode == 3 and "this machine cannot build kernels: [Errno 20]" in json.loads(done.stdout)["error"]
    done = cli("synth", *common, "--provider", "planner", "--attempts", "1", cwd=tmp_path, **unusable)
    assert done.returncode == 3 and "this machine cannot build kernels" in done.stderr
    assert not any("BUILD_ERROR" in record.read_text() for record in tmp_path.rglob("*.json*"))
    done = cli("tune", str(worked), "--task", *common, "--fresh", cwd=tmp_path, **unusable)
    assert done.returncode == 3 and "this machine cannot build kernels" in done.stderr
    done = cli("doctor", "--json", cwd=tmp_path, **unusable)
    found = {f["name"]: f for f in json.loads(done.stdout)}["hopper kernels"]
    assert done.returncode == 3 and found["state"] == "missing" and "this machine cannot build any" in found["text"]


def test_a_byte_order_mark_is_none_of_the_candidate(tmp_path: Path) -> None:
    good = (ROOT / "tasks" / "linear_residual.coda").read_bytes()
    for name, text in (("plain.coda", good), ("marked.coda", b"\xef\xbb\xbf" + good)):
        (tmp_path / name).write_bytes(text)
    assert candidate_text(str(tmp_path / "marked.coda")) == candidate_text(str(tmp_path / "plain.coda"))
    replies = [_replies(tmp_path / name) for name in ("plain.coda", "marked.coda")]
    assert replies[0] == replies[1]

"""The real command in processes of its own: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINEAR_SWIGLU = ROOT / "tasks" / "linear_swiglu.coda"
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def environ(**more: str) -> dict[str, str]:
    """This process's environment without keys and settings, so that a test sees only what it sets."""
    kept = {
        k: v for k, v in os.environ.items() if k not in (*KEYS, "COLUMNS", "CI") and not k.startswith("CODA_SYNTH_")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


def cli(*args: str, cwd: Path, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coda_synth", *args]
    return subprocess.run(
        command, cwd=cwd, env=environ(**more), input=text, capture_output=True, text=True, check=False
    )


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One clear line on stderr, the right exit code, and no traceback."""
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


GOOD = LINEAR_SWIGLU.read_text(encoding="utf-8")
BAD = GOOD.replace("gemm", "gem")


def scripted(folder: Path, *programs: str) -> tuple[str, ...]:
    """Options for an author that replays these programs."""
    replies = folder / "replies.md"
    texts = (f"A candidate.\n\n```python\n{program}\n```\n" for program in programs)
    replies.write_text("\n=== reply\n".join(texts), encoding="utf-8")
    return "--provider", "scripted", "--replies", str(replies)


# -- start-up


def test_help_is_fast_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom coda_synth.agent.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'numpy', 'anthropic', 'openai', 'tenacity', 'rich'}\n"
        "sys.exit(repr(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else 0)"
    )
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ(), capture_output=True, text=True)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert "synth" in done.stdout and "exit codes" in done.stdout
    assert min(times) < 0.3


@pytest.mark.parametrize("command", ["synth", "resume", "bench", "prompt", "show", "diff", "lessons", "export"])
def test_every_command_has_help_and_json(command: str, tmp_path: Path) -> None:
    done = cli(command, "--help", cwd=tmp_path)
    assert done.returncode == 0 and "--json" in done.stdout


def test_no_command_prints_the_help(tmp_path: Path) -> None:
    done = cli(cwd=tmp_path)
    assert done.returncode == 0 and "usage: coda-synth" in done.stdout


# -- bad input: one message, the right code, nothing heavy done before it


def test_an_unknown_command_is_usage(tmp_path: Path) -> None:
    done = cli("synthesise", cwd=tmp_path)
    assert done.returncode == 2 and "invalid choice" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("synth",), ("prompt",), ("evaluate", str(LINEAR_SWIGLU), "--task")])
def test_an_unknown_task_names_the_nearest(command: tuple[str, ...], tmp_path: Path) -> None:
    refused(cli(*command, "linear_swigl", cwd=tmp_path), 2, "linear_swigl", "linear_swiglu")
    assert list(tmp_path.iterdir()) == []


def test_synth_wants_a_task(tmp_path: Path) -> None:
    refused(cli("synth", cwd=tmp_path), 2, "--all", "linear_swiglu")
    refused(cli("synth", "--all", "linear_rope", cwd=tmp_path), 2, "--all")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"\xff\xfe\x00x", "UTF-8"),
        (b"x" * (1 << 20) + b"x", "larger"),
    ],
)
def test_a_file_that_holds_no_candidate(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "candidate.coda"
    if content is not None:
        path.write_bytes(content)
    refused(cli("evaluate", str(path), "--task", "linear_swiglu", cwd=tmp_path), 2, "candidate.coda", words)


def test_a_folder_is_no_candidate(tmp_path: Path) -> None:
    refused(cli("evaluate", str(tmp_path), "--task", "linear_swiglu", cwd=tmp_path), 2, "Is a directory")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--attempts", "0"), "attempts = 0"),
        (("--minutes", "-1"), "minutes"),
        (("--target", "sm_9000"), "sm_9000"),
        (("--provider", "scripted"), "--replies"),
        (("--provider", "scripted", "--replies", "nowhere.md"), "nowhere.md"),
        (("--provider", "openai-compatible", "--model", "m"), "--base-url"),
    ],
)
def test_settings_that_cannot_work(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    refused(cli("synth", "linear_swiglu", *args, cwd=tmp_path), 2, words)


def test_errors_are_json_too(tmp_path: Path) -> None:
    done = cli("prompt", "nothing_like_it", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == said["exit"] == 2 and "nothing_like_it" in said["error"]


@pytest.mark.parametrize(("provider", "key"), [("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")])
def test_a_provider_without_its_key_says_which(provider: str, key: str, tmp_path: Path) -> None:
    done = cli("synth", "linear_swiglu", "--provider", provider, "--model", "some-model", cwd=tmp_path)
    refused(done, 3, key)


def test_an_unwritable_run_folder(tmp_path: Path) -> None:
    """A file where the folder should be: nobody can write there, not even root."""
    (tmp_path / "taken").write_text("")
    where = str(tmp_path / "taken" / "runs")
    done = cli("synth", "linear_swiglu", *scripted(tmp_path, GOOD), "--runs", where, cwd=tmp_path)
    refused(done, 3, where, "--runs")


def test_cuda_where_there_is_none(tmp_path: Path) -> None:
    done = cli(
        "evaluate",
        str(LINEAR_SWIGLU),
        "--task",
        "linear_swiglu",
        "--device",
        "cuda",
        cwd=tmp_path,
        CUDA_VISIBLE_DEVICES="",
    )
    refused(done, 3, "CUDA")


@pytest.mark.parametrize("command", ["show", "export"])
def test_an_unknown_run(command: str, tmp_path: Path) -> None:
    more = ("--out", str(tmp_path / "out")) if command == "export" else ()
    refused(cli(command, "20260101-nothing", *more, cwd=tmp_path), 2, "20260101-nothing")


# -- settings


def test_a_file_weaker_than_the_environment_weaker_than_a_flag(tmp_path: Path) -> None:
    (tmp_path / "coda-synth.toml").write_text("attempts = 0\nminutes = -3.0\n")
    refused(cli("synth", "linear_swiglu", cwd=tmp_path), 2, "attempts = 0")
    refused(cli("synth", "linear_swiglu", cwd=tmp_path, CODA_SYNTH_ATTEMPTS="2"), 2, "minutes = -3.0")
    refused(
        cli("synth", "linear_swiglu", "--minutes", "-4", cwd=tmp_path, CODA_SYNTH_ATTEMPTS="2"), 2, "minutes = -4.0"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("atempts = 3\n", "did you mean attempts"),
        ("attempts = \n", "cannot be read"),
        ('attempts = "many"\n', "number"),
    ],
)
def test_a_wrong_file_of_settings(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "coda-synth.toml").write_text(content)
    refused(cli("leaderboard", cwd=tmp_path), 2, "coda-synth.toml", words)


def test_settings_in_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.coda-synth]\ndevice = "tpu"\n')
    refused(cli("synth", "linear_swiglu", cwd=tmp_path), 2, "tpu", "auto")


# -- from a task to a package


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One scripted run: a program that the language refuses, then one that passes."""
    folder = tmp_path_factory.mktemp("synth")
    options = (*scripted(folder, BAD, GOOD), "--device", "cpu", "--seed", "7")
    return folder, cli("synth", "linear_swiglu", *options, cwd=folder)


def test_synth_says_what_happened_and_what_is_best(run_folder: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run_folder
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "linear_swiglu, step 1: REJECTED, -"
    assert "step 2: PASSED" in done.stderr and done.stderr.count("\n") == 2
    for words in ("REJECTED", "did you mean", "PASSED", "modelled", "Best:", "Why:", "Next:", "coda_synth export"):
        assert words in done.stdout
    path = next(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("Where:"))
    assert (folder / path).read_text(encoding="utf-8").strip() == GOOD.strip()


def test_show_and_leaderboard_read_the_record(run_folder: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = run_folder
    shown = cli("show", cwd=folder)
    assert shown.returncode == 0 and "REJECTED" in shown.stdout and "Best:" in shown.stdout
    data = json.loads(cli("show", "latest", "--json", cwd=folder).stdout)
    assert [a["evaluation"]["verdict"] for a in data["attempts"]] == ["REJECTED", "PASSED"]
    board = json.loads(cli("leaderboard", "--json", cwd=folder).stdout)
    best = data["attempts"][1]["evaluation"]["candidate"]
    assert board["measured"] == [] and board["modelled"][0]["candidate"] == best
    text = cli("leaderboard", "--task", "linear_swiglu", cwd=folder).stdout
    assert "not measurements" in text and best in text


def test_one_attempt_in_full(run_folder: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = run_folder
    shown = cli("show", "--attempt", "1", cwd=folder)
    assert shown.returncode == 0 and "UnknownWord" in shown.stdout and "^^^" in shown.stdout
    assert shown.stdout.startswith("step 1: ") and "UnknownWord" in shown.stdout.partition("=== prompt")[0]
    refused(cli("show", "--attempt", "9", cwd=folder), 2, "no step 9")


def test_the_best_of_a_run_is_exported(run_folder: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = run_folder
    done = cli("export", "latest", "--out", "package", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["package"] == "coda_linear_swiglu"
    assert (folder / "package" / "src" / "coda_linear_swiglu" / "descriptor.py").is_file()
    refused(cli("export", "latest", "--out", "package", cwd=folder), 2, "exists already")


def test_the_planner_needs_no_key_and_no_gpu(tmp_path: Path) -> None:
    """The README's first command, with one attempt."""
    done = cli("synth", "linear_swiglu", "--attempts", "1", "--device", "cpu", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)["report"]["best"]
    assert best["evaluation"]["verdict"] == "PASSED" and best["evaluation"]["timings"] == []
    assert "silu" in best["candidate"]["source"] or "sigmoid" in best["candidate"]["source"]


def test_an_exchange_over_two_tasks_waits_and_goes_on(tmp_path: Path) -> None:
    done = cli("synth", "linear_swiglu", "linear_residual", "--provider", "exchange", "--no-wait", cwd=tmp_path)
    assert done.returncode == 4 and done.stdout.count("put the reply into") == 2, done.stderr
    (first,) = tmp_path.glob("runs/*linear_swiglu*")
    (first / "steps/001/reply.md").write_text(f"~~~\n{BAD}\n~~~\n", encoding="utf-8")
    done = cli("resume", "--waiting", "--no-wait", "--json", cwd=tmp_path)
    ends = json.loads(done.stdout)
    assert done.returncode == 4 and all(end["waiting"] for end in ends)
    assert sorted(len(end["report"]["rows"]) for end in ends) == [0, 1]
    shown = cli("show", first.name, "--attempt", "1", cwd=tmp_path)
    assert "=== prompt" in shown.stdout and "=== reply" in shown.stdout and "UnknownWord" in shown.stdout
    assert "waiting for a reply" in cli("show", first.name, cwd=tmp_path).stdout
    after = json.loads(cli("prompt", "linear_swiglu", "--after", first.name, "--json", cwd=tmp_path).stdout)
    assert after["system"] == (first / "system.md").read_text(encoding="utf-8")
    assert "did you mean 'gemm'" in after["user"] and after["tokens"]["kind"] == "estimated"


def test_two_candidates_side_by_side(run_folder: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = run_folder
    done = cli("diff", "latest", "1", "best", cwd=folder)
    assert done.returncode == 0 and "-    z = gem(" in done.stdout and "+    z = gemm(" in done.stdout
    refused(cli("diff", "latest", "1", "9", cwd=folder), 2, "no candidate '9'")
    assert "No lessons yet" in cli("lessons", cwd=folder).stdout
    refused(cli("lessons", "--drop", "abc", cwd=folder), 2, "no lesson 'abc'")


def test_a_finished_run_that_is_resumed_stays_as_it_is(
    run_folder: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = run_folder
    before = (next(folder.glob("runs/2*")) / "attempts.jsonl").read_bytes()
    done = cli("resume", "--json", cwd=folder)
    assert done.returncode == 0 and json.loads(done.stdout)["report"]["best"] is not None, done.stderr
    assert (next(folder.glob("runs/2*")) / "attempts.jsonl").read_bytes() == before


def test_a_model_without_a_price_wants_a_limit(tmp_path: Path) -> None:
    more = ("--provider", "openai-compatible", "--base-url", "http://127.0.0.1:9/v1", "--model", "mine")
    refused(cli("synth", "linear_swiglu", *more, cwd=tmp_path), 2, "no known price", "--tokens", "--allow-unpriced")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_found_nothing(tmp_path: Path) -> None:
    done = cli("synth", "linear_swiglu", *scripted(tmp_path, BAD), "--json", cwd=tmp_path)
    assert done.returncode == 1 and json.loads(done.stdout)["report"]["best"] is None
    refused(cli("export", "latest", "--out", "package", cwd=tmp_path), 1, "REJECTED", "passed")
    assert not (tmp_path / "package").exists()


def test_evaluate_points_at_every_fault(tmp_path: Path) -> None:
    (tmp_path / "bad.coda").write_text(BAD)
    done = cli("evaluate", "bad.coda", "--task", "linear_swiglu", cwd=tmp_path)
    assert done.returncode == 1 and "bad.coda:" in done.stdout and "UnknownWord" in done.stdout
    assert (
        "did you mean 'gemm'" in done.stdout and "^^^" in done.stdout and "Traceback" not in done.stdout + done.stderr
    )


def test_evaluate_reads_stdin_and_writes_json(tmp_path: Path) -> None:
    done = cli("evaluate", "-", "--task", "linear_swiglu", "--json", cwd=tmp_path, text=BAD)
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["verdict"] == "REJECTED" and said["diagnostics"][0]["line"] > 0


@pytest.mark.gpu
def test_a_gpu_measures_beside_named_baselines(tmp_path: Path) -> None:
    done = cli("evaluate", str(LINEAR_SWIGLU), "--task", "linear_swiglu", "--device", "cuda", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    timing = json.loads(done.stdout)["timings"][0]
    assert timing["low_ms"] <= timing["median_ms"] <= timing["high_ms"] and timing["median_ms"] > timing["bound_ms"]
    assert {"bare_gemm", "eager"} <= {b["name"] for b in timing["baselines"]}


def test_a_seed_that_no_generator_takes_is_refused(tmp_path: Path) -> None:
    for seed in ("99999999999999999999999", "-1"):
        asked = ("evaluate", str(LINEAR_SWIGLU), "--task", "linear_swiglu", f"--seed={seed}")
        refused(cli(*asked, cwd=tmp_path), 2, "out of range: a seed is a whole number from 0 to")
    refused(cli("synth", "linear_swiglu", cwd=tmp_path, CODA_SYNTH_SEED="-4"), 2, "seed = -4: out of range")
    assert not (tmp_path / "runs").exists()


def test_a_receipt_that_cannot_be_written_is_told_before_anything_is_judged(tmp_path: Path) -> None:
    asked = ("evaluate", str(LINEAR_SWIGLU), "--task", "linear_swiglu", "--receipt")
    refused(cli(*asked, "nowhere/r.json", cwd=tmp_path), 2, "cannot write the receipt", "no folder nowhere")
    refused(cli(*asked, str(tmp_path), cwd=tmp_path), 2, "it is a folder")


def test_tasks_and_prompt(tmp_path: Path) -> None:
    listed = json.loads(cli("tasks", "--json", cwd=tmp_path).stdout)
    assert {"linear_swiglu", "lm_head_cross_entropy"} <= {entry["name"] for entry in listed}
    assert all(shape["bound_ms"] > 0 for entry in listed for shape in entry["shapes"])
    lines = cli("tasks", cwd=tmp_path).stdout.splitlines()
    assert len(lines) == len(listed) + 2 and lines[1].startswith("linear_swiglu ") and "silu" in lines[1]
    named = cli("tasks", "linear_swiglu", cwd=tmp_path).stdout
    assert "takes x[T, D], w_gate[F, D] (weight)" in named and "llama3-8b" in named and "linear_bias" not in named
    assert [entry["name"] for entry in json.loads(cli("tasks", "linear_nt", "--json", cwd=tmp_path).stdout)] == [
        "linear_nt"
    ]
    refused(cli("tasks", "linear_swigl", cwd=tmp_path), 2, "did you mean linear_swiglu")
    prompt = json.loads(cli("prompt", "linear_swiglu", "--json", cwd=tmp_path).stdout)
    assert "gemm" in prompt["system"] and "linear_swiglu" in prompt["user"]


def test_doctor_names_keys_and_never_shows_them(tmp_path: Path) -> None:
    done = cli("doctor", "--json", cwd=tmp_path, ANTHROPIC_API_KEY="secret-key-123")
    found = {f["name"]: f for f in json.loads(done.stdout)}
    assert done.returncode == 0 and "secret" not in done.stdout + done.stderr
    assert found["ANTHROPIC_API_KEY"]["text"] == "set" and found["OPENAI_API_KEY"]["text"] == "not set"
    assert found["interpreter"]["state"] == found["ptxas"]["state"] == found["torch"]["state"] == "ok"


def test_ctrl_c_keeps_what_was_judged(tmp_path: Path) -> None:
    """As a terminal sends it: to the command and to all its children at once."""
    command = [sys.executable, "-m", "coda_synth", "synth", "linear_swiglu", *scripted(tmp_path, BAD, GOOD), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environ(), text=True, start_new_session=True, **pipes) as running:
        wait_for(lambda: any(p.read_text() for p in tmp_path.glob("runs/*/attempts.jsonl")))
        time.sleep(0.5)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in out + err
    assert json.loads(out)["interrupted"] is True
    attempts = json.loads(cli("show", "--json", cwd=tmp_path).stdout)["attempts"]
    assert attempts[0]["evaluation"]["verdict"] == "REJECTED"
    wait_for(lambda: not alive(running.pid), seconds=10)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(holds: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)

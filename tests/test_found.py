"""A record of which a part cannot be read: it is said in one line, and the others are gone on with."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from coda_synth.agent.cli import main
from coda_synth.agent.lessons import Lesson, load, save
from coda_synth.runs.store import Store

RUN = ("synth", "linear_residual", "linear_rope", "--provider", "exchange", "--no-wait")


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Path]:
    """Of two waiting runs the second has a damaged head; a third folder, the newest of all, has none."""
    monkeypatch.chdir(tmp_path)
    assert main(RUN) == 4
    good, bad = sorted(tmp_path.glob("runs/2*"), key=lambda p: "rope" in p.name)
    (bad / "run.json").write_text("{", encoding="utf-8")
    (tmp_path / "runs/29991231-235959-linear_bias-ffff").mkdir()
    capsys.readouterr()
    return good, bad


def notes(err: str) -> list[str]:
    assert all(line.startswith("coda-synth: note: ") for line in err.splitlines()), err
    return [line.removeprefix("coda-synth: note: ") for line in err.splitlines()]


@pytest.mark.parametrize("command", ["show", "prompt", "diff"])
def test_the_latest_is_the_latest_that_can_be_read(
    command: str, damaged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = damaged
    words = {"show": ["show"], "prompt": ["prompt", "linear_residual", "--after", "latest"]}
    code = main([*words.get(command, ["diff", "latest", "1", "best"]), "--json"])
    out, err = capsys.readouterr()
    said = notes(err.partition("coda-synth: run")[0])
    assert (
        said[0] == "runs/29991231-235959-linear_bias-ffff is left out: its run.json cannot be read (No such file or "
        "directory)"
    )
    assert said[1].startswith(f"{bad.name} is left out: runs/{bad.name}/run.json is not JSON")
    assert said[2] == f"the latest run that can be read is {good.name}"
    if command == "show":
        assert code == 0 and json.loads(out)["report"]["run"]["id"] == good.name
    elif command == "diff":
        assert code == 2 and f"run {good.name} has no candidate" in err
    else:
        assert code == 0 and "linear_residual" in json.loads(out)["user"]


def test_the_others_that_wait_go_on(damaged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = damaged
    assert main(["resume", "--waiting", "--json"]) == 4
    out, err = capsys.readouterr()
    assert [end["folder"] for end in json.loads(out)] == [f"runs/{good.name}"]
    assert len(notes(err)) == 2
    assert main(["resume", bad.name, good.name]) == 4
    out, err = capsys.readouterr()
    assert "run.json is not JSON" in err and "broke off" in out and "waiting for a reply" in out


def test_who_was_killed_while_it_waited_waits_still_and_who_is_at_work_does_not(
    damaged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    good, _ = damaged
    (good / "end.json").unlink()
    assert main(["show", good.name]) == 0 and "Ended:   its process was killed" in capsys.readouterr().out
    with closing(Store(good.parent).open(good.name)) as writer:
        assert writer.run.id == good.name
        assert main(["resume", "--waiting"]) == 0 and "no run waits for a reply" in capsys.readouterr().out
        assert main(["show", good.name]) == 0
        assert f"Ended:   not yet: process {os.getpid()} on " in capsys.readouterr().out
    assert main(["resume", "--waiting"]) == 4
    (good / "end.json").write_text((good / "end.json").read_text().replace("waiting for a reply", "interrupted"))
    assert main(["resume", "--waiting"]) == 4


def test_where_a_reply_belongs_is_said_of_the_copy(
    damaged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, _ = damaged
    shutil.copytree(good, tmp_path / "elsewhere" / good.name)
    assert main(["show", "--runs", "elsewhere"]) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Ended:"))
    assert said.endswith(f"put the reply into elsewhere/{good.name}/steps/001/reply.md") and "runs/" not in said


def test_lessons_are_pruned_of_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    known = [
        Lesson(task, "H200", "s", f"change {gain}", 4.0, 4.0 / gain, "run", i)
        for i, (task, gain) in enumerate([("linear_rope", 2), ("linear_rope", 3), ("linear_residual", 1.5)])
    ]
    save(tmp_path / "runs", known)
    assert main(["lessons", "--task", "linear_rope", "--keep", "1"]) == 0
    assert "change 3" in capsys.readouterr().out
    assert load(tmp_path / "runs") == (known[1], known[2])  # the other task's stays, small as it is
    assert main(["lessons", "--drop", known[2].id]) == 0 and load(tmp_path / "runs") == (known[1],)
    assert main(["lessons", "--keep", "0"]) == 0 and load(tmp_path / "runs") == ()


def test_one_that_is_named_is_an_error(damaged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", damaged[1].name]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "was changed by hand or damaged" in err


def test_attempts_that_are_gone_are_damage_and_not_a_run_without_any(
    damaged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    good, _ = damaged
    assert main(["leaderboard"]) == 0  # so that it is known to the index
    (good / "attempts.jsonl").unlink()
    missing = f"runs/{good.name}/attempts.jsonl is missing"
    for command in ("show", "resume"):
        capsys.readouterr()
        assert main([command, good.name]) == 3
        out, err = capsys.readouterr()
        assert out == "" and missing in err and err.count("\n") == 1 and "--runs" not in err
    for _ in range(2):
        assert main(["leaderboard"]) == 0 and f"note: {missing}" in capsys.readouterr().out
    assert not (good / "attempts.jsonl").exists()


def test_every_command_that_is_told_finds_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    there = ("--runs", "r 2")

    def told(*command: str) -> list[str]:
        """The command between backquotes in what this one says, as a shell reads it."""
        main([*command, *there])
        said = "".join(capsys.readouterr())
        (found,) = re.findall("`coda-synth ([^`]*)`", said)
        assert found.endswith("--runs 'r 2'"), said
        return shlex.split(found)

    assert told("show")[:2] == ["synth", "TASK"]
    bench = ("bench", "--tasks", "linear_residual", "--authors", "exchange", "--no-wait")
    assert told(*bench)[:2] == ["show", "RUN"]
    (run,) = tmp_path.glob("r 2/2*")
    assert told("leaderboard")[0] == "synth" and told("lessons", "--drop", "abc")[0] == "lessons"
    (run / "end.json").unlink()
    killed = told("show")
    assert killed[:2] == ["resume", run.name] and main([*killed, "--no-wait"]) == 4
    capsys.readouterr()
    (run / "steps/001/reply.md").write_bytes(b"\xff")
    broken = told("resume", run.name)
    assert broken == killed and main(broken) == 3


def test_the_size_of_each_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "--prompts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one = next(entry for entry in found["tasks"] if entry["name"] == "linear_residual")
    assert main(["prompt", "linear_residual", "--json"]) == 0
    tokens = json.loads(capsys.readouterr().out)["tokens"]
    assert found["kind"] == tokens["kind"] == "estimated"
    assert (one["system"], one["user"], one["total"]) == (tokens["system"], tokens["user"], tokens["total"])
    assert main(["tasks", "--prompts"]) == 0 and f"{one['total']:,}" in capsys.readouterr().out

"""The three ways to have coda-synth: a wheel, an editable install and a bare checkout, each with its package data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("agent", "coda_api", "evaluator", "prompts", "runs", "tasks")
DATA = (".md", ".toml", ".coda", ".typed")


def run(*command: str, cwd: Path, path: str = "") -> str:
    """stdout of a command that must succeed, with `path` as the only PYTHONPATH."""
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, so that a build leaves nothing behind in it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    for folder in (*FOLDERS, "coda_synth"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    (copy / "runs" / "0123").mkdir(exist_ok=True)  # a run, as it lies in a checkout: it must stay out of the wheel
    (copy / "runs" / "0123" / "notes.md").write_text("a run's data")
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        ".",
        cwd=checkout,
    )
    return next(out.glob("coda_synth-*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel), cwd=site)
    return site


def test_the_wheel_holds_every_module_and_all_data(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"coda_synth/{folder}/{path.name}"
        for folder in FOLDERS
        for path in (ROOT / folder).iterdir()
        if path.suffix in (".py", *DATA)
    }
    assert wanted <= held, sorted(wanted - held)
    assert "coda_synth/py.typed" in held


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"coda_synth", f"coda_synth-{PROJECT['project']['version']}.dist-info"}
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "0123" in name]


def test_the_wheel_carries_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    licence = next(name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata


def test_an_installed_wheel_runs_from_its_own_files(site: Path, tmp_path: Path) -> None:
    where = run(
        sys.executable, "-c", "import coda_synth.agent.cli as c; print(c.__file__)", cwd=tmp_path, path=str(site)
    )
    assert Path(where.strip()) == site / "coda_synth" / "agent" / "cli.py"
    listed = run(sys.executable, str(site / "bin" / "coda-synth"), "--version", cwd=tmp_path, path=str(site))
    assert listed.strip() == f"coda-synth {PROJECT['project']['version']}"


def test_an_installed_wheel_finds_its_data(site: Path, tmp_path: Path) -> None:
    """`prompt` reads templates, the word table and worked candidates: everything that a package could forget."""
    text = run(sys.executable, "-m", "coda_synth", "prompt", "linear_swiglu", cwd=tmp_path, path=str(site))
    assert "linear_swiglu" in text and "gemm" in text


def test_an_installed_wheel_has_a_licence_to_export(site: Path, tmp_path: Path) -> None:
    code = "from coda_synth.runs.export import licence_text; print(licence_text(), end='')"
    said = run(sys.executable, "-c", code, cwd=tmp_path, path=str(site))
    assert said == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_a_bare_checkout_runs_without_an_install(checkout: Path) -> None:
    text = run(sys.executable, "-m", "coda_synth", "--version", cwd=checkout)
    assert text.strip() == f"coda-synth {PROJECT['project']['version']}"


def test_an_editable_install_runs_from_the_checkout(checkout: Path, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(tmp_path))
    run(*pip, "-e", str(checkout), cwd=tmp_path)
    code = f"import site; site.addsitedir({str(tmp_path)!r}); import coda_synth.agent.cli as c; print(c.__file__)"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = Path(run(sys.executable, "-S", "-c", code, cwd=elsewhere).strip())
    assert where.resolve() == (checkout / "agent" / "cli.py").resolve()


def test_the_version_is_said_once_in_each_place() -> None:
    import coda_synth

    assert coda_synth.__version__ == PROJECT["project"]["version"]


def test_every_folder_is_a_package_of_the_wheel() -> None:
    tool = PROJECT["tool"]["setuptools"]
    assert set(tool["packages"]) == {"coda_synth", *(f"coda_synth.{folder}" for folder in FOLDERS)}
    assert tool["package-dir"] == {f"coda_synth.{folder}": folder for folder in FOLDERS}


def test_the_readme_shows_the_worked_candidate() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "tasks" / "linear_swiglu.coda").read_text(encoding="utf-8").strip() in readme


def test_what_the_readme_says_of_peers_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "h200-2026-11-30.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    peers = {name: [row[name] for row in measured if row.get(name)] for name in ("compile", "max_autotune")}
    assert all(ratio >= 1 for ratios in peers.values() for ratio in ratios)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"none of the {len(peers['compile'])} is slower than torch.compile" in readme
    assert f"none of the {len(peers['max_autotune'])} that max-autotune was measured for is slower" in readme


def test_ci_runs_the_readmes_own_line() -> None:
    """Word for word, in another virtual environment."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if "pytest" in line and line.startswith("python3"))
    done = subprocess.run([ROOT / ".ci" / "run", "--print"], capture_output=True, text=True, check=True)
    said = done.stdout.strip()
    assert said == line.replace(".venv", said.split(" -m venv ")[1].split(" ")[0])


def test_every_link_of_the_docs_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

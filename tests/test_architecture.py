"""The rules that hold the parts apart: who imports whom, flat folders, one import name, modules that say their job."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KNOWS = {
    "coda_api": {"coda_api"},
    "tasks": {"tasks"},
    "prompts": {"prompts"},
    "evaluator": {"coda_api", "tasks", "evaluator"},
    "runs": {"coda_api", "tasks", "evaluator", "runs"},
    "agent": {"coda_api", "tasks", "prompts", "evaluator", "runs", "agent"},
}
LONGEST = 400


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


EVERY_MODULE = [path for folder in (*KNOWS, "coda_synth") for path in modules(folder)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every imported module of a file with its line, wherever in the file it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (f"{'.' * node.level}{node.module or ''}.{alias.name}".strip(), node.lineno) for alias in node.names
            )


@pytest.mark.parametrize("folder", KNOWS)
def test_imports_go_leftward_only(folder: str) -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in modules(folder)
        for name, line in imports(path)
        if name.startswith("coda_synth.") and name.split(".")[1] not in KNOWS[folder] | {"__version__"}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_folders_have_one_import_name() -> None:
    """A bare `import runs` would make a second copy of every class, and collide in site-packages."""
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in [*EVERY_MODULE, *modules("tests"), *modules("benchmarks")]
        for name, line in imports(path)
        if name.split(".")[0] in KNOWS or name.startswith(".")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", KNOWS)
def test_folders_are_flat(folder: str) -> None:
    """A sub-package is live in an editable install and missing from the wheel."""
    assert (ROOT / folder / "__init__.py").is_file()
    assert [name_of(path) for path in modules(folder) if path.parent != ROOT / folder] == []


def test_tasks_know_torch_alone() -> None:
    used = {name.split(".")[0] for path in modules("tasks") for name, _ in imports(path)}
    assert used <= set(sys.stdlib_module_names) | {"torch", "coda_synth"}


@pytest.mark.parametrize("hopper", [False, True])
def test_few_modules_know_the_compiler(hopper: bool) -> None:
    """One module of coda_api imports triton, and one more its Hopper front end."""
    users = {
        name_of(path)
        for path in modules("coda_api")
        for name, _ in imports(path)
        if name.split(".")[0] == "triton" and name.startswith("triton.experimental") == hopper
    }
    assert len(users) <= 1, users


def test_only_the_command_line_prints() -> None:
    printing = {
        f"{name_of(path)}:{node.lineno}"
        for path in EVERY_MODULE
        if not name_of(path).startswith("agent/cli")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert not printing


def test_python_text_is_parsed_in_one_place() -> None:
    """Elsewhere two threads would do it at once (coda_api/parsing.py says why not)."""
    parsing = {
        name_of(path)
        for path in EVERY_MODULE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if (node.value.id, node.attr) == ("ast", "parse")
    }
    assert parsing == {"coda_api/parsing.py"}


def test_every_module_says_its_job() -> None:
    silent = [
        name_of(path) for path in EVERY_MODULE if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_no_file_outgrows_its_job() -> None:
    long = {name_of(p): n for p in EVERY_MODULE if (n := len(p.read_text(encoding="utf-8").splitlines())) > LONGEST}
    assert not long


def test_the_compiler_starts_without_torch() -> None:
    """Compile workers start in a fraction of a second because nothing on their path imports torch."""
    names = [f"coda_synth.coda_api.{name}" for name in ("reader", "lowering", "toolchain", "cost")]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "module", ["config", "cli", "cli_failure", "cli_record", "cli_tasks", "cli_synth", "cli_evaluate"]
)
def test_command_modules_are_light(module: str) -> None:
    """What `--help`, a wrong flag or an unreadable file costs is the import of these modules."""
    heavy = "{'torch', 'triton', 'numpy', 'anthropic', 'openai', 'tenacity', 'rich.table'}"
    code = f"import sys, coda_synth.agent.{module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

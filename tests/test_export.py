"""Exported packages: what is written, that it stands alone, and that it computes what the task says."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.evaluation import Candidate, Check, Evaluation, Verdict
from coda_synth.evaluator.serial import from_data
from coda_synth.runs.export import ExportError, NotPassed, write
from coda_synth.runs.export_kernels import Axis
from coda_synth.runs.export_sizes import SizeError, dim_text, shape_text, solved
from coda_synth.runs.record import Attempt, Run
from coda_synth.runs.store import Store
from coda_synth.tasks.catalog import task, worked_candidate

from tests.representative import REPRESENTATIVE

ROOT = Path(__file__).resolve().parent.parent


def passed(name: str) -> tuple[Candidate, Evaluation]:
    """The task's worked candidate with the record that a judge leaves behind (its making is tested elsewhere)."""
    candidate = Candidate(name, worked_candidate(name))
    check = Check("meaning", {"T": 5}, "normal", 3, "reference", 0.25)
    return candidate, Evaluation(candidate.id, name, Verdict.PASSED, "check", 3, checks=(check,))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every task's package."""
    folder = tmp_path_factory.mktemp("exports")
    for name in REPRESENTATIVE:
        write(task(name), *passed(name), folder / name)
    return {name: folder / name for name in REPRESENTATIVE}


def python(*args: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *args], cwd=cwd, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_the_package_passes_its_own_tests(name: str, packages: dict[str, Path]) -> None:
    """The very kernels that ship, against the plain reference: on a GPU, or in the interpreter."""
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=packages[name])
    assert done.returncode == 0, done.stdout[-3000:]
    assert "9 passed" in done.stdout or "15 passed" in done.stdout, done.stdout[-500:]


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_the_package_knows_torch_and_triton_alone(name: str, packages: dict[str, Path]) -> None:
    package = f"coda_{name}"
    allowed = set(sys.stdlib_module_names) | {"torch", "triton", package}
    for path in (packages[name] / "src" / package).glob("*.py"):
        more = {"numpy"} if path.name == "interpreter.py" else set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {n.split(".")[0] for n in names} <= allowed | more, path


def test_the_package_installs_with_pip(packages: dict[str, Path], tmp_path: Path) -> None:
    source = packages["linear_swiglu"]
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"))
    done = python(*pip, str(source), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code = (
        "import sys, coda_linear_swiglu as p; print(p.__file__); "
        "assert not {'coda_synth', 'rich', 'openai', 'anthropic'} & set(sys.modules); "
        "from importlib.resources import files; files(p).joinpath('receipt.json').read_text()"
    )
    done = python("-P", "-c", code, cwd=tmp_path, path=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path / "site" / "coda_linear_swiglu"
    assert list((tmp_path / "site").glob("coda_linear_swiglu-*.dist-info/licenses/LICENSE"))


def test_the_package_says_that_it_needs_a_gpu(packages: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import torch, coda_linear_swiglu as p; x = torch.ones(16, 16, dtype=torch.bfloat16); "
        "p.linear_swiglu(x, w_gate=x, w_up=x)"
    )
    done = python("-P", "-c", code, cwd=tmp_path, path=str(packages["linear_swiglu"] / "src"))
    assert done.stderr.splitlines()[-1].startswith("ValueError: the tensors lie on the CPU; these kernels need a GPU")


def test_an_interpreted_package_is_right_by_itself(packages: dict[str, Path], tmp_path: Path) -> None:
    """With nothing but TRITON_INTERPRET=1: the import brings the repair, beside another package's; numpy is named."""
    path = os.pathsep.join(str(packages[name] / "src") for name in ("linear_swiglu", "residual_rmsnorm_swiglu"))
    code = (
        "import os; os.environ['TRITON_INTERPRET'] = '1'\n"
        "import coda_residual_rmsnorm_swiglu, coda_linear_swiglu as p, torch; torch.manual_seed(0)\n"
        "x, w = torch.randn(16, 32).bfloat16(), torch.randn(24, 32).bfloat16()\n"
        "g = x.double() @ w.double().T\n"
        "said, right = p.linear_swiglu(x, w_gate=w, w_up=w).double(), torch.nn.functional.silu(g) * g\n"
        "assert torch.allclose(said, right, rtol=0.02, atol=0.02), (said - right).abs().max()\n"
    )
    done = python("-P", "-c", code, cwd=tmp_path, path=path)
    assert done.returncode == 0, done.stderr
    done = python("-P", "-c", "import sys; sys.modules['numpy'] = None\n" + code, cwd=tmp_path, path=path)
    assert done.stderr.splitlines()[-1].startswith("ImportError: TRITON_INTERPRET is set, and interpreting needs numpy")


def test_the_package_carries_its_receipt_and_licence(packages: dict[str, Path]) -> None:
    folder = packages["residual_rmsnorm_swiglu"]
    candidate, evaluation = passed("residual_rmsnorm_swiglu")
    package = folder / "src" / "coda_residual_rmsnorm_swiglu"
    receipt = json.loads((package / "receipt.json").read_text(encoding="utf-8"))
    assert from_data(Evaluation, receipt["evaluation"]) == evaluation
    assert receipt["candidate"]["id"] == candidate.id and receipt["candidate"]["source"] == candidate.source
    assert receipt["schedules"]["a"]["block_m"] > 0 and receipt["versions"]["triton"]
    assert (package / "program.coda").read_text(encoding="utf-8") == candidate.source
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {d.split(">")[0] for d in project["dependencies"]} == {"torch", "triton"} and project[
        "license"
    ] == "Apache-2.0"


def test_sizes_that_the_text_depends_on_are_said(packages: dict[str, Path]) -> None:
    """A rotary kernel is made for one head width: another is refused in words, and the README says so."""
    init = (packages["linear_rope"] / "src" / "coda_linear_rope" / "__init__.py").read_text(encoding="utf-8")
    assert 'fixed("H", H, 128)' in init
    assert "H = 128" in (packages["linear_rope"] / "README.md").read_text(encoding="utf-8")
    other = (packages["linear_swiglu"] / "src" / "coda_linear_swiglu" / "__init__.py").read_text(encoding="utf-8")
    assert "fixed(" not in other.split("from coda_linear_swiglu.checks import")[1].split("\n", 1)[1]


def test_the_package_warns_where_triton_lacks_what_the_hopper_kernels_need(packages: dict[str, Path]) -> None:
    """As on a Hopper GPU, whose only part in the choice is to be there."""
    code = (
        "import sys, warnings, coda_linear_swiglu as p\n"
        "import triton.experimental.gluon.language.nvidia.hopper as gluon\n"
        "p.on_hopper, taken = lambda first: True, gluon.warpgroup_mma_init\n"
        "del gluon.warpgroup_mma_init\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    assert p._described(None) is p.descriptor\n"
        "assert 'warpgroup_mma_init' in str(said[0].message) and 'others run instead' in str(said[0].message)\n"
        "gluon.warpgroup_mma_init = taken\n"
        "assert p._described(None) is sys.modules['coda_linear_swiglu.hopper']\n"
    )
    done = python("-P", "-c", code, cwd=packages["linear_swiglu"], path=str(packages["linear_swiglu"] / "src"))
    assert done.returncode == 0, done.stderr


def test_the_commands_that_are_printed_can_be_pasted(tmp_path: Path) -> None:
    """A bare folder is no name in pip's index, and a folder's name may hold blanks."""
    writer = Store(tmp_path / "runs").create(Run("r", "linear_swiglu", "planner", "", {}, "2026-11-29T10:00:00", "0.1"))
    writer.append(Attempt(1, "evaluated", *passed("linear_swiglu")))
    writer.close()
    for out, folder in (("mine", "./mine"), ("my kernels/a b", "./my kernels/a b"), (f"{tmp_path}/c", f"{tmp_path}/c")):
        done = python("-m", "coda_synth", "export", "r", "--out", out, cwd=tmp_path, path=str(ROOT))
        assert done.returncode == 0, done.stderr
        install, test = map(shlex.split, done.stdout.partition("Next:\n")[2].splitlines())
        assert install == ["pip", "install", f"{folder}[test]"] and test == ["python", "-m", "pytest", folder]
        assert (tmp_path / folder / "pyproject.toml").is_file()


# -- what is refused


@pytest.mark.parametrize(
    ("rows", "columns", "said"), [(0, 32, "x.shape[0]"), (0, 33, "x.shape[0]"), (4, 0, "w_gate.shape[1]")]
)
def test_a_size_of_nothing_is_named(
    rows: int, columns: int, said: str, packages: dict[str, Path], tmp_path: Path
) -> None:
    """Whichever form the alignment of the rows would choose."""
    code = (
        "import torch, coda_linear_swiglu as p; w = torch.ones(16, {1}).bfloat16(); "
        "p.linear_swiglu(torch.ones({0}, {1}).bfloat16(), w_gate=w, w_up=w)"
    )
    source = packages["linear_swiglu"] / "src"
    done = python("-P", "-c", code.format(rows, columns), cwd=tmp_path, path=str(source))
    assert done.stderr.splitlines()[-1] == f"ValueError: {said} is 0: there is nothing to compute"


def test_only_what_passed_is_exported(tmp_path: Path) -> None:
    candidate, _ = passed("linear_swiglu")
    said = Diagnostic("Incorrect", "act is too far off")
    wrong = Evaluation(candidate.id, candidate.task, Verdict.INCORRECT, "check", 3, diagnostics=(said,))
    with pytest.raises(NotPassed, match="INCORRECT.*too far off"):
        write(task("linear_swiglu"), candidate, wrong, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_task_with_an_in_place_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="linear_backward adds into its input dw in place"):
        write(task("linear_backward"), *passed("linear_backward"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_package_has_the_schedules_that_were_judged(tmp_path: Path) -> None:
    """Also where nothing was measured, and a default is another one by now."""
    candidate, evaluation = passed("linear_residual")
    judged = Schedule(block_n=128, stages=4, mainloop="pingpong", slice_n=16)
    write(task("linear_residual"), candidate, replace(evaluation, schedules={"a": judged}), tmp_path / "out")
    kept = json.loads((tmp_path / "out/src/coda_linear_residual/receipt.json").read_text())["schedules"]
    assert from_data(dict[str, Schedule], kept) == {"a": judged}
    write(task("linear_residual"), candidate, evaluation, tmp_path / "default")
    kept = json.loads((tmp_path / "default/src/coda_linear_residual/receipt.json").read_text())["schedules"]
    assert from_data(dict[str, Schedule], kept)["a"].mainloop == "hopper"


def test_another_candidates_evaluation_is_no_receipt(tmp_path: Path) -> None:
    _, evaluation = passed("linear_swiglu")
    other = Candidate("linear_swiglu", worked_candidate("linear_swiglu") + "\n")
    with pytest.raises(ExportError, match="not of"):
        write(task("linear_swiglu"), other, evaluation, tmp_path / "out")


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ExportError, match="cannot write"):
        write(task("linear_swiglu"), *passed("linear_swiglu"), tmp_path / "taken" / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(ExportError, match="cannot write"):
        write(task("linear_swiglu"), *passed("linear_swiglu"), tmp_path / "full")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "taken"]
    assert (tmp_path / "full" / "file").read_text() == "mine"


# -- sizes as text


def dims(*texts: str) -> tuple[Dim, ...]:
    return tuple(map(Dim.parse, texts))


def test_sizes_follow_from_shapes() -> None:
    tensors = [("x", dims("T", "D")), ("w", dims("HQ*H", "D")), ("f", dims("H/2"))]
    lines = solved(tensors)
    shapes = {"x": (5, 7), "w": (48, 7), "f": (8,)}
    found: dict[str, int] = {}
    for symbol, text in lines:
        for name, shape in shapes.items():
            for axis, length in enumerate(shape):
                text = text.replace(f"{name}.shape[{axis}]", str(length))
        left, *rest = text.split(" ")
        value = int(left)
        for operator, right in zip(rest[::2], rest[1::2], strict=True):
            factor = found[right] if right in found else int(right)
            value = value * factor if operator == "*" else value // factor
        found[symbol] = value
    assert found == {"T": 5, "D": 7, "H": 16, "HQ": 3}


def test_a_size_that_follows_from_nothing() -> None:
    with pytest.raises(SizeError, match="A"):
        solved([("x", dims("A*B"))])
    with pytest.raises(SizeError, match="A"):
        solved([("x", dims("A*A"))])


@pytest.mark.parametrize(("text", "said"), [("2*F", "2 * F"), ("H/2", "H // 2"), ("HQ*H", "H * HQ"), ("128", "128")])
def test_dims_as_text(text: str, said: str) -> None:
    assert dim_text(Dim.parse(text)) == said


def test_shapes_as_text() -> None:
    assert [shape_text(d) for d in ((), dims("T"), dims("T", "2*F"))] == ["()", "(T,)", "(T, 2 * F)"]
    assert str(Axis(Dim.parse("D"), 256)) == "-(-D // 256)" and Axis(Dim.parse("D"), 256).size({"D": 257}) == 2
    assert str(Axis(Dim.parse("2*F"), 64)) == "-(-(2 * F) // 64)"

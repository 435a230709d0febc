"""What moves between releases of triton: names that generated text uses, and Gluon, parts of which may be missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coda_synth.agent import doctor
from coda_synth.coda_api import hopper_support, toolchain
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.hopper_support import hopper_fault
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.judge import Judge
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

ROOT = Path(__file__).resolve().parent.parent
TASK = "linear_nt"
OLD, NEW = ("async_copy_global_to_shared", "async_copy_shared_to_global"), ("async_load", "async_store")


def lowered_hopper(name: str) -> Generated:
    spec, sig = task(name), signature(task(name))
    return lower(read(worked_candidate(name), sig), sig, next(iter(spec.time_shapes.values())), form="hopper")


@pytest.mark.parametrize(("there", "taken"), [(OLD, OLD), (NEW, NEW), (OLD + NEW, NEW)])
def test_the_copies_are_called_as_this_triton_calls_them(there: tuple[str, ...], taken: tuple[str, ...]) -> None:
    """3.6 and 3.7 have the old names, 3.8 both, 3.9 the new ones, and under the old ones functions that raise."""
    head = lowered_hopper(TASK).source.partition("@functools.cache")[0]
    chosen = [line for line in head.splitlines() if line.startswith(("tma_load", "tma_store"))]
    names: dict[str, object] = {"tma": SimpleNamespace(**{name: name for name in there})}
    exec("\n".join(chosen), names)
    assert (names["tma_load"], names["tma_store"]) == taken


def test_boxes_are_added_to_memory_by_this_triton_s_word_or_by_what_it_is_made_of() -> None:
    """Gluon has the word from 3.8 on."""
    text = re.search(r"def _tma_add.*?    return add\n", lowered_hopper("linear_backward").source, re.DOTALL)
    assert text is not None
    names: dict[str, Any] = {"tma": SimpleNamespace(async_atomic_add="the word")}
    exec(text[0], names)
    assert names["_tma_add"]() == "the word"
    names["tma"] = SimpleNamespace()
    assert names["_tma_add"]().__name__ == "add"


def test_this_triton_builds_hopper_kernels() -> None:
    assert hopper_fault() == ""


def test_what_is_tried_has_every_part() -> None:
    source = hopper_support._probe().source
    assert all(f"{part}(" in source for part in ("tma_load", "tma_store", "tma_add", "gdc_wait", "warp_specialize"))


@pytest.fixture
def renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that start from here on find a triton that has given a part of Gluon another name."""
    hopper = "triton.experimental.gluon.language.nvidia.hopper"
    (tmp_path / "sitecustomize.py").write_text(f"import {hopper} as hopper\ndel hopper.warpgroup_mma_init\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return tmp_path


def test_where_gluon_fails_the_portable_kernels_are_judged_and_a_note_says_so(renamed: Path) -> None:
    with Judge(device="cpu", seed=3) as judge:
        found = judge.evaluate(Candidate(TASK, worked_candidate(TASK)), measure=False)
    assert found.verdict is Verdict.PASSED and found.resources
    (note,) = [d for d in found.diagnostics if d.severity == "note"]
    assert note.rule == "PortableKernel" and "warpgroup_mma_init" in note.message
    assert note.message.startswith("portable kernels stand in for Hopper's: triton ")


def test_where_gluon_fails_the_doctor_says_so(renamed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coda_synth", "doctor", "--json"], cwd=renamed, capture_output=True, text=True
    )
    (found,) = [f for f in json.loads(done.stdout) if f["name"] == "hopper kernels"]
    assert done.returncode == 0, done.stderr
    assert found["state"] == "absent" and "portable ones" in found["text"], found


def test_the_doctor_tells_a_release_that_was_never_tested() -> None:
    assert doctor._untried("3.6.0") == doctor._untried("3.9.0+git1234") == ""
    assert "tested with 3.6 to 3.9" in doctor._untried("3.10.0") and doctor._untried("3.5.1")


@pytest.mark.parametrize("name", ["linear_residual", "residual_rmsnorm_swiglu", "linear_backward"])
def test_the_compiler_puts_barriers_where_the_text_leaves_them_to_it(name: str) -> None:
    """A Hopper kernel's warps share slots of memory: before one thread hands a slot back or stores it, a barrier must
    have seen all of them, and the fence of what they wrote. Gluon inserts the barriers; each release does it anew."""
    made = lowered_hopper(name)
    module = toolchain.load(made.source)
    for launch in [launch for launch in made.launches if launch.gluon]:
        compiled = toolchain.compile_launch(getattr(module, launch.kernel), launch, toolchain.target_of("sm_90"))
        steps = [match.lastgroup for match in _STEPS.finditer(compiled.asm["ptx"])]
        assert {"handed", "stored", "fence", "written"} <= set(steps)
        for i, step in enumerate(steps):
            since = " ".join(s for s in steps[:i] if s != step).rpartition("written")[2].split()
            assert step != "handed" or since[-1:] == ["barrier"], (launch.kernel, i, steps)
            assert step != "stored" or {"barrier", "fence"} <= set(since), (launch.kernel, i, steps)


_STEPS = re.compile(
    r"(?P<barrier>\bbar\.sync)|(?P<fence>fence\.proxy\.async)|(?P<written>\bst\.shared|stmatrix)"
    r"|(?P<handed>mbarrier\.arrive\.shared)|(?P<stored>cp\.(?:reduce\.)?async\.bulk\.tensor\.\w+\.global\.shared)"
)

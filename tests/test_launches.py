"""What a generated module's launch does the second time, on triton's own launchers over a driver that runs nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
TASKS = ("linear_residual", "residual_rmsnorm", "llama_unit_forward")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="triton's launchers are compiled with gcc"),
]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = TESTS / "driver_stub.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


@pytest.mark.parametrize("form", ["hopper", "descriptor", "pointer"])
def test_a_call_on_the_same_memory_repeats_its_launches(form: str, stub: Path) -> None:
    """The same launches in the same order with the same parameters; on other memory others, and no tensor is held."""
    driver = {"LD_LIBRARY_PATH": str(stub), "TRITON_LIBCUDA_PATH": str(stub), "TRITON_INTERPRET": "0"}
    driver["TRITON_CACHE_DIR"] = str(stub / form)
    command = [sys.executable, str(TESTS / "launched_again.py"), str(stub), form, *TASKS]
    done = subprocess.run(
        command, env={**os.environ, **driver}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["attributes"] == [1, 1], "programmatic dependent launch, at first and again"
    for name, seen in found["tasks"].items():
        first, launches = seen["first"], seen["launches"]
        assert seen["form"] == form and len(first) == launches
        assert [attributes for _, _, attributes, *_ in first] == seen["overlaps"], "programmatic dependent launch"
        assert seen["built ahead"], f"{name}: a launch finds in triton's cache what was built ahead of it"
        assert seen["again"] == first and seen["encoded again"] == 0, "the same parameters, none made anew"
        for here, there in zip(first, seen["on new memory"], strict=True):
            assert here[:3] == there[:3] and here[3] != there[3], "the same grid, another address"
        assert seen["held"] == 0, "memory that has been let go is not held by what repeats a launch"
        assert seen["kept"] == 2 and seen["kept with other scalars"] == 2 + (seen["scalars"] > 0), name
        assert seen["on another stream"] == [[grid, 5, *rest] for grid, _, *rest in first]
        assert seen["on another device"] == first and seen["devices"] == [0, 1]
        assert seen["watched"] == first and len(seen["told"]) == launches, "a hook sees every launch"
        again, encoded = seen["unknown triton"]
        assert again == first and (encoded > 0) == (form != "pointer"), "the public way, which encodes every time"
        print(f"{name}: {seen['microseconds']:.1f} us a call")

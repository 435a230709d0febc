"""What this machine can do, found by looking and by trying; nothing is changed, and no key's value is read out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODA_SYNTH_API_KEY")
LIBRARIES = ("torch", "triton", "numpy", "rich", "anthropic", "openai", "tenacity")
ESSENTIAL = ("torch", "triton", "numpy", "rich")
TRITON = (3, 6), (3, 9)  # the first and the last release that coda-synth was tested with

# Run in a process of its own: the interpreter is chosen by an environment variable before triton is imported.
_INTERPRETER = """
from coda_synth.coda_api import toolchain
toolchain.repair_interpreter()
import torch
module = toolchain.load('''import triton
import triton.language as tl

@triton.jit
def double(source, target, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(target + at, tl.load(source + at) * 2)

def launch(source, target):
    double[(1,)](source, target, 8)
''', 'doctor')
source, target = torch.arange(8.0), torch.empty(8)
module.launch(source, target)
assert torch.equal(target, source * 2)
"""
_HOPPER = """
import sys
from coda_synth.coda_api.hopper_support import hopper_fault
try:
    print(hopper_fault())
except OSError as error:
    print(error)
    sys.exit(3)
"""
_GPU = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[p.name, f"sm_{p.major}{p.minor}", round(p.total_memory / 2**30)] for p in found]))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """state: "ok", "absent" (some commands do less without it) or "missing" (essential: nothing works without it)."""

    name: str
    state: str
    text: str


def examine(runs: Path, say: Callable[[str], None] = lambda text: None) -> tuple[Finding, ...]:
    """Every finding, in an order fit for reading. runs: the folder of the record."""
    return tuple(_all(runs, say))


def _all(runs: Path, say: Callable[[str], None]) -> Iterator[Finding]:
    yield Finding(
        "python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    yield from map(_library, LIBRARIES)
    say("looking for a GPU")
    yield _gpu()
    yield _compiler()
    say("building a kernel for Hopper")
    yield _hopper()
    say("trying the interpreter")
    yield _interpreter()
    for name in KEYS:
        yield Finding(name, "ok" if os.environ.get(name) else "absent", "set" if os.environ.get(name) else "not set")
    yield _record(runs)
    yield _tuned()


def _library(name: str) -> Finding:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing" if name in ESSENTIAL else "absent", "not installed")
    return Finding(name, "ok", f"{found}{_untried(found) if name == 'triton' else ''}")


def _untried(triton: str) -> str:
    """What there is to say of a release of triton that no test of ours has seen."""
    if TRITON[0] <= tuple(int(n) for n in re.findall(r"\d+", triton)[:2]) <= TRITON[1]:
        return ""
    first, last = (".".join(map(str, release)) for release in TRITON)
    return f", which is untested: coda-synth was tested with {first} to {last}"


def _gpu() -> Finding:
    done = _python(_GPU)
    if done.returncode != 0:
        return Finding("gpu", "absent", f"torch cannot say: {_last_line(done.stderr)}")
    found = [f"{name}, {arch}, {memory} GiB" for name, arch, memory in json.loads(done.stdout)]
    return (
        Finding("gpu", "ok", "; ".join(found))
        if found
        else Finding("gpu", "absent", "none; times are modelled, not measured")
    )


def _compiler() -> Finding:
    """ptxas comes inside triton; it is asked, so that a copy for another machine is noticed."""
    found = importlib.util.find_spec("triton")
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    ptxas = folder / "backends" / "nvidia" / "bin" / "ptxas" if folder else None
    if ptxas is None or not ptxas.is_file():
        return Finding("ptxas", "missing", "triton brings none: no kernel can be built")
    try:
        done = subprocess.run([ptxas, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("ptxas", "missing", f"{ptxas} does not run: {error}")
    return Finding("ptxas", "ok", f"{_last_line(done.stdout)}")


def _hopper() -> Finding:
    """Gluon is experimental, and a release of triton may lack what the Hopper kernels need."""
    done = _python(_HOPPER, TRITON_INTERPRET="0")
    if done.returncode == 3:
        said = (
            f"this machine cannot build any: {_last_line(done.stdout)}; TRITON_CACHE_DIR and TMPDIR name other folders"
        )
        return Finding("hopper kernels", "missing", said)
    fault = done.stdout.strip() if done.returncode == 0 else _last_line(done.stderr)
    if fault:
        return Finding("hopper kernels", "absent", f"Hopper GPUs get the portable ones; {fault}")
    return Finding("hopper kernels", "ok", "a small one was built for sm_90")


def _interpreter() -> Finding:
    done = _python(_INTERPRETER, TRITON_INTERPRET="1")
    if done.returncode == 0:
        return Finding("interpreter", "ok", "a small kernel ran on the CPU and was right")
    return Finding("interpreter", "missing", f"a small kernel failed: {_last_line(done.stderr)}")


def _record(runs: Path) -> Finding:
    """Where the folder does not exist yet, the nearest one that does must be writable."""
    from coda_synth.runs.store import dangling

    if fault := dangling(runs):
        return Finding("record", "missing", str(fault))
    folder = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Finding("record", "ok", f"{runs} is writable")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return Finding(
            "record", "missing", f"cannot write in {folder}: {reason}; choose another with --runs or CODA_SYNTH_RUNS"
        )


def _tuned() -> Finding:
    """Where `tune` keeps its results; the folder may be removed."""
    from coda_synth.agent.tune_cache import folder, held

    count, size = held(folder())
    said = f"{count} result{'s' * (count > 1)}, {size / 1024:.0f} kB; remove the folder to forget them"
    return Finding("tuning cache", "ok", f"{folder()}: {said if count else 'nothing is kept yet'}")


def _python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Code of ours in a fresh process that finds this very package, installed or not."""
    import coda_synth

    path = os.pathsep.join(
        filter(None, [str(Path(coda_synth.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    )
    env = {**os.environ, **environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, check=False)


def _last_line(text: str) -> str:
    lines = text.partition("nanobind: leaked")[0].strip().splitlines()  # what triton 3.9 says when Python ends
    return lines[-1] if lines else "nothing said"

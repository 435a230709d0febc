"""Nsight Compute around a candidate child of its own: one launch of a case, its kernels alone, their counters as text.

For the profile alone, where it is asked for: the kernels are launched many times over, which takes many seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, ChildTimeout, JudgeError

_SECTIONS = (
    *("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables"),
    *("WarpStateStats", "Occupancy"),
)
_LARGEST = 16 << 20  # bytes of its text
_DENIED = "ERR_NVGPUCTRPERM"


class NoCounters(Exception):
    """There are none; the message says why, and what to do about it, in one line."""


def profiler() -> str:
    """The program; raises NoCounters where there is none."""
    named = os.environ.get("NCU", "")
    found = shutil.which(named or "ncu")
    if found is None and named:
        raise NoCounters(f"NCU names {named!r}, which is no program; name Nsight Compute's ncu, or nothing")
    if found is None:
        raise NoCounters("there is no ncu in PATH; install Nsight Compute, or say in NCU where it lies")
    return found


def command(program: str, kernels: Iterable[str], log: Path) -> tuple[str, ...]:
    """What runs another command and writes of every launch of these kernels, and of no other, a row of a csv. Clocks
    are left as they are when times are measured. Sections are named and no metrics, since one that a chip does not have
    is an error by name, and left out of its section."""
    names = "|".join(map(re.escape, dict.fromkeys(kernels)))
    sections = (option for section in _SECTIONS for option in ("--section", section))
    only = ("--target-processes", "all", "--kernel-name", f"regex:^({names})$", "--clock-control", "none")
    return (program, *only, *sections, "--csv", "--page", "raw", "--log-file", str(log))


def profiled(
    kernels: Sequence[str], asked: Mapping[str, Any], environment: Mapping[str, str], memory: int, seconds: float
) -> str:
    """ncu's text of one launch of what is `asked` of a fresh candidate child, with its environment and limits. Raises
    NoCounters; leaves no process and no file behind."""
    program = profiler()
    with tempfile.TemporaryDirectory(prefix="coda-synth-ncu-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log.csv"
        own = {**environment, "TMPDIR": folder, "LC_ALL": "C"}  # its own files go there; numbers have a point
        child = Child(
            "coda_synth.evaluator.worker",
            environment=own,
            memory=memory,
            start_s=seconds,
            prefix=command(program, kernels, log),
        )
        problem, printed = None, ""
        try:
            printed = _launched(child, asked, seconds)
        except (ChildFailure, ChildRaised, JudgeError) as error:
            problem = error
        finally:
            child.close()
        text = _text(log)
    _check(text, f"{text}\n{printed}\n{problem}\n{_tail(problem)}", problem, seconds)
    return text


def _launched(child: Child, asked: Mapping[str, Any], seconds: float) -> str:
    """Launches once, and waits until ncu has written what it has to say; the end of what was printed."""
    end = time.monotonic() + seconds
    child.ready()
    child.request("launch", max(1.0, end - time.monotonic()), asked)
    return child.dismiss(max(1.0, end - time.monotonic()))


def _text(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return ""


def _tail(problem: Exception | None) -> str:
    return problem.tail if isinstance(problem, ChildFailure) else ""


def _check(text: str, everything: str, problem: Exception | None, seconds: float) -> None:
    """Raises NoCounters for what went wrong, the likeliest cause first."""
    if _DENIED in everything:
        raise NoCounters(
            f"this user may not read them ({_DENIED}); ask for it as root, or load the driver with"
            " NVreg_RestrictProfilingToAdminUsers=0"
        )
    if isinstance(problem, ChildTimeout) or isinstance(getattr(problem, "__cause__", None), ChildTimeout):
        raise NoCounters(
            f"ncu was ended after {seconds:.0f} s, its limit; ask without them where kernels run this long"
        )
    if problem or not re.search(r'^"?ID"?,', text, re.MULTILINE):
        raise NoCounters(f"ncu failed: {_said(everything)}; try it by hand, or name another release of it in NCU")


def _said(everything: str) -> str:
    """ncu's first error, or its first warning, or whatever was said at all."""
    lines = [line.strip() for line in everything.splitlines() if line.strip() not in ("", "None")]
    marked = [line for mark in ("==ERROR==", "==WARNING==") for line in lines if line.startswith(mark)]
    first = (marked or lines or ["it wrote nothing"])[0]
    return first.removeprefix("==ERROR==").removeprefix("==WARNING==").strip()[:200].rstrip(".")

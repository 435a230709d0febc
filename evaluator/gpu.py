"""Facts about the machine's GPU from its driver, and the lock that keeps two timings off one GPU. Needs no torch."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def driver_state(field: str) -> str:
    """One figure of the first visible GPU ("driver_version", "clocks.sm") from the driver's tool, or ""."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    command = ["nvidia-smi", f"--id={first}", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def memory_in_use() -> tuple[int, int] | None:
    """(what all processes hold of the first visible GPU's memory, all of it) in MiB; None where the driver's tool does
    not say."""
    found = re.findall(r"\d+", driver_state("memory.used,memory.total"))
    return (int(found[0]), int(found[1])) if len(found) == 2 else None


@contextmanager
def gpu_lock(gpu: str) -> Iterator[None]:
    """Holds the machine-wide lock of one GPU, waiting for it; the system frees it when the holder dies."""
    name = re.sub(r"[^A-Za-z0-9-]", "_", gpu)
    path = Path(tempfile.gettempdir()) / f"coda-synth-gpu-{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

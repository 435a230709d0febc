"""Which tests a machine runs: those marked gpu where there is one, those marked slow when asked for with -m slow."""

from __future__ import annotations

import os
import signal

import pytest

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read at import; matrices are small, and threads would wait for each other

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would children


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips aloud: -ra lists every reason."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if "slow" not in config.getoption("-m"):
        for item in slow:
            item.add_marker(pytest.mark.skip(reason="takes more than a minute; run with -m slow"))
    if gpu and not _has_gpu():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()

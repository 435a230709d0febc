"""A compile worker that takes as long as it is told to, or dies."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from coda_synth.evaluator.channel import Message, serve


def _kernels(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    return Message({"kernels": {f"{data['seconds']} {i}": [0, i] for i in range(8)}})


def _compile(data: Mapping[str, Any], blobs: tuple[memoryview, ...]) -> Message:
    if data.get("dies") and [0, 1] in data["kernels"]:
        os._exit(3)
    time.sleep(data["seconds"])
    return Message({})


if __name__ == "__main__":
    serve({"kernels": _kernels, "compile": _compile}, hello=lambda: {})

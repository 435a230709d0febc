"""Launches generated text on the driver that runs nothing (driver_stub.c) and prints what it saw as JSON.

A process of its own, started with the stub's folder in LD_LIBRARY_PATH and TRITON_LIBCUDA_PATH. Arguments: that folder,
then "hopper" or "descriptor" or "pointer", then tasks.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import triton
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver

STUB = ctypes.CDLL(f"{sys.argv[1]}/libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
STUB.stub_logged.restype = ctypes.c_uint64


class NoDevice(driver.CudaDriver):
    """Triton's own driver for CUDA, told what it would ask torch for."""

    def __init__(self) -> None:
        self.utils = driver.CudaUtils()
        self.launcher_cls = driver.CudaLauncher
        self.device, self.stream = 0, 0
        self.get_current_device = lambda: self.device
        self.get_current_stream = lambda device: self.stream

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def logged(call: Any) -> tuple[list[list[int]], int]:
    """The launches that a call makes (grid, stream, attributes, three parameters), and the tensor maps it encodes."""
    first, maps = STUB.stub_launches(), STUB.stub_maps()
    call()
    made = [[STUB.stub_logged(n, entry) for entry in range(6)] for n in range(first, STUB.stub_launches())]
    return made, STUB.stub_maps() - maps


def arguments(name: str, form: str) -> tuple[Generated, Any, dict[str, Any]]:
    """The generated text, its module, and what a launch of it takes."""
    spec, sig = task(name), signature(task(name))
    sizes = {symbol: 128 if symbol == "T" else 256 for symbol in next(iter(spec.time_shapes.values()))}
    hopper = form == "hopper"
    made = lower(read(worked_candidate(name), sig), sig, sizes, form=None if hopper else form, hopper=hopper)
    module = toolchain.load(made.source, name)
    known = make_inputs(spec, sig, Case("device", sizes, 1, "normal", "auto"), "cpu")
    known |= module.prepare(**{n: known[n] for n in made.prepare_arguments})
    known |= {b.name: torch.empty(b.shape, dtype=getattr(torch, b.dtype)) for b in made.buffers}
    return made, module, {sys.intern(n): known[n] for n in made.arguments}  # as the names in a written call


def seen(name: str, form: str) -> dict[str, Any]:
    made, module, given = arguments(name, form)
    launch = functools.partial(module.launch, **given)
    toolchain.build(made)
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **rest: hits.append(cache_hit)
    first = logged(launch)[0]
    triton.knobs.compilation.listener = None
    again, encoded = logged(launch)
    took = microseconds(launch)
    elsewhere = dict(where(module, launch))
    moved = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    on_new = logged(functools.partial(module.launch, **moved))[0]
    held = [weakref.ref(v) for v in moved.values() if isinstance(v, torch.Tensor)]
    kept = len(module._REPEATS)
    del moved
    logged(functools.partial(module.launch, **{n: v * 2 if isinstance(v, float) else v for n, v in given.items()}))
    return {
        "form": made.form,
        "launches": len(made.launches),
        "built ahead": bool(hits) and all(hits),
        "overlaps": [launch.overlap.early for launch in made.launches],
        "first": first,
        "again": again,
        "encoded again": encoded,
        "on new memory": on_new,
        "held": sum(reference() is not None for reference in held),
        "kept": kept,
        "kept with other scalars": len(module._REPEATS),
        "scalars": sum(isinstance(v, float) for v in given.values()),
        "microseconds": took,
        **elsewhere,
    }


def microseconds(call: Any) -> float:
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            call()
        rounds.append(1e6 * (time.perf_counter() - start) / 200)
    return min(rounds)


def where(module: Any, launch: Any) -> Iterator[tuple[str, Any]]:
    """A call that has been made, made again on another stream, on another device, watched, and where triton's own
    launchers are not as this release has them."""
    active = triton.runtime.driver.active
    active.stream = 5
    yield "on another stream", logged(launch)[0]
    active.stream, active.device = 0, 1
    active_before = [device for device, _ in module._REPEATS.values()]
    yield "on another device", logged(launch)[0]
    yield "devices", active_before + [device for device, _ in module._REPEATS.values()]
    active.device = 0
    names: list[str] = []
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(watch := lambda metadata: names.append(metadata.get()["name"]))
    yield "watched", logged(launch)[0]
    yield "told", names
    hook.remove(watch)
    wrap = vars(driver).pop("wrap_handle_tensordesc")
    module._REPEATS.clear()
    launch()
    yield "unknown triton", logged(launch)
    driver.wrap_handle_tensordesc = wrap
    module._REPEATS.clear()
    launch()


def dependent(name: str, form: str) -> list[int]:
    """The attributes of launches, at first and repeated, whose kernels may start before the last one ends."""
    _, module, given = arguments(name, form)
    plain = module._launched
    module._launched = lambda *given, **options: plain(*given, **options, launch_pdl=True)
    launch = functools.partial(module.launch, **given)
    return [entry[2] for _ in range(2) for entry in logged(launch)[0]]


if __name__ == "__main__":
    triton.runtime.driver.set_active(NoDevice())
    found = {name: seen(name, sys.argv[2]) for name in sys.argv[3:]}
    print(json.dumps({"tasks": found, "attributes": dependent(sys.argv[3], sys.argv[2])}))

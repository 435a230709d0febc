"""What a candidate is timed against, at its own precision and inputs: cuBLAS alone, PyTorch eager and compiled.

What torch.compile makes for a task, a dtype and a shape is kept from one evaluation to the next. It holds code and no
tensor: inputs, this evaluation's own, come with each call.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.inputs import Inputs
from coda_synth.evaluator.stopwatch import stage
from coda_synth.tasks.spec import Sizes, TaskSpec, Tensors

Reference = Callable[[], Tensors]
Function = Callable[..., Tensors]
NAMES = ("bare_gemm", "eager", "compile")
_KEPT = 32  # shapes of tasks, those used last; each is a few kernels


class Peers:
    """The versions of a task's reference, by name. compiler: torch.compile's backend, None to do without it.

    made: how often versions had to be made, rather than found.
    """

    def __init__(self, compiler: str | Callable[..., object] | None, kept: int = _KEPT) -> None:
        self.compiler, self.kept, self.made = compiler, kept, 0
        self._found: OrderedDict[tuple[object, ...], Mapping[str, Function]] = OrderedDict()

    def versions(self, task: TaskSpec, inputs: Inputs) -> Mapping[str, Function]:
        """Kept for shapes, dtypes and numbers like those of `inputs`: torch.compile takes each for a constant."""
        key = (task.name, task.source, *((name, *_like(value)) for name, value in inputs.items()))
        if key not in self._found:
            self.made += 1
            self._found[key] = self._made(task)
        self._found.move_to_end(key)
        while len(self._found) > self.kept:
            self._found.popitem(last=False)
        return self._found[key]

    def forget(self, task: TaskSpec) -> None:
        """What failed is made anew next time."""
        for key in [key for key in self._found if key[0] == task.name]:
            del self._found[key]

    def _made(self, task: TaskSpec) -> dict[str, Function]:
        if self.compiler is None:
            return {"eager": task.reference}
        torch._dynamo.config.recompile_limit = 1 << 20  # over it compiled code would silently be eager
        torch._dynamo.config.accumulated_recompile_limit = 1 << 20
        compiled: Function = torch.compile(_apart(task.reference), dynamic=False, backend=self.compiler)
        return {"eager": task.reference, "compile": compiled}


def _apart(function: Function) -> Function:
    """The same function with a code object of its own, to which torch.compile ties what it makes."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_filename=function.__code__.co_filename)
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _like(value: torch.Tensor | float) -> tuple[object, ...]:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else (value,)


def bare_gemm(task: TaskSpec, sizes: Sizes, dtype: torch.dtype, device: str = "cuda") -> Callable[[], None]:
    """The task's GEMMs alone, one torch.mm each, weights as nn.Linear keeps them: the bound to approach."""
    calls = []
    for gemm in task.gemms:
        m, n, k = (Dim.parse(d).size(sizes) for d in gemm)
        a = torch.randn(m, k, device=device, dtype=dtype)
        b = torch.randn(n, k, device=device, dtype=dtype) / k**0.5
        calls.append((a, b, torch.empty(m, n, device=device, dtype=dtype)))

    def run() -> None:
        for a, b, out in calls:
            torch.mm(a, b.t(), out=out)

    return run


def references(task: TaskSpec, inputs: Sequence[Inputs], peers: Peers) -> tuple[dict[str, list[Reference]], list[str]]:
    """The task's reference as its author wrote it and through torch.compile, one callable for each set of inputs, and
    a note for each that does not run here."""
    found: dict[str, list[Reference]] = {}
    notes = []
    for name, function in peers.versions(task, inputs[0]).items():
        try:
            with stage(f"baseline {name}"):
                found[name] = _run_once([_bound(function, own) for own in inputs])
        except Exception as error:  # a baseline that this machine cannot run is missing from the table, and said to be
            said = (str(error).splitlines() or [""])[0][:200]
            notes.append(f"the baseline {name} is missing: {type(error).__name__}: {said}")
            peers.forget(task)
            torch.cuda.empty_cache()
    return found, notes


def _run_once(runs: list[Reference]) -> list[Reference]:
    """Compiles what is to be compiled; what fails on the device must fail here."""
    for run in runs:
        run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return runs


def _bound(function: Function, inputs: Inputs) -> Reference:
    def run() -> Tensors:
        with torch.no_grad():
            return function(**inputs)

    return run


def line_up(
    task: TaskSpec, sizes: Sizes, sets: Sequence[Inputs], device: str, peers: Peers
) -> tuple[dict[str, Sequence[Callable[[], object]]], list[str]]:
    """Every baseline that works here, one run for each set of inputs, and notes on those that do not."""
    dtype = next(v.dtype for v in sets[0].values() if isinstance(v, torch.Tensor) and v.is_floating_point())
    found, notes = references(task, sets, peers)
    with stage("baseline bare_gemm"):
        return {"bare_gemm": [bare_gemm(task, sizes, dtype, device) for _ in sets], **found}, notes

"""Is a task worth solving? Finds what lets a wrong result pass or makes a time meaningless, with the evidence.

Runs the task's reference many times on its small shapes, so it belongs into the reference child. What each rule is
there for: docs/red-team.md, entries 13 to 20, 64 and 75.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from coda_synth.evaluator.buffers import fingerprint
from coda_synth.evaluator.correctness import (
    Oracle,
    OracleError,
    bounds,
    declared_dtypes,
    declared_inputs,
    exact_outputs,
    judge_outputs,
)
from coda_synth.evaluator.facts import Finding
from coda_synth.tasks.spec import STYLES, Sizes, TaskSpec
from torch.utils._python_dispatch import TorchDispatchMode

Inputs = Mapping[str, torch.Tensor | float | int]
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_SEEDS = (11, 12)


@torch.no_grad()
def lint(task: TaskSpec, dtype: str = "bfloat16") -> tuple[Finding, ...]:
    """Everything that makes the task degenerate; () for a sound one. Takes a second or two."""
    kind: torch.dtype = getattr(torch, dtype)
    if found := tuple(_repeatable(task, kind)):
        return found  # nothing that is measured on such a reference means anything
    if found := tuple(_finite(task, kind)):
        return found
    rules = (_zeros_pass, _constant_passes, _dead_inputs, _collapses, _baseline)
    return tuple(finding for rule in rules for finding in rule(task, kind))


# ---- the reference as a function ------------------------------------------------------------------------------------


def _repeatable(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """The same inputs give the same outputs, whatever was drawn and called before, and stay what they were."""
    inputs = _inputs(task, _largest(task), "normal", 0, dtype)
    before = {n: v.clone() for n, v in inputs.items() if isinstance(v, torch.Tensor)}
    with torch.random.fork_rng(devices=[]):
        first, second, third = (_seeded(task, inputs, seed) for seed in (1, 1, 2))
    changed = [n for n, v in before.items() if not torch.equal(v, torch.as_tensor(inputs[n]))]
    if changed:
        yield Finding("HiddenState", f"the reference changes its input {changed[0]} in place")
    for name in first:
        if not _same(first[name], second[name]):
            said = f"two calls on the same inputs differ in {name} by up to {_gap(first[name], second[name]):.3g}"
            yield Finding("HiddenState", f"{said}, with the same random state: something is kept between calls")
        elif not _same(first[name], third[name]):
            said = f"{name} differs by up to {_gap(first[name], third[name]):.3g} between two random states"
            yield Finding("Randomness", f"{said}; pass what is drawn (a mask) in as an input")


def _finite(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """Finite results for every style and shape, also in the arithmetic of the declared dtype."""
    for sizes in task.check_shapes:
        for style in STYLES:
            inputs = _inputs(task, sizes, style, 0, dtype)
            for name, value in task.reference(**inputs).items():
                if bad := int((~value.double().isfinite()).sum()):
                    place = f"{name} has {bad} of {value.numel()} elements that are not finite"
                    said = f"{place}, in {_short(dtype)}, inputs {style!r}, {dict(sizes)}"
                    yield Finding("Overflow", f"{said}: inf would be compared with inf")
                    return
            try:
                bounds(task, inputs, dtype, 0)
            except OracleError as error:
                yield Finding("Overflow", f"{error} (inputs {style!r}, {dict(sizes)})")
                return


# ---- what passes and should not -------------------------------------------------------------------------------------


def _zeros_pass(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """Where zeros pass, the output is smaller than what the tolerance allows."""
    oracle = _oracle(task, dtype)
    for name, allowed in oracle.outputs.items():
        if _passes(oracle, {name: torch.zeros_like(allowed.exact)}):
            largest, error = float(allowed.exact.abs().max()), float(allowed.element.max())
            said = f"zeros pass for {name}: its largest value is {largest:.3g}, the allowed error {error:.3g}"
            yield Finding("UnderTolerance", said)


def _constant_passes(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """Where one number, known from other inputs, passes for everything."""
    oracle, other = _oracle(task, dtype), _oracle(task, dtype, _SEEDS[1])
    for name, allowed in oracle.outputs.items():
        guess = other.outputs[name].exact.median()
        if guess != 0 and _passes(oracle, {name: torch.full_like(allowed.exact, float(guess))}):
            said = f"{name} is {float(guess):.4g} within tolerance, for these inputs and for others"
            spread = float(allowed.exact.max() - allowed.exact.min())
            yield Finding("ConstantOutput", f"{said}; its values differ by {spread:.3g} in all")


def _dead_inputs(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """An input matters if another draw of it changes some output, with inputs of some style, beyond tolerance."""
    for entry in task.inputs:
        if not any(_matters(task, entry.name, style, dtype) for style in STYLES):
            said = f"the input {entry.name} does not matter: with another draw of it every output stays"
            yield Finding("DeadOperator", f"{said} within tolerance, for all {len(STYLES)} styles of input")


def _matters(task: TaskSpec, name: str, style: str, dtype: torch.dtype) -> bool:
    for seed in (1, 2, 3):
        inputs = _inputs(task, _largest(task), style, seed, dtype)
        other = {**inputs, name: _inputs(task, _largest(task), style, seed + 10, dtype)[name]}
        if not _passes(bounds(task, inputs, dtype, seed), _exact(task, other)):
            return True
    return False


def _collapses(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """A matrix that could be replaced by its own average along a dim makes the GEMM a product with a vector."""
    inputs = _inputs(task, _largest(task), "normal", _SEEDS[0], dtype)
    oracle = _oracle(task, dtype)
    for entry in task.inputs:
        value = inputs[entry.name]
        if not isinstance(value, torch.Tensor) or value.dim() != 2 or not value.is_floating_point():
            continue
        for axis in (0, 1):
            mean = value.double().mean(axis, keepdim=True).expand_as(value)
            if value.shape[axis] > 2 and _passes(oracle, _exact(task, {**_wide(inputs), entry.name: mean})):
                said = f"{entry.name} can be replaced by its average along {entry.dims[axis]} and every output passes"
                yield Finding("GemvInDisguise", f"{said}: a product with a vector is enough")


def _baseline(task: TaskSpec, dtype: torch.dtype) -> Iterator[Finding]:
    """The reference as a baseline: GEMMs in the declared dtype, outputs in it, and inside its own tolerance."""
    inputs = _inputs(task, _largest(task), "normal", _SEEDS[0], dtype)
    with _Products() as seen:
        outputs = task.reference(**inputs)
    for name, operand in sorted(seen.found.items()):
        if operand != dtype:
            said = f"{name} runs on {_short(operand)} operands where the task declares {_short(dtype)}"
            yield Finding("BaselinePrecision", f"{said}: a baseline of another precision is no bar to clear")
    for name, declared in declared_dtypes(task, dtype).items():
        if outputs[name].dtype != declared:
            said = f"the reference gives {name} in {_short(outputs[name].dtype)}, the task declares {_short(declared)}"
            yield Finding("BaselinePrecision", said)
            return
    judged = judge_outputs(_oracle(task, dtype), {n: v.contiguous() for n, v in outputs.items()})
    if not judged.passed:
        said = f"the reference in {_short(dtype)} has {judged.error_ratio:.3g} of its own allowed error"
        yield Finding("BaselinePrecision", f"{said}: {judged.worst}")


class _Products(TorchDispatchMode):
    """Notes the dtype of every matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, torch.dtype] = {}

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).split(".")[1]
        if name in _PRODUCTS:
            self.found[f"{name} number {len(self.found) + 1}"] = args[-1].dtype
        return func(*args, **(kwargs or {}))


# ---- runs -----------------------------------------------------------------------------------------------------------


def _largest(task: TaskSpec) -> Sizes:
    return max(task.check_shapes, key=lambda sizes: sum(sizes.values()))


def _inputs(task: TaskSpec, sizes: Sizes, style: str, seed: int, dtype: torch.dtype) -> dict[str, Any]:
    return declared_inputs(task, task.make_inputs(sizes, torch.Generator().manual_seed(seed), style), dtype)


def _oracle(task: TaskSpec, dtype: torch.dtype, seed: int = _SEEDS[0]) -> Oracle:
    return bounds(task, _inputs(task, _largest(task), "normal", seed, dtype), dtype, seed)


def _seeded(task: TaskSpec, inputs: Inputs, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: value.clone() for name, value in task.reference(**inputs).items()}


def _exact(task: TaskSpec, inputs: Inputs) -> dict[str, torch.Tensor]:
    return exact_outputs(task, _wide(inputs))


def _wide(inputs: Inputs) -> dict[str, Any]:
    return {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in inputs.items()}


def _passes(oracle: Oracle, outputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether these outputs pass, each for itself, once they are rounded to their dtypes."""
    own = Oracle(oracle.task, {name: oracle.outputs[name] for name in outputs})
    rounded = {n: _rounded(v, own.outputs[n].dtype) for n, v in outputs.items()}
    return judge_outputs(own, rounded).passed


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype.itemsize == 1:  # a cast to fp8 that saturates
        value = value.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    return value.to(dtype).contiguous()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and fingerprint(a) == fingerprint(b)


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape else float("inf")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

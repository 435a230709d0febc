"""How close is close enough: the float64 oracle of a task, the error allowed around it, and the comparison.

The allowed error is measured, not guessed: see docs/correctness.md. Nothing here knows an operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from coda_synth.evaluator.codes import FORMATS, Unrounded, beyond
from coda_synth.evaluator.random_rounding import SIGNIFICANT_BITS, RandomRounding
from coda_synth.evaluator.relation import relation
from coda_synth.evaluator.where import picture, where
from coda_synth.tasks.spec import TaskSpec

RUNS = 16  # random-rounding runs of the reference
FEW = 2.0**-14  # of an output's elements: so many may have been lucky in all runs, and are looked at again
ELEMENT_FACTOR = 4.0  # allowed error of an element, over the largest that the runs saw there
NORM_FACTOR = 3.0  # the same for the norm of a row, a block or a whole output, which vary less
FLOOR_ULPS = 1.0  # beside it, in units in the last place of the exact result
ALONE = 0.25  # of the mean of its row, where rows may be one element each: see Allowed.alone
BLOCK = 32  # side of the blocks whose norms are compared

Inputs = Mapping[str, torch.Tensor | float | int]


class OracleError(Exception):
    """The task's own reference has no finite result for its own inputs: the task is at fault, not a candidate."""


@dataclass(frozen=True)
class Allowed:
    """One output: its exact value (float64) and the allowed error of each element and of each region's norm.

    codes: the fp8 format of an output that holds codes. Then exact is what was to be rounded to them, and an error is
    what lies beyond a code's own rounding. alone: how much of the mean of its row an element is allowed, if that is
    more and no other in its row is off; 0 for none. The reference's own roundings may cancel there.
    """

    exact: torch.Tensor
    dtype: torch.dtype
    element: torch.Tensor
    norms: Mapping[str, torch.Tensor]  # "row", "block", "whole"
    codes: torch.dtype | None = None
    alone: float = 0.0


@dataclass(frozen=True)
class Oracle:
    """What a candidate's outputs are held against, by output name."""

    task: str
    outputs: Mapping[str, Allowed]


@dataclass(frozen=True)
class Judgement:
    """error_ratio: the worst actual error over its allowed error (inf where it cannot be said); at most 1 passes.

    worst: the output and place of that ratio, in words. findings: one sentence for every rule that an output breaks.
    """

    error_ratio: float
    worst: str
    findings: tuple[str, ...]
    picture: str = ""
    outputs: tuple[str, ...] = ()  # those that broke a rule

    @property
    def passed(self) -> bool:
        return self.error_ratio <= 1.0


def declared_inputs(task: TaskSpec, inputs: Inputs, dtype: torch.dtype) -> dict[str, torch.Tensor | float | int]:
    """The inputs as candidate, baseline and oracle get them: rounded to the dtypes that the task declares."""
    kinds = {"activation": dtype, "float32": torch.float32, "int64": torch.int64}
    declared = {i.name: kinds[i.dtype] for i in task.inputs}
    return {n: v.to(declared[n]) if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}


def declared_dtypes(task: TaskSpec, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The dtype of every output."""
    return {o.name: dtype if o.dtype == "activation" else getattr(torch, o.dtype) for o in task.outputs}


@torch.no_grad()
def exact_outputs(task: TaskSpec, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The reference in float64 on these inputs as they are; of fp8 outputs, the numbers before they are rounded."""
    with Unrounded():  # type: ignore[no-untyped-call]
        return task.reference(**{n: _wide(v) for n, v in inputs.items()})


@torch.no_grad()
def bounds(task: TaskSpec, inputs: Inputs, dtype: torch.dtype, seed: int, spikes: bool = False) -> Oracle:
    """The exact outputs for these inputs (rounded to `dtype` first) and what may differ from them.

    seed: of the random roundings. spikes: whether the inputs have rows that are nearly one element each. Works where
    the inputs lie; takes 1 + RUNS float64 runs of the reference.
    Raises OracleError where the reference is not finite.
    """
    inputs = declared_inputs(task, inputs, dtype)
    exact = exact_outputs(task, inputs)
    device = next(v.device for v in exact.values())
    mode = RandomRounding(torch.Generator(device).manual_seed(seed))
    seen: dict[str, dict[str, torch.Tensor]] = {name: {} for name in exact}
    dtypes = declared_dtypes(task, dtype)
    for _ in range(RUNS):
        with mode:
            run = task.reference(**inputs)
        for name, value in run.items():
            error = mode.round(value.double(), dtypes[name]).double() - exact[name]
            for region, size in _sizes(error).items():
                seen[name][region] = torch.maximum(seen[name][region], size) if region in seen[name] else size
    allowed = {name: _allowed(name, exact[name], dtypes[name], seen[name]) for name in dtypes}
    return Oracle(task.name, {n: replace(a, alone=ALONE) for n, a in allowed.items()} if spikes else allowed)


def judge_outputs(oracle: Oracle, outputs: Mapping[str, torch.Tensor]) -> Judgement:
    """Holds every element, row, block and whole output against the oracle."""
    findings: list[str] = []
    wrong: list[str] = []
    worst, place, shown = 0.0, "exact", ""
    for name in sorted(set(outputs) - set(oracle.outputs)):
        findings.append(f"{name} is no output of {oracle.task}")
    for name, allowed in oracle.outputs.items():
        fault = _contract(name, allowed, outputs.get(name))
        ratio, said, broken = (math.inf, fault, [fault]) if fault else _compare(name, allowed, outputs[name])
        findings += broken
        wrong += [name] if broken else []
        shown = shown or (picture(_wrong(allowed, outputs[name])) if broken and not fault else "")
        if ratio > worst:
            worst, place = ratio, said
    if len(findings) and worst <= 1.0:
        worst, place = math.inf, findings[0]
    return Judgement(worst, place, tuple(findings), shown, tuple(wrong))


def few_are_wrong(oracle: Oracle, outputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether no rule is broken but that of elements, and that by few of them: chance may have made all runs small
    there."""
    for name, allowed in oracle.outputs.items():
        if _contract(name, allowed, outputs.get(name)):
            return False
        error = _sizes(_error(allowed, outputs[name]))
        if not all(bool((error[region] <= bound).all()) for region, bound in allowed.norms.items()):
            return False
        if int((~(_by_element(allowed, error["element"]) <= 1.0)).sum()) > max(1.0, FEW * allowed.exact.numel()):
            return False
    return True


def together(one: Oracle, other: Oracle) -> Oracle:
    """What is allowed after the runs of both, for the same inputs."""
    return Oracle(one.task, {name: _wider(allowed, other.outputs[name]) for name, allowed in one.outputs.items()})


def _wider(one: Allowed, other: Allowed) -> Allowed:
    norms = {region: torch.maximum(bound, other.norms[region]) for region, bound in one.norms.items()}
    return replace(one, element=torch.maximum(one.element, other.element), norms=norms)


def _wrong(allowed: Allowed, output: torch.Tensor) -> torch.Tensor:
    """Which elements are not finite or too far off."""
    return ~(_by_element(allowed, _error(allowed, output).abs()) <= 1.0)


def _error(allowed: Allowed, output: torch.Tensor) -> torch.Tensor:
    wide = output.double()
    return beyond(wide, allowed.exact, allowed.codes) if allowed.codes else wide - allowed.exact


def _by_element(allowed: Allowed, error: torch.Tensor) -> torch.Tensor:
    """The error of each element over what it is allowed."""
    ratios = error / allowed.element
    off = ratios > 1.0
    if not allowed.alone or error.dim() < 2 or not off.any():
        return ratios
    alone = off & (off.sum(dim=-1, keepdim=True) == 1)
    least = allowed.alone * allowed.element.mean(dim=-1, keepdim=True)
    return torch.where(alone, error / torch.maximum(allowed.element, least), ratios)


def _allowed(name: str, exact: torch.Tensor, dtype: torch.dtype, seen: Mapping[str, torch.Tensor]) -> Allowed:
    if not exact.isfinite().all() or not all(s.isfinite().all() for s in seen.values()):
        raise OracleError(f"the reference's output {name} is not finite for the task's own inputs")
    codes = dtype if dtype in FORMATS else None
    worked = torch.float32 if codes else dtype  # in which the numbers are made that codes round
    ulp = 2.0 ** (1 - SIGNIFICANT_BITS[worked])
    tiny = torch.finfo(worked).tiny * ulp  # the smallest step that the dtype can make
    floor = {region: FLOOR_ULPS * ulp * size + tiny for region, size in _sizes(exact).items()}
    norms = {r: NORM_FACTOR * seen[r] + floor[r] for r in seen if r != "element"}
    return Allowed(exact, dtype, ELEMENT_FACTOR * seen["element"] + floor["element"], norms, codes)


def _sizes(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Magnitudes by region: each element; the 2-norm of each row, each BLOCK x BLOCK block, and the whole."""
    matrix = values.reshape(1, -1) if values.dim() < 2 else values.flatten(0, -2)
    rows, columns = matrix.shape
    padded = F.pad(matrix, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    return {
        "element": values.abs(),
        "row": torch.linalg.vector_norm(matrix, dim=1),
        "block": torch.linalg.vector_norm(blocks, dim=(1, 3)),
        "whole": torch.linalg.vector_norm(matrix),
    }


def _contract(name: str, allowed: Allowed, output: torch.Tensor | None) -> str:
    """What the output breaks before its numbers count, or ""."""
    if output is None:
        return f"{name} is missing"
    if output.shape != allowed.exact.shape:
        return f"{name} has the shape {list(output.shape)}; it must be {list(allowed.exact.shape)}"
    if output.dtype != allowed.dtype:
        return f"{name} is {_short(output.dtype)}; it must be {_short(allowed.dtype)}"
    if not output.is_contiguous():
        return f"{name} is not contiguous"
    return ""


def _compare(name: str, allowed: Allowed, output: torch.Tensor) -> tuple[float, str, list[str]]:
    """The worst ratio, its place in words, and a sentence for each rule broken."""
    wide = output.double()
    finite = wide.isfinite()
    if not finite.all():
        said = f"{name}: {where(~finite)} not finite (NaN or Inf), where the exact result is"
        return math.inf, said, [said]
    error = _sizes(_error(allowed, output))
    worst, place, broken = 0.0, f"{name} is exact", []
    for ratio, words in _ratios(name, allowed, error, output):
        if ratio > 1.0:
            broken.append(words)
        if ratio > worst:
            worst, place = ratio, words
    if worst > 1.0 and (how := relation(allowed.exact, wide)):
        broken[0] = f"{broken[0]}; {how}"
    return worst, place, broken


def _ratios(
    name: str, allowed: Allowed, error: Mapping[str, torch.Tensor], output: torch.Tensor
) -> Iterator[tuple[float, str]]:
    """The worst ratio of each kind of region, and what is to say about it."""
    ratios = _by_element(allowed, error["element"])
    at = _argmax(ratios)
    ratio = float(ratios[at])
    wrong = f"{where(ratios > 1.0)} too far off; worst " if ratio > 1.0 else "worst "
    values = f"is {float(output[at]):.6g}, exact {float(allowed.exact[at]):.6g}"
    values += " before it is rounded to a code" if allowed.codes else ""
    beyond_it = " beyond that" if allowed.codes else ""
    yield ratio, f"{name}: {wrong}at {list(at)}: {values}, allowed error{beyond_it} {float(allowed.element[at]):.2g}"
    for region, bound in allowed.norms.items():
        ratios = error[region] / bound
        at = _argmax(ratios)
        ratio, is_at = float(ratios[at]), float(error[region][at])
        words = f"{name}: the error's norm over {_region(region, at)} is {is_at:.3g}, allowed {float(bound[at]):.3g}"
        yield ratio, words


def _region(region: str, at: tuple[int, ...]) -> str:
    if region == "row":
        return f"row {at[0]}"
    if region == "block":
        (top, left) = (index * BLOCK for index in at)
        return f"rows {top} to {top + BLOCK - 1}, columns {left} to {left + BLOCK - 1}"
    return "the whole output"


def _argmax(values: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(values.argmax(), values.shape))


def _wide(value: torch.Tensor | float | int) -> torch.Tensor | float | int:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

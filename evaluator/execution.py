"""Runs a lowered program on tensors that the judge owns, interpreted or on a GPU, and sees what it did to them."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import torch
from coda_synth.coda_api import toolchain
from coda_synth.coda_api.generated import Generated
from coda_synth.evaluator.buffers import Guarded, fingerprint, guarded, guarded_copy
from coda_synth.evaluator.facts import Fault
from coda_synth.evaluator.inputs import Inputs
from coda_synth.evaluator.where import where

_AGAIN = 32  # runs of what was found to differ, on a GPU
_SMALL = 256  # elements of all outputs: what the interpreter can afford to run twice


@dataclass(frozen=True)
class Bound:
    """A lowered program with every argument of its launch in place, ready to run again and again.

    kept: the values of the inputs that a launch overwrites, which `restore` puts back before a run.
    """

    generated: Generated
    module: ModuleType
    inputs: Mapping[str, Guarded]  # tensors that the launch reads: inputs and prepared tensors
    buffers: Mapping[str, Guarded]
    numbers: Mapping[str, float]
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @functools.cached_property
    def arguments(self) -> dict[str, torch.Tensor | float]:
        """What `launch` takes, by names that are interned as those in a written call are: Python finds them faster."""
        known: dict[str, torch.Tensor | float] = dict(self.numbers)
        known |= {name: g.tensor for name, g in (*self.inputs.items(), *self.buffers.items())}
        return {sys.intern(name): known[name] for name in self.generated.arguments}

    def outputs(self) -> dict[str, torch.Tensor]:
        """The program's outputs by name, as they stand in their buffers and in the inputs that they overwrite."""
        found = {out: self.buffers[b.name].tensor for b in self.generated.buffers for out in b.outputs}
        overwritten = self.generated.in_place.items()
        return found | {out: self.inputs[name].tensor for name, outs in overwritten for out in outs}

    def reset(self) -> None:
        """As before the first run: buffers are poisoned, in-place inputs have their values."""
        for buffer in self.buffers.values():
            buffer.poison()
        self.restore()

    def restore(self) -> None:
        """Undoes what a launch did to its in-place inputs."""
        for name, value in self.kept.items():
            self.inputs[name].tensor.copy_(value)

    def launch(self) -> None:
        self.module.launch(**self.arguments)


def bind(generated: Generated, inputs: Inputs, device: str) -> Bound:
    """Prepares the weights and allocates what the launch needs; runs no kernel of the program."""
    simulated = device == "cpu" and any(launch.gluon for launch in generated.launches)
    module = _simulated(generated.source) if simulated else _loaded(generated.source)
    wanted = {name: inputs[name] for name in generated.prepare_arguments}
    prepared = dict(module.prepare(**wanted)) if wanted else {}
    known = {**inputs, **prepared}
    made = {b.name: guarded(b.shape, getattr(torch, b.dtype), device) for b in generated.buffers}
    read = {name: known[name] for name in generated.arguments if name not in made}
    tensors = {name: guarded_copy(v, device) for name, v in read.items() if isinstance(v, torch.Tensor)}
    kept = {name: tensors[name].tensor.clone() for name in generated.in_place}
    return Bound(generated, module, tensors, made, {n: float(v) for n, v in read.items() if n not in tensors}, kept)


def run_checked(bound: Bound) -> list[Fault]:
    """One run from poisoned buffers, and more that must give the same bits: on a GPU always, in the interpreter where
    the outputs are small. Returns the faults; the outputs stay in the buffers."""
    read = {name: g for name, g in bound.inputs.items() if name not in bound.kept}
    written = {**bound.buffers, **{name: bound.inputs[name] for name in bound.kept}}
    before = {name: fingerprint(g.tensor) for name, g in read.items()}
    first = rerun(bound)
    outside = (name for name, g in written.items() if not g.intact())
    changed = (name for name, g in read.items() if fingerprint(g.tensor) != before[name])
    faults = [Fault("WritesOutside", f"it writes outside its buffer {name!r}", name) for name in outside]
    faults += [Fault("ChangesInput", f"it changes its input {name!r}", name) for name in changed]
    for _ in range(0 if faults else _more_runs(bound)):
        if unlike := [n for n, bits in rerun(bound).items() if bits != first[n]]:
            said = f"two runs on the same input give different bits in {', '.join(unlike)}"
            return [Fault("NotDeterministic", f"{said}; {how_runs_differ(bound, unlike)}")]
    return faults or unwritten(bound)


def how_runs_differ(bound: Bound, names: Sequence[str]) -> str:
    """How often some outputs of a run differ from those of a first one, where and by how much, in words."""
    rerun(bound)
    kept = {name: bound.outputs()[name].clone() for name in names}
    repeats, seen, first = _AGAIN if _on_gpu(bound) else _AGAIN // 8, 0, ""
    for _ in range(repeats):
        rerun(bound)
        masks = {name: _unlike_bits(value, kept[name]) for name, value in bound.outputs().items() if name in kept}
        found = {name: mask for name, mask in masks.items() if bool(mask.any())}
        seen += bool(found)
        first = first or "; ".join(_by_how_much(bound.outputs()[n], kept[n], m, n) for n, m in found.items())
    return f"{seen} of {repeats} more runs differ from another one{': ' * bool(first)}{first}"


def _unlike_bits(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    unlike: torch.Tensor = value.view(bits) != other.view(bits)
    return unlike


def _by_how_much(value: torch.Tensor, other: torch.Tensor, mask: torch.Tensor, name: str) -> str:
    """Where NaN meets a number the size is NaN."""
    size = float((value[mask].double() - other[mask].double()).abs().max())
    return f"{name}: {where(mask)} by up to {size:.3g}, the largest is {float(other.double().abs().max()):.3g}"


def unwritten(bound: Bound) -> list[Fault]:
    """Outputs in which something is that no value of the program can be: memory that nobody wrote."""
    found = []
    for buffer in bound.generated.buffers:
        holder = bound.buffers[buffer.name]
        if buffer.outputs and (count := holder.unwritten()):
            said = f"{count:,} of {holder.tensor.numel():,} elements of its output {', '.join(buffer.outputs)!r}"
            said += " are what nobody wrote: never stored, or made from memory that holds no value"
            found.append(Fault("Unwritten", said, buffer.name, buffer.call, buffer.value))
    return found


def rerun(bound: Bound) -> dict[str, int]:
    """One run from poisoned buffers; the fingerprints of its outputs."""
    bound.reset()
    bound.launch()
    if _on_gpu(bound):
        torch.cuda.synchronize()
    return {name: fingerprint(value) for name, value in bound.outputs().items()}


def _more_runs(bound: Bound) -> int:
    if _on_gpu(bound):
        return 1
    return 4 if sum(g.tensor.numel() for g in bound.buffers.values()) <= _SMALL else 0


def _on_gpu(bound: Bound) -> bool:
    return any(g.tensor.is_cuda for g in bound.buffers.values())


@functools.lru_cache(maxsize=32)
def _loaded(source: str) -> ModuleType:
    return toolchain.load(source, _name(source))


@functools.lru_cache(maxsize=32)
def _simulated(source: str) -> ModuleType:
    """Kernels that only Hopper can run."""
    from coda_synth.evaluator import hopper_simulator  # of a process that interprets

    return hopper_simulator.load(source, _name(source))


def _name(source: str) -> str:
    return f"candidate_{hashlib.sha256(source.encode()).hexdigest()[:12]}"

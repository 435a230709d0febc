"""What a program's kernels are made of, by timing variants that leave a part out; and the peaks of the device at hand.

A variant is a program of its own: one kernel of the candidate whose epilogue stores the bare product and nothing else.
What the candidate's launch takes beyond it is its epilogue. For the profile alone: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import torch
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Call, InputSpec, Kernel, OutputSpec, Program, Ref, Signature, Value
from coda_synth.coda_api.storage import ref_dtype
from coda_synth.evaluator.execution import Bound, bind
from coda_synth.evaluator.inputs import Inputs
from coda_synth.evaluator.measured import Parts
from coda_synth.evaluator.race import Clock, Lap, Run
from coda_synth.evaluator.timing import launch_times

_OUT = "product"
_RUNS = 7
_COPY = {"cuda": 1 << 30, "cpu": 1 << 24}  # bytes
_SIDE = {"cuda": 8192, "cpu": 256}  # of the matrices of a product


def parts(program: Program, signature: Signature, sizes: Mapping[str, int], bound: Bound, clock: Clock) -> Parts:
    """Times every GEMM with an epilogue, of a candidate that was bound for `sizes`, without it, by turns with the
    candidate, and the device's peaks.

    A variant that has no text or does not run is a note. Runs apart from the measurement, which it must not disturb.
    """
    device = next(iter(bound.buffers.values())).tensor.device.type
    variants: dict[str, Bound] = {}
    notes = []
    for call in program.live_calls():
        if isinstance(call.unit, Kernel) and call.unit.gemm and _computes(program, call):
            try:
                variants[call.name] = _variant(program, signature, sizes, bound.generated, call, device)
            except Exception as error:  # no verdict depends on it
                said = (str(error).splitlines() or [""])[0][:200]
                notes.append(f"{call.name} could not be timed without its epilogue: {type(error).__name__}: {said}")
    bare_ms, whole_ms = _by_turns(bound, variants, clock)
    del variants
    copy, matmul = peaks(device, signature.dtype, clock)
    return Parts(bare_ms, whole_ms, copy, matmul, tuple(notes))


def _computes(program: Program, call: Call) -> bool:
    """Whether a kernel does more with its product than to store it."""
    return any(call.unit.outputs[name].word != "gemm" for name in program.live_outputs(call))


def _variant(
    program: Program, signature: Signature, sizes: Mapping[str, int], generated: Generated, call: Call, device: str
) -> Bound:
    """One call's product alone, run once."""
    made, needs = bare(program, signature, call)
    local = {symbol: dim.size(sizes) for symbol, dim in call.binding.items()}
    hopper, schedules = generated.form == "hopper", {_OUT: generated.schedules[call.name]}
    grid = next(launch.programs for launch in generated.launches if launch.call == call.name)
    text = lower(made, needs, local, form=generated.form, schedules=schedules, processors=grid, hopper=hopper)
    inputs: Inputs = {
        spec.name: _random(tuple(d.size(local) for d in spec.type.dims), spec.dtype, device) for spec in needs.inputs
    }
    found = bind(text, inputs, device)
    found.launch()  # compiles
    return found


def _by_turns(bound: Bound, variants: Mapping[str, Bound], clock: Clock) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of the variants and of the same calls of the candidate: equally warm, since on a card that is
    limited by its power what runs alone runs faster. Without a tracer only the variants' are known."""
    if torch.cuda.is_initialized():
        whole, *apart = launch_times(bound, *variants.values())
        if whole.launch_ms:
            bare_ms = {call: sum(seen.launch_ms[_OUT]) for call, seen in zip(variants, apart, strict=True)}
            return bare_ms, {call: sum(whole.launch_ms[call]) for call in variants}
    return {call: median(clock.laps([Lap(variant.launch)] * _RUNS)) for call, variant in variants.items()}, {}


def bare(program: Program, signature: Signature, call: Call) -> tuple[Program, Signature]:
    """A kernel's GEMM as a program: the same mainloop and tile order, the product stored as it is. Its symbols are the
    kernel's own."""
    kernel = call.unit
    assert isinstance(kernel, Kernel) and kernel.gemm is not None
    params = tuple(p for p in kernel.params if p.name in (kernel.gemm.a, kernel.gemm.b))
    product = Value("gemm", rows=kernel.rows, cols=kernel.cols)
    unit = replace(kernel, params=params, outputs={_OUT: product})
    binding = {symbol: Dim.parse(symbol) for symbol in call.binding}
    alone = Call(_OUT, unit, {p.name: Ref(input=p.name) for p in params}, binding, call.line)
    made = Program(
        program.name, params, (alone,), {_OUT: Ref(call=_OUT, output=_OUT)}, {unit.name: unit}, "", program.source
    )
    inputs = tuple(
        InputSpec(p.name, p.type, ref_dtype(program, signature, call.args[p.name]), "activation") for p in params
    )
    outputs = (OutputSpec(_OUT, (kernel.rows, kernel.cols), signature.dtype),)
    return made, Signature(program.name, inputs, outputs, signature.dtype)


def peaks(device: str, dtype: str, clock: Clock) -> tuple[float, float]:
    """(bytes per second of a large copy, reads and writes counted; flops per second of a large product of random
    data), measured once in a process."""
    if (device, dtype) not in _peaks:
        count, side = _COPY[device], _SIDE[device]
        source = torch.zeros(count, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy_s = _seconds(lambda: target.copy_(source), clock)
        del source, target
        a, b = (_random((side, side), dtype, device) for _ in range(2))
        out = torch.empty_like(a)
        _peaks[device, dtype] = 2 * count / copy_s, 2 * side**3 / _seconds(lambda: torch.mm(a, b, out=out), clock)
    return _peaks[device, dtype]


_peaks: dict[tuple[str, str], tuple[float, float]] = {}


def _seconds(run: Run, clock: Clock) -> float:
    return median(clock.laps([Lap(run)] * (2 * _RUNS))[_RUNS:]) / 1e3


def _random(shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(1)
    made: torch.Tensor = torch.randn(shape, device=device, generator=generator) / shape[-1] ** 0.5
    kind: torch.dtype = getattr(torch, dtype)
    return made.to(kind)

"""One task at one shape, ready to be timed: our program and every peer whose outputs were found right."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from coda_synth.coda_api import cost, toolchain
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Call, Kernel, walk
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator.baselines import bare_gemm
from coda_synth.evaluator.child import Child
from coda_synth.evaluator.compilers import Compilers
from coda_synth.evaluator.execution import Bound, bind
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.inputs import exact, make_inputs
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.parts import peaks
from coda_synth.evaluator.race import Clock, Lap, Run, WallClock, rounds
from coda_synth.evaluator.serial import to_data
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import DeviceClock, launch_times
from coda_synth.tasks.catalog import worked_candidate
from coda_synth.tasks.spec import TaskSpec, Tensors

from benchmarks.peers import peers

TINY = Schedule(block_m=32, block_n=64, block_k=32, stages=1, warps=1, group_m=2)
LASTING_MS = 100.0  # about, of the runs of a lap that lasts
_WORSE, _LEAST = 4.0, 4e-3  # a peer may err this much more than eager, or than bf16's roundoff


class Failed(Exception):
    """A task that cannot be timed here; the message says why, in a line."""


@dataclass(frozen=True)
class Contest:
    """runs: every contestant by name, "ours" always, "bare_gemm" where the task has a GEMM. without: outputs that a
    peer does not give. left_out: peers that are not among the runs, with the reason."""

    spec: TaskSpec
    sizes: Mapping[str, int]
    bound: Bound
    runs: Mapping[str, Run]
    without: Mapping[str, list[str]]
    left_out: tuple[str, ...]
    error: float
    eager_error: float
    bytes_ms: float
    clock: Clock

    def rounds(self, seconds: float, lasts: bool) -> dict[str, list[float]]:
        laps = {name: Lap(run) for name, run in self.runs.items()}
        laps["ours"] = Lap(self.runs["ours"], self.bound.restore)
        if lasts:
            return lasting(laps, seconds, self.clock)
        return times({name: [lap] for name, lap in laps.items()}, seconds, self.clock)

    def facts(self) -> dict[str, Any]:
        on_gpu = next(iter(self.bound.buffers.values())).tensor.is_cuda
        launches = launch_times(self.bound)[0].launch_ms if on_gpu else {}
        return {
            "launch_ms": {call: sum(each) for call, each in launches.items()},
            "sizes": dict(self.sizes),
            "form": self.bound.generated.form,
            "schedules": {call: str(s) for call, s in self.bound.generated.schedules.items()},
            "error": self.error,
            "eager_error": self.eager_error,
            "bytes_ms": self.bytes_ms,
            "without": dict(self.without),
            "left_out": list(self.left_out),
        }


def times(laps: Mapping[str, Sequence[Lap]], seconds: float, clock: Clock) -> dict[str, list[float]]:
    """Milliseconds of each contestant in every round of a race; without seconds to race, three single runs."""
    if seconds:
        return rounds(laps, seconds, clock)
    turns = [{name: clock.laps(own[:1])[0] for name, own in laps.items()} for _ in range(3)]
    return {name: [turn[name] for turn in turns] for name in laps}


def repeated(run: Run, count: int) -> Run:
    """So many runs as one, for a lap as long as the card needs to settle at its clock."""

    def many() -> None:
        for _ in range(count):
            run()

    return many


def lasting(laps: Mapping[str, Lap], seconds: float, clock: Clock) -> dict[str, list[float]]:
    """As `times`, of a run among as many in a row as take a tenth of a second: a card at its power limit settles at
    the clock that such a load leaves it. Without seconds to race, single runs."""
    once = {name: clock.laps([lap] * 2)[1] for name, lap in laps.items()}
    counts = {name: max(1, round(LASTING_MS / ms)) if seconds else 1 for name, ms in once.items()}
    many = {name: [Lap(repeated(lap.run, counts[name]), lap.prepare)] for name, lap in laps.items()}
    return {name: [ms / counts[name] for ms in found] for name, found in times(many, seconds, clock).items()}


def ready(spec: TaskSpec, options: argparse.Namespace, versions: Mapping[str, str], clock: Clock) -> Contest:
    """Compiles and checks everything once. options: device, tiny, shape, autotune. Raises Failed."""
    try:
        return _ready(spec, options, versions, clock)
    except Exception as error:  # a task that fails must not end a benchmark of many
        raise Failed(one_line(error)) from error


def _ready(spec: TaskSpec, options: argparse.Namespace, versions: Mapping[str, str], clock: Clock) -> Contest:
    device, sig = options.device, signature(spec)
    sizes = tiny_sizes(spec) if options.tiny else spec.time_shapes[options.shape]
    inputs = make_inputs(spec, sig, Case("device", sizes, 1, "normal", "auto"), device)
    bound = bind(lowered(spec, sizes, device, options.tiny), inputs, device)
    bound.launch()
    expected = spec.reference(**exact(inputs))
    error, eager_error = errors(bound.outputs(), expected), errors(spec.reference(**inputs), expected)
    runs: dict[str, Run] = {"ours": bound.launch}
    if spec.gemms:
        runs["bare_gemm"] = bare_gemm(spec, sizes, torch.bfloat16, device)
    without, left_out = {}, []
    for name, made in _others(spec, inputs, options, versions).items():
        try:
            run = made()
            without[name] = checked(run(), expected, eager_error)
            runs[name] = run
        except Exception as failure:
            left_out.append(f"{name} is left out of {spec.name}: {one_line(failure)}")
            if device == "cuda":
                torch.cuda.empty_cache()
    copied, _ = peaks(device, "bfloat16", clock)
    lost = {name: outputs for name, outputs in without.items() if outputs}
    least_ms = 1e3 * cost.task_bytes(sig, sizes) / copied
    return Contest(spec, sizes, bound, runs, lost, tuple(left_out), error, eager_error, least_ms, clock)


def _others(
    spec: TaskSpec, inputs: Mapping[str, Any], options: argparse.Namespace, versions: Mapping[str, str]
) -> dict[str, Callable[[], Callable[[], Tensors]]]:
    """By name, what makes a peer of the task's inputs."""
    torch._dynamo.reset()
    modes: dict[str, Any] = {"eager": spec.reference}
    if options.device == "cuda":
        modes["compile"] = torch.compile(spec.reference, dynamic=False)
        if options.autotune:
            mode = "max-autotune-no-cudagraphs"
            modes["max_autotune"] = torch.compile(spec.reference, dynamic=False, mode=mode)
    bound = {n: functools.partial(functools.partial, _without_graph, f, inputs) for n, f in modes.items()}
    return bound | {n: functools.partial(peer, inputs) for n, peer in peers(spec.name, versions).items()}


def _without_graph(function: Callable[..., Tensors], inputs: Mapping[str, Any]) -> Tensors:
    with torch.no_grad():
        return function(**inputs)


def lowered(
    spec: TaskSpec, sizes: Mapping[str, int], device: str, tiny: bool, text: str | None = None, overlap: bool = True
) -> Generated:
    """A candidate, the worked one by default, for this device: default schedules, small ones in the interpreter."""
    sig = signature(spec)
    program = read(worked_candidate(spec.name) if text is None else text, sig)
    if device == "cuda":
        hopper = torch.cuda.get_device_capability() == (9, 0)
        return lower(program, sig, sizes, hopper=hopper, overlap=overlap)
    calls = [call for call in program.calls if isinstance(call.unit, Kernel)] if tiny else []
    return lower(program, sig, sizes, schedules={c.name: _tiny(c, sizes) for c in calls}, processors=3)


def _tiny(call: Call, sizes: Mapping[str, int]) -> Schedule:
    """TINY, or the least that holds whole groups."""
    groups = [g for v in walk(call.unit.outputs) if isinstance(g := v.attrs.get("group"), Dim)]
    widest = max([TINY.block_n, *(call.dim(g).size(sizes) for g in groups)])
    return Schedule(TINY.block_m, widest, TINY.block_k, TINY.stages, TINY.warps, TINY.group_m)


def compile_ahead(specs: Sequence[TaskSpec], shape: str) -> None:
    """Leaves the worked candidates' kernels for the GPU at hand in triton's cache, several at once."""
    environment = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    groups = [Compilers(lambda: Child("coda_synth.evaluator.build", environment=environment)) for _ in range(4)]
    props = torch.cuda.get_device_properties(0)
    try:
        for spec, compilers in zip(specs, itertools.cycle(groups)):
            case = Case("device", spec.time_shapes[shape], 1, "normal", "auto", {}, props.multi_processor_count)
            head = {"source": worked_candidate(spec.name), "facts": to_data(facts_of(spec, "bfloat16"))}
            compilers.start({**head, "schedules": {}, "device": props.name, "cases": to_data([case])})
    finally:
        for compilers in groups:
            compilers.wait()
            compilers.close()


def tiny_sizes(spec: TaskSpec) -> Mapping[str, int]:
    """A check shape whose matrices TMA would take."""
    return spec.check_shapes[1]


def worst_row(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative norm of a row's error; a row of zeros counts by its absolute error."""
    a, e = (v.double().reshape(v.shape[0] if v.dim() > 1 else 1, -1) for v in (actual, expected))
    scale = e.norm(dim=1)
    return float(((a - e).norm(dim=1) / torch.where(scale > 0, scale, 1.0)).max())


def errors(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """The worst over the outputs in `actual`."""
    return max(worst_row(value.detach(), expected[name]) for name, value in actual.items())


def checked(actual: Tensors, expected: Tensors, eager_error: float) -> list[str]:
    """The outputs that are not there; raises ValueError where those that are there are wrong."""
    error = errors(actual, expected)
    if not error <= _WORSE * max(eager_error, _LEAST):
        raise ValueError(f"its outputs are wrong: error {error:.1e}, eager's {eager_error:.1e}")
    return [name for name in expected if name not in actual]


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


@functools.cache
def clock_of(device: str) -> Clock:
    """The device's clock; on a CPU also prepares the interpreter."""
    if device == "cuda":
        return DeviceClock()
    toolchain.repair_interpreter()
    return WallClock()


def machine(device: str) -> str:
    """What measures, for the head of a table."""
    if device == "cpu":
        return f"a CPU, torch {torch.__version__}: nothing here is a measurement"
    state = driver_state("clocks.sm,power.draw,driver_version")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {state}"

"""One shape, measured in the candidate child: race against the baselines, each launch, graph, preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import torch
from coda_synth.evaluator import baselines, timing
from coda_synth.evaluator.execution import Bound, bind, rerun
from coda_synth.evaluator.facts import TaskFacts
from coda_synth.evaluator.inputs import Inputs, rolled
from coda_synth.evaluator.measured import Measured, Sample
from coda_synth.evaluator.race import Clock, Lap, Run, race
from coda_synth.evaluator.stopwatch import stage
from coda_synth.tasks.spec import Sizes, TaskSpec


def measure(
    bound: Bound,
    task: TaskSpec,
    facts: TaskFacts,
    sizes: Sizes,
    inputs: Inputs,
    seconds: float,
    clock: Clock,
    known: baselines.Peers,
) -> tuple[Measured, list[Bound]]:
    """Times a bound candidate for about `seconds`, beside every baseline that runs here. Also gives the candidate once
    for each set of inputs, its outputs those of its last timed run; set i's rows are the first set's, moved down.
    known: the baselines that were compiled before."""
    device = next(iter(bound.buffers.values())).tensor.device.type
    count = timing.sets_that_fit(bound, 1 + len(baselines.NAMES)) if device == "cuda" else 3
    with stage("bind"):
        sets = [rolled(inputs, facts, shift(i, facts, sizes)) for i in range(count)]
        programs = [bound, *(bind(bound.generated, own, device) for own in sets[1:])]
    peers, notes = baselines.line_up(task, sizes, sets, device, known)
    candidate = [Lap(p.launch, p.restore) for p in programs]
    with stage("race"):
        samples = race(
            {"candidate": candidate, **{n: [Lap(run) for run in runs] for n, runs in peers.items()}}, seconds, clock
        )
    state = timing.clocks() if device == "cuda" else ""
    with stage("timed outputs"):
        bits = tuple(timing.output_bits(p) for p in programs)
        reruns = tuple(rerun(p) for p in programs)
    with stage("graph"):
        graph = _graph(bound, peers, notes, seconds / 2, clock) if device == "cuda" else {}
    with stage("tracer"):
        traced = _traced(bound, notes)
    with stage("prepare"):
        prepare_ms = _prepare_ms(bound, inputs, clock)
    seen = traced.launch_ms, prepare_ms, bits, reruns, tuple(notes), state, clock.name, traced.between_ms
    found = Measured(samples, graph, *seen)
    return found, programs


def shift(number: int, facts: TaskFacts, sizes: Sizes) -> int:
    """By how many rows the inputs of a set are moved down: each set's are new to the cache and to whoever replays."""
    return number * (sizes[facts.row] // 3 + 1) % sizes[facts.row] if facts.row else 0


def _graph(
    bound: Bound, peers: Mapping[str, Sequence[Run]], notes: list[str], seconds: float, clock: Clock
) -> dict[str, Sample]:
    """Candidate and bare GEMMs as CUDA graphs, for programs of several launches."""
    if len(bound.generated.launches) < 2:
        return {}
    runs = {"candidate": bound.launch, **{n: peers[n][0] for n in ("bare_gemm",) if n in peers}}
    before: dict[str, Run] = {"candidate": bound.restore}
    try:
        laps = {name: [Lap(timing.captured(run), before.get(name, _nothing))] for name, run in runs.items()}
        return race(laps, seconds, clock)
    except RuntimeError as error:
        notes.append(f"no CUDA graph could be made: {str(error).splitlines()[0][:200]}")
        return {}


def _nothing() -> None:
    """Nothing to put back."""


def _traced(bound: Bound, notes: list[str]) -> timing.Traced:
    try:
        (found,) = timing.launch_times(bound)
    except (RuntimeError, AssertionError):  # torch has no access to the driver's tracer
        found = timing.Traced({}, 0.0)
    if not found.launch_ms:
        notes.append("the driver's tracer saw no launches, so the time of each is not known")
    return found


def _prepare_ms(bound: Bound, inputs: Inputs, clock: Clock) -> float:
    wanted = {name: inputs[name] for name in bound.generated.prepare_arguments}
    if not wanted:
        return 0.0
    with torch.no_grad():
        return median(clock.laps([Lap(lambda: bound.module.prepare(**wanted))] * 6)[1:])

"""One shape, measured in the candidate child: race against the baselines, each launch, graph, preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from coda_synth.evaluator import baselines, timing
from coda_synth.evaluator.execution import Bound
from coda_synth.evaluator.inputs import Inputs
from coda_synth.evaluator.measured import Measured, Sample
from coda_synth.tasks.spec import Sizes, TaskSpec


def measure(bound: Bound, task: TaskSpec, sizes: Sizes, inputs: Inputs, seconds: float) -> Measured:
    """Times a bound candidate for about `seconds`, beside every baseline that runs here."""
    sets = timing.sets_that_fit(bound, 1 + len(baselines.NAMES))
    programs = timing.copies(bound, sets)
    peers, notes = baselines.line_up(task, sizes, inputs, sets)
    fresh = {"candidate": [p.restore for p in programs]}
    samples = timing.race({"candidate": [p.launch for p in programs], **peers}, seconds, fresh)
    clocks = timing.clocks()
    bits = tuple(timing.output_bits(p) for p in programs)
    graph = _graph(bound, peers, notes, seconds / 2)
    launch_ms = _launch_ms(bound, notes)
    return Measured(samples, graph, launch_ms, _prepare_ms(bound, inputs), bits, tuple(notes), clocks)


def _graph(
    bound: Bound, peers: Mapping[str, Sequence[timing.Run]], notes: list[str], seconds: float
) -> dict[str, Sample]:
    """Candidate and bare GEMMs as CUDA graphs, for programs of several launches."""
    if len(bound.generated.launches) < 2:
        return {}
    runs = {"candidate": bound.launch, **{n: peers[n][0] for n in ("bare_gemm",) if n in peers}}
    try:
        captured = {name: [timing.captured(run)] for name, run in runs.items()}
        return timing.race(captured, seconds, {"candidate": [bound.restore]})
    except RuntimeError as error:
        notes.append(f"no CUDA graph could be made: {str(error).splitlines()[0][:200]}")
        return {}


def _launch_ms(bound: Bound, notes: list[str]) -> dict[str, float]:
    try:
        found = timing.launch_times(bound)
    except (RuntimeError, AssertionError):  # torch has no access to the driver's tracer
        found = {}
    if not found:
        notes.append("the driver's tracer saw no launches, so the time of each is not known")
    return found


def _prepare_ms(bound: Bound, inputs: Inputs) -> float:
    wanted = {name: inputs[name] for name in bound.generated.prepare_arguments}
    if not wanted:
        return 0.0
    with torch.no_grad():
        return timing.elapsed_ms(lambda: bound.module.prepare(**wanted))

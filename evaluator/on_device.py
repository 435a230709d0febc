"""The stages that need a GPU: real shapes against the oracle, then timing beside the baselines, then the profile."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coda_synth.coda_api.cost import LaunchCost
from coda_synth.coda_api.devices import Device, UnknownDevice, device
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.evaluator.checking import Checker, told
from coda_synth.evaluator.child import ChildCrashed, ChildFailure, ChildRaised, JudgeError, out_of_memory
from coda_synth.evaluator.counters import counted, counter_lines
from coda_synth.evaluator.evaluation import Baseline, Timing, Verdict
from coda_synth.evaluator.facts import Case, TaskFacts
from coda_synth.evaluator.gpu import gpu_lock
from coda_synth.evaluator.measured import Measured, Parts
from coda_synth.evaluator.ncu import NoCounters, profiled
from coda_synth.evaluator.profile import measured_lines
from coda_synth.evaluator.references import References, large
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.evaluator.stream import Stream
from coda_synth.evaluator.trial import StageFailed, Trial

if TYPE_CHECKING:
    from coda_synth.evaluator.judge import Judge

SAMPLED_ROWS = 256  # of a full shape, held against the oracle
PARTS_S = 90.0
CUT_ROWS = 512  # of a full shape's rows, for outputs that mix rows


class OnDevice:
    """One trial's visit to the GPU: its kernels begin to be compiled, then small shapes are checked, beside the checks
    that need no GPU where there are references for both, and then real ones. A context, whose end is the end of
    whatever goes on aside.

    Raises JudgeError for a label of no shape.
    """

    def __init__(
        self,
        trial: Trial,
        judge: Judge,
        references: References | None,
        labels: tuple[str, ...],
        small_alone: bool = False,
    ) -> None:
        """references: its own, None to check where it is waited for. labels: of the real shapes, () for the headline;
        none of them where small ones are enough."""
        self.trial, self.judge = trial, judge
        self._small, self._full = _planned(trial, judge, labels, small_alone)
        limit_s, compiled = judge.limits.device_s, judge.compilers.wait
        self._stream = Stream(trial, judge.gpu, references, judge.references, limit_s, compiled)
        self._stream.expect([case for case in self._small if not large(case)])

    def __enter__(self) -> OnDevice:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def begin(self) -> None:
        """Begins with the small shapes."""
        self._stream.begin(self._small)

    def finish(self, measure: bool) -> None:
        """The rest of the checks and, if asked, the time of real shapes."""
        try:
            self._finish(measure)
        except ChildRaised:
            self.judge.gpu.close()  # an illegal address leaves a context in which everything fails
            raise

    def _finish(self, measure: bool) -> None:
        trial, judge = self.trial, self.judge
        checker = Checker(trial, judge.references, judge.limits.device_s)
        with trial.entering("device"):
            self._stream.finish()
            if not measure:
                checker.check_all(judge.gpu, list(self._full.values()))
        for label, case in self._full.items() if measure else ():
            with trial.entering("device"):
                checker.expect([case])
                bits = told(dict[str, int], checker.check(judge.gpu, case), "bits")
            with trial.entering("measure"):
                _measure(judge, checker, label, case, bits)


def _planned(
    trial: Trial, judge: Judge, shapes: tuple[str, ...], small_alone: bool
) -> tuple[list[Case], dict[str, Case]]:
    """Small cases, and real ones by label; their kernels begin to be compiled."""
    labels = shapes or (trial.facts.headline[0],)
    if unknown := [label for label in labels if label not in trial.facts.time_shapes]:
        raise JudgeError(f"{trial.facts.name} has no shape {unknown[0]!r}; it has {', '.join(trial.facts.time_shapes)}")
    with trial.entering("build"):
        trial.environment.update({k: str(v) for k, v in judge.gpu.ready().items()})
        sizes = trial.device_sizes
        small = [*_device_cases(trial, sizes), *(() if small_alone else _cut_cases(trial, sizes["even"]))]
        labels = () if small_alone else labels
        full = {label: _full_case(trial, trial.facts.time_shapes[label], i) for i, label in enumerate(labels)}
        if on := _measured_device(trial):
            judge.compilers.start({**judge.asked(trial), "device": on.name, "cases": to_data([*small, *full.values()])})
    return small, full


def _measure(judge: Judge, checker: Checker, label: str, case: Case, bits: Mapping[str, int]) -> None:
    """Times one shape; where the GPU's memory does not hold the baselines too, it says so, and the candidate has
    passed all the same."""
    trial = checker.trial
    trial.profile = [line for line in trial.profile if "modelled" not in line]  # better is coming
    try:
        trial.profile += [f"{label}: {line}" for line in checker.peers(judge.gpu, case)]
        judge.release(trial.facts.name, trial.facts.signature.dtype, case)
        _time(judge, checker, label, case, bits)
    except ChildRaised as error:
        if not out_of_memory(error):
            raise
        others = judge.others_on_the_gpu(str(error))
        said = f"{label} does not fit on this GPU beside its baselines, so it was not timed"
        said += f" ({others})" if others else ""
        trial.diagnostics.append(Diagnostic("NotMeasured", said, severity="warning"))


# ---- the cases -------------------------------------------------------------------------------------------------------


def _device_cases(trial: Trial, sizes: Mapping[str, Mapping[str, int]]) -> list[Case]:
    """Every style with the shipped schedules on a few tiles, aligned and odd, and the shapes that the task checks."""
    styles, shapes, few = trial.facts.styles, trial.facts.check_shapes, trial.facts.styles[:4]
    wanted = [(sizes["even"], style) for style in styles] + [(sizes["odd"], style) for style in few]
    wanted += [(shape, styles[i % len(styles)]) for i, shape in enumerate(shapes)]
    return [_case(trial, shape, style, 100 + i) for i, (shape, style) in enumerate(wanted)]


def _case(trial: Trial, sizes: Mapping[str, int], style: str, number: int, rows: tuple[int, ...] | None = None) -> Case:
    sms = int(trial.environment["sms"])
    return Case("device", sizes, trial.seed + number, style, "auto", trial.schedules, sms, rows)


def _full_case(trial: Trial, sizes: Mapping[str, int], index: int) -> Case:
    """A real shape, of which a sample of rows goes to the oracle; everything where the task has no row dim."""
    return _case(trial, sizes, "normal", 400 + index, sample(trial.facts, sizes, trial.seed + 400 + index))


def sample(facts: TaskFacts, sizes: Mapping[str, int], seed: int) -> tuple[int, ...] | None:
    """One row of each stretch of the height, which one is the seed's secret, and the first and last ones; None where
    every row can be compared."""
    if facts.row is None or sizes[facts.row] <= SAMPLED_ROWS:
        return None
    height, draw = sizes[facts.row], random.Random(seed)
    edges = [height * i // SAMPLED_ROWS for i in range(SAMPLED_ROWS + 1)]
    chosen = {draw.randrange(low, high) for low, high in itertools.pairwise(edges)}
    return tuple(sorted({0, *chosen, *range(height - 8, height)}))


def _cut_cases(trial: Trial, few: Mapping[str, int]) -> list[Case]:
    """For a task with outputs that mix rows (a mean, a weight's gradient), which no sample of rows can show: compared
    whole, the headline shape with few rows, and all of its rows with `few` of everything else."""
    facts = trial.facts
    if facts.row is None or all(o.dims and str(o.dims[0]) == facts.row for o in facts.signature.outputs):
        return []
    headline, row = facts.headline[1], facts.row
    shapes = {**headline, row: CUT_ROWS}, {**few, row: headline[row]}
    return [_case(trial, sizes, "normal", 500 + i) for i, sizes in enumerate(shapes)]


# ---- the time --------------------------------------------------------------------------------------------------------


def _time(judge: Judge, checker: Checker, label: str, case: Case, bits: Mapping[str, int]) -> None:
    trial = checker.trial
    with gpu_lock(trial.environment["gpu"]):
        asked = {**checker.run(case), "seconds": judge.limits.race_s}
        answer = judge.gpu.request("measure", judge.limits.measure_s, asked)
        taken_apart = _parts(judge, checker, label, case)
    found: Measured = told(Measured, answer, "measured")
    if fault := found.fault():
        raise ChildCrashed(f"its process gave an answer that is none: {fault}")
    if said := unlike(found, bits):
        raise StageFailed(Verdict.INCORRECT, (Diagnostic("NotDeterministic", f"{said} ({case})"),))
    checker.check_timed(case, answer)
    trial.environment["timer"] = found.timer
    trial.environment[f"clocks {label}"] = found.clocks
    _record(judge, trial, label, case, found, taken_apart)
    if judge.counters and label == trial.facts.headline[0]:
        trial.environment["counters"] = "on"
        trial.profile += [f"{label}: {line}" for line in _counters(judge, checker, case)]


def _parts(judge: Judge, checker: Checker, label: str, case: Case) -> Parts | None:
    """For the profile of the headline shape. Whatever goes wrong in it is told there, and ends that child alone."""
    if label != checker.trial.facts.headline[0]:
        return None
    try:
        reply = judge.gpu.request("parts", PARTS_S, checker.run(case))
        found: Parts = told(Parts, reply, "parts")
        if fault := found.fault():
            raise ChildCrashed(f"its process gave an answer that is none: {fault}")
        return found
    except (ChildFailure, ChildRaised) as error:
        judge.gpu.close()
        checker.trial.profile.append(f"{label}: mainloops could not be timed alone: {error}")
        return None


def _counters(judge: Judge, checker: Checker, case: Case) -> list[str]:
    """Lines for the profile, from a candidate child of its own; whatever goes wrong in it is one of them."""
    start = time.monotonic()
    try:
        answer = judge.gpu.request("launches", judge.limits.read_s, checker.run(case))
        launches: list[tuple[str, str]] = told(list[tuple[str, str]], answer, "launches")
        if not launches or not all(name.isidentifier() for launch in launches for name in launch):
            raise ChildCrashed("its process gave an answer that is none: a launch has no name")
        with gpu_lock(checker.trial.environment["gpu"]):
            limits = judge.limits.device_memory, judge.limits.counters_s
            text = profiled([kernel for _, kernel in launches], checker.run(case), judge.gpu.environment, *limits)
        lines = counter_lines(counted(text), launches)
        return lines or ["hardware counters: ncu gave no metric that is known here; another release of it may (NCU)"]
    except (NoCounters, ChildFailure, ChildRaised, JudgeError) as error:
        return [f"no hardware counters: {(str(error).splitlines() or [''])[0][:300]}"]
    finally:
        judge.gpu.stages["counters"] = time.monotonic() - start


def unlike(found: Measured, bits: Mapping[str, int]) -> str:
    """What is wrong with the bits of timed outputs, or "": those of the first set of inputs were checked before, and
    every set must give the same again, untimed and from poisoned buffers."""
    if dict(found.fingerprints[0]) != dict(bits):
        return "a timed run gave other bits than the checked run of the same input"
    if any(dict(timed) != dict(again) for timed, again in zip(found.fingerprints, found.reruns, strict=True)):
        return "a timed run gave other bits than an untimed run of the same input"
    return ""


def _record(judge: Judge, trial: Trial, label: str, case: Case, found: Measured, apart: Parts | None) -> None:
    """The timing and the profile of one shape, unless no kernel can be that fast."""
    on = _measured_device(trial) or judge.model_device
    asked = {**judge.asked(trial), "device": on.name, "sizes": dict(case.sizes)}
    priced = judge.builder.request("price", judge.limits.read_s, asked)
    bound_ms = float(priced.data["bound_ms"])
    launches = from_data(list[LaunchCost], priced.data["launches"])
    lines = measured_lines(found, launches, trial.resources, on, trial.facts.signature.dtype, trial.schedules, apart)
    trial.profile += [f"{label}: {line}" for line in lines]
    timing = _timing(label, case, found, bound_ms, trial)
    if timing.median_ms < bound_ms and _measured_device(trial):
        said = f"{label}: {timing.median_ms:.4g} ms is under the bound of {bound_ms:.4g} ms on {on.name}: not recorded"
        trial.diagnostics.append(Diagnostic("MeasurementFault", said, severity="warning"))
        return
    trial.timings.append(timing)


def _timing(label: str, case: Case, found: Measured, bound_ms: float, trial: Trial) -> Timing:
    ours = found.samples["candidate"]
    peers = tuple(Baseline(n, s.median_ms, s.low_ms, s.high_ms) for n, s in found.samples.items() if n != "candidate")
    return Timing(
        shape=label,
        sizes=case.sizes,
        device=trial.environment["device"],
        median_ms=ours.median_ms,
        low_ms=ours.low_ms,
        high_ms=ours.high_ms,
        repeats=ours.repeats,
        bound_ms=bound_ms,
        prepare_ms=found.prepare_ms,
        baselines=peers,
        schedules=trial.schedules,
        calls_ms={call: sum(each) for call, each in found.launch_ms.items()},
    )


def _measured_device(trial: Trial) -> Device | None:
    """What the cost model knows of the GPU at hand; None where it does not know it, and then no floor holds."""
    try:
        return device(trial.environment["device"])
    except UnknownDevice:
        return None

"""`coda-synth tune`: the best schedules for a candidate's kernels, and its text with them written in."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_evaluate import candidate_text
from coda_synth.agent.cli_failure import Exit, Failure, must_be_writable, nearest
from coda_synth.agent.cli_tasks import known_target, known_task

if TYPE_CHECKING:
    from coda_synth.agent.cli_view import Progress
    from coda_synth.agent.tune import Try
    from coda_synth.agent.tune_cache import Found, Key
    from coda_synth.agent.workbench import Workbench
    from coda_synth.evaluator.evaluation import Evaluation
    from coda_synth.evaluator.facts import TaskFacts
    from coda_synth.evaluator.proposed import Described


@dataclass(frozen=True, slots=True)
class _Asked:
    """device: by the driver's name on a GPU, else the cost model's; sms: 0 without a GPU."""

    source: str
    facts: TaskFacts
    shape: str
    seconds: float
    seed: int
    device: str
    sms: int

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.facts.time_shapes[self.shape]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """text: the candidate's with the schedules written in, which is what was judged; found: None for a text that the
    language refuses; cached: whether it was found by an earlier call."""

    text: str
    evaluation: Evaluation
    found: Found | None = None
    cached: bool = False


def tune(args: argparse.Namespace) -> Exit:
    """OK where the text that comes out passes the judge; with --out it is written there, else to stdout."""
    settings = config.of(args)
    known_target(settings.target)
    known_task(args.task)
    source = candidate_text(args.file)
    if not 0 < args.seconds < math.inf:
        raise Failure(f"--seconds {args.seconds:g}: it must be a positive number")
    if args.out:
        must_be_writable(args.out)
    from coda_synth.agent.cli_view import progress

    with progress(args) as screen:
        screen.say("reading")
        asked = _asked(args, settings, source)
        outcome = _tuned(settings, asked, screen, args.fresh)
    if outcome.found is None or outcome.evaluation.verdict != "PASSED":
        return _failed(args, outcome.evaluation, outcome.text)
    return _ended(args, asked, outcome.found, outcome.text, outcome.cached)


def _asked(args: argparse.Namespace, settings: config.Config, source: str) -> _Asked:
    import torch
    from coda_synth.coda_api.devices import device
    from coda_synth.evaluator.oracle import facts_of
    from coda_synth.tasks.catalog import task

    facts = facts_of(task(args.task), "bfloat16")
    shape = args.shape or facts.headline[0]
    if shape not in facts.time_shapes:
        raise Failure(f"{args.task} has no shape {shape!r}{nearest(shape, facts.time_shapes)}")
    seed, gpu = settings.seed or 0, settings.device != "cpu" and torch.cuda.is_available()
    if settings.device == "cuda" and not gpu:
        raise Failure("--device cuda asks for a CUDA device, and torch sees none here", Exit.ENVIRONMENT)
    if not gpu:
        return _Asked(source, facts, shape, args.seconds, seed, device(settings.target).name, 0)
    here = torch.cuda.get_device_properties(0)
    return _Asked(source, facts, shape, args.seconds, seed, here.name, here.multi_processor_count)


def _workbench(asked: _Asked, target: str) -> Workbench:
    from coda_synth.agent.workbench import Workbench, device_worker
    from coda_synth.coda_api.devices import UnknownDevice, device
    from coda_synth.evaluator.facts import Case

    try:
        model = device(asked.device).name
    except UnknownDevice:  # a GPU that the model does not know is modelled as its target's
        model = device(target).name
    case = Case("device", asked.sizes, asked.seed, "normal", "auto", {}, asked.sms)
    return Workbench(asked.source, asked.facts, asked.sizes, model, case, device_worker() if asked.sms else None)


def _tuned(settings: config.Config, asked: _Asked, screen: Progress, fresh: bool) -> _Outcome:
    """Judged, whether a search or the cache said it; what the cache says and does not pass is searched for anew."""
    described, found, cached = _found(settings, asked, screen, fresh)
    if found is None:
        return _Outcome(asked.source, _refused(asked, described))
    text = _text(asked.source, found)
    screen.say("judging the result")
    evaluation = _judged(settings, asked, text)
    if evaluation.verdict == "PASSED" and not cached:
        _keep(_key(asked, described), found)
    if evaluation.verdict != "PASSED" and cached:
        _drop(_key(asked, described), evaluation)
        return _tuned(settings, asked, screen, fresh=True)
    return _Outcome(text, evaluation, found, cached)


def _found(
    settings: config.Config, asked: _Asked, screen: Progress, fresh: bool
) -> tuple[Described, Found | None, bool]:
    """What the cache or a search says; None for a text that the language refuses. And whether it is the cache's."""
    from coda_synth.agent import tune_cache
    from coda_synth.agent.tune import Search

    with _workbench(asked, settings.target) as bench:
        described = bench.describe()
        if described.diagnostics:
            return described, None, False
        kept = None if fresh else _kept(_key(asked, described), asked.seconds)
        if kept and (named := kept.called_as(described.kernels)):
            return described, named, True
        search = Search(bench, asked.seed, time.monotonic() + asked.seconds, screen.say)
        results = search.run(described.kernels)
        ids = {kernel.name: kernel.id for kernel in described.kernels}
        notes = tuple(bench.notes)
        return described, tune_cache.Found(results, ids, asked.sizes, asked.seconds, search.complete, notes), False


# ---- the cache -------------------------------------------------------------------------------------------------------


def _key(asked: _Asked, described: Described) -> Key:
    from coda_synth.agent import tune_cache

    return tune_cache.key(described, asked.facts, asked.sizes, asked.device, asked.sms > 0, asked.seed)


def _kept(key: Key, seconds: float) -> Found | None:
    from coda_synth.agent import tune_cache

    try:
        return tune_cache.load(tune_cache.folder(), key, seconds)
    except tune_cache.Damaged as error:
        _warn(str(error))
        return None


def _keep(key: Key, found: Found) -> None:
    from coda_synth.agent import tune_cache

    if problem := tune_cache.save(tune_cache.folder(), key, found):
        _warn(problem)


def _drop(key: Key, evaluation: Evaluation) -> None:
    from coda_synth.agent import tune_cache

    tune_cache.drop(tune_cache.folder(), key)
    _warn(f"what the cache in {tune_cache.folder()} says does not pass ({evaluation.verdict}): it is tuned anew")


def _warn(text: str) -> None:
    print(f"coda-synth: warning: {text}", file=sys.stderr)


# ---- what is judged --------------------------------------------------------------------------------------------------


def _text(source: str, found: Found) -> str:
    """The text with the hints of every kernel that got better; the others keep what they have."""
    from coda_synth.agent.planner_tune import read_hints
    from coda_synth.agent.tuner import with_hints

    better = {kernel.kernel: kernel.hints for kernel in found.kernels if kernel.hints}
    return with_hints(source, {**read_hints(source), **better}) if better else source


def _refused(asked: _Asked, described: Described) -> Evaluation:
    from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict

    verdict, stage = (Verdict.REJECTED, "read") if described.lowers else (Verdict.BUILD_ERROR, "build")
    name = Candidate(asked.facts.name, asked.source).id
    return Evaluation(name, asked.facts.name, verdict, stage, asked.seed, described.diagnostics)


def _judged(settings: config.Config, asked: _Asked, text: str) -> Evaluation:
    """The whole judgement but for the time, on the device that it was tuned for."""
    from coda_synth.agent.budget import TUNER
    from coda_synth.evaluator.evaluation import Candidate
    from coda_synth.evaluator.judge import Judge

    with Judge(device=settings.device, target=settings.target, seed=settings.seed) as judge:
        return judge.evaluate(Candidate(asked.facts.name, text, TUNER), measure=False)


# ---- the end ---------------------------------------------------------------------------------------------------------


def _failed(args: argparse.Namespace, evaluation: Evaluation, text: str) -> Exit:
    """What is wrong, as `evaluate` says it; nothing is written, nothing kept."""
    from coda_synth.agent.cli_report import report
    from coda_synth.agent.cli_view import console, print_json

    if args.json:
        print_json({"task": args.task, "verdict": evaluation.verdict, "diagnostics": evaluation.diagnostics})
    else:
        screen = console()
        for part in report(evaluation, text, "<stdin>" if args.file == "-" else args.file):
            screen.print(part)
        print("coda-synth: what does not pass is not tuned: nothing was written", file=sys.stderr)
    return Exit.NOT_PASSED


def _ended(args: argparse.Namespace, asked: _Asked, found: Found, text: str, cached: bool) -> Exit:
    if args.out:
        try:
            Path(args.out).write_text(text, encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write {args.out}: {error.strerror or error}", Exit.ENVIRONMENT) from None
    if args.json:
        print(json.dumps(_data(args, asked, found, text, cached), indent=2))
        return Exit.OK
    from coda_synth.agent.cli_tuned import show

    show(found, asked.device, asked.shape, measured=asked.sms > 0, cached=cached, err=not args.out, quiet=args.quiet)
    if not args.out:
        print(text, end="" if text.endswith("\n") else "\n")
    return Exit.OK


def _data(args: argparse.Namespace, asked: _Asked, found: Found, text: str, cached: bool) -> dict[str, Any]:
    from coda_synth.evaluator.serial import to_data

    def told(tried: Try) -> dict[str, Any]:
        kept: dict[str, Any] = to_data({"schedule": tried.schedule, "round": tried.round, "sample": tried.sample})
        return {**kept, **to_data(tried.built)}

    kernels = [
        {
            "kernel": k.kernel,
            "hints": k.hints,
            "best": told(k.best),
            "model_pick": told(k.pick),
            "pick_from_best": k.gap,
            "tries": [told(t) for t in k.tries],
        }
        for k in found.kernels
    ]
    head = {"task": args.task, "shape": asked.shape, "sizes": found.sizes, "device": asked.device, "seed": asked.seed}
    told_how = {"measured": asked.sms > 0, "cached": cached, "complete": found.complete, "seconds": found.seconds}
    return {**head, **told_how, "kernels": kernels, "notes": found.notes, "out": args.out, "program": text}

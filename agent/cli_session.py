"""One session of a run on the command line, begun or gone on with: its parties from the settings, its end shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure

if TYPE_CHECKING:
    from coda_synth.agent.cli_live import Watch
    from coda_synth.agent.loop import Outcome, Settings
    from coda_synth.agent.provider import Provider
    from coda_synth.evaluator.evaluation import Candidate, Evaluation
    from coda_synth.evaluator.judge import Judge
    from coda_synth.evaluator.trace import Graph
    from coda_synth.runs.store import RunWriter


def provider_of(settings: config.Config) -> Provider:
    """Raises Failure where an option is missing, and ProviderError where a key is."""
    from coda_synth.agent.provider import Options
    from coda_synth.agent.providers import make_all

    if settings.provider == "scripted" and not settings.replies:
        raise Failure("the provider scripted needs --replies PATH, the replies that it replays")
    if settings.provider == "openai-compatible" and not settings.base_url:
        raise Failure("the provider openai-compatible needs --base-url URL, as http://localhost:8000/v1")
    replies = Path(settings.replies) if settings.replies else None
    if replies and not replies.exists():
        raise Failure(f"there are no replies at {replies}")
    options = Options(
        model=settings.model or "",
        base_url=settings.base_url or "",
        replies=replies,
        effort=Options().effort if settings.effort is None else settings.effort,
        max_output_tokens=settings.max_output_tokens or Options().max_output_tokens,
        bounded=bool(settings.max_output_tokens or settings.tokens),
        seconds=settings.call_seconds,
        wait=settings.wait,
    )
    fallback = [entry.strip() for entry in (settings.fallback or "").split(",") if entry.strip()]
    return make_all(settings.provider, options, fallback)


def check_authors(provider: Provider, settings: config.Config) -> None:
    """Before anything is written: each model has a price or a limit of its own, a valid key, and exists."""
    from coda_synth.agent.fallback import every
    from coda_synth.agent.models import price
    from coda_synth.agent.provider import Paid

    for author in every(provider):
        if not isinstance(author, Paid):
            continue
        if price(author.model) is None and not settings.allow_unpriced and settings.tokens is None:
            raise Failure(
                f"the model {author.model!r} has no known price, so a budget in dollars cannot hold it: say "
                "--tokens N, or --allow-unpriced where it costs nothing (as on a server of your own)"
            )
        author.check()


def loop_settings(settings: config.Config, lessons: tuple[str, ...] = ()) -> Settings:
    from coda_synth.agent.budget import Budget
    from coda_synth.agent.loop import Settings

    budget = Budget(
        settings.attempts,
        settings.minutes,
        settings.tokens,
        settings.usd,
        settings.gpu_seconds,
        settings.within,
        settings.patience,
    )
    return Settings(budget, target=settings.target, strategy=settings.strategy, tune=settings.tune, lessons=lessons)


class JudgeOnDemand:
    """A judge that starts when it is first asked: a session that only waits for a reply starts no processes."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> JudgeOnDemand:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def start(self) -> None:
        """Starts it now, so that it warms up while the author writes."""
        _ = self._judge

    def require(self) -> None:
        """Raises Failure where a GPU was asked for and there is none: better now than when a run has begun."""
        if self._settings.device == "cuda" and not self._judge.reference.ready().get("cuda"):
            said = "--device cuda asks for a CUDA device, and torch sees none here; --device cpu checks without one"
            raise Failure(said, Exit.ENVIRONMENT)

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        return self._judge.evaluate(candidate, seed=seed, measure=measure, on_stage=on_stage)

    def trace(self, task: str) -> Graph:
        return self._judge.trace(task)

    @cached_property
    def _judge(self) -> Judge:
        from coda_synth.evaluator.judge import Judge, Limits

        of = self._settings
        limits = Limits(
            build_s=of.build_seconds,
            check_s=of.check_seconds,
            device_s=of.device_seconds,
            measure_s=of.measure_seconds,
        )
        return self._stack.enter_context(Judge(of.device, of.target, of.seed, limits=limits))


def session(
    args: argparse.Namespace,
    writer: RunWriter,
    provider: Provider,
    judge: JudgeOnDemand,
    settings: config.Config,
    fresh: bool = False,
) -> dict[str, Any]:
    """Works on a run until it stops, shows how, and gives that as data. The record is whole whatever happens.

    fresh: begun just now, so that it leaves nothing behind where it could not even begin.
    """
    from coda_synth.agent.cli_live import watching
    from coda_synth.agent.cli_view import console

    try:
        with watching(args, writer, loop_settings(settings).budget) as watch:
            outcome = _run(writer, provider, judge, settings, watch, fresh)
        return _end(args, writer, outcome, console())
    finally:
        writer.close()


def _run(
    writer: RunWriter, provider: Provider, judge: JudgeOnDemand, settings: config.Config, watch: Watch, fresh: bool
) -> Outcome:
    from coda_synth.agent.lessons import LessonsError, learn, load, told
    from coda_synth.agent.loop import synthesize
    from coda_synth.agent.provider import ProviderError
    from coda_synth.coda_api.devices import device
    from coda_synth.evaluator.judge import JudgeError
    from coda_synth.runs.store import StoreError
    from coda_synth.tasks.catalog import task

    name, root = writer.run.task, writer.folder.parent
    if settings.provider != "exchange":
        judge.start()
    try:
        known = told(load(root), name, device(settings.target).name)
        outcome = synthesize(task(name), provider, judge, writer, loop_settings(settings, known), watch.tell)
        learn(root, writer.run, outcome.attempts)
        return outcome
    except (ProviderError, JudgeError, StoreError, LessonsError) as error:
        if fresh and writer.discarded():
            raise
        told_where = f"the record up to there: {writer.folder}; `coda-synth resume {writer.run.id}` goes on with it"
        raise Failure(f"{error} ({told_where})", Exit.ENVIRONMENT) from error


def _end(args: argparse.Namespace, writer: RunWriter, outcome: Outcome, screen: Any) -> dict[str, Any]:
    from coda_synth.agent.cli_record import runs_option
    from coda_synth.agent.cli_run import print_run
    from coda_synth.agent.loop import Stop
    from coda_synth.runs.report import report

    found = report(writer.run, outcome.attempts)
    waiting = outcome.stop is Stop.WAITING
    if not args.json:
        print_run(screen, found, writer.folder, runs_option(args), f"Ended:   {outcome.reason}", outcome.stop)
    return {
        "report": found,
        "folder": str(writer.folder),
        "stop": outcome.reason,
        "ended": outcome.stop.value,
        "interrupted": outcome.stop is Stop.INTERRUPTED,
        "waiting": waiting,
    }


def exit_of(ends: list[dict[str, Any]]) -> Exit:
    """The exit code of a command that worked on these runs."""
    if ends and ends[-1]["interrupted"]:
        print(f"coda-synth: interrupted; what was judged until then is whole in {ends[-1]['folder']}", file=sys.stderr)
        return Exit.INTERRUPTED
    if any(end["waiting"] for end in ends):
        return Exit.WAITING
    return Exit.OK if all(end["report"].best for end in ends) else Exit.NOT_PASSED

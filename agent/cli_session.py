"""One session of a run on the command line, begun or gone on with: its parties from the settings, its end shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import note_counters, runs_option

if TYPE_CHECKING:
    from coda_synth.agent import loop
    from coda_synth.agent.asking import Ask
    from coda_synth.agent.events import Event
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
        if self._settings.device == "cuda" and not self._judge.references.first.ready().get("cuda"):
            said = "--device cuda asks for a CUDA device, and torch sees none here; --device cpu checks without one"
            raise Failure(said, Exit.ENVIRONMENT)

    def remark(self) -> None:
        """Says now what was asked for and cannot be had here."""
        if self._settings.counters:
            note_counters(self._judge)

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
        return self._stack.enter_context(Judge(of.device, of.target, of.seed, counters=of.counters, limits=limits))


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that is held and ready to be worked on, with its parties. fresh: begun just now, so that it leaves nothing
    behind where it could not even begin."""

    writer: RunWriter
    provider: Provider
    judge: JudgeOnDemand
    settings: config.Config
    fresh: bool = False

    def warm(self) -> None:
        """Starts the judge while the author writes, unless the author may take days."""
        if self.settings.provider != "exchange":
            self.judge.start()


def session(args: argparse.Namespace, begun: Begun) -> dict[str, Any]:
    """Works on a run until it stops, shows how, and gives that as data. The record is whole whatever happens."""
    from coda_synth.agent.cli_live import watching

    try:
        with watching(args, begun.writer, loop_settings(begun.settings).budget) as tell:
            begun.warm()
            outcome = work(args, begun, begun.judge, tell)
    finally:
        begun.writer.close()
    end = ended(begun.writer, outcome.stop.value, outcome.reason)
    show_end(args, end)
    return end


def work(
    args: argparse.Namespace, begun: Begun, judge: loop.Judge, tell: Callable[[Event], None], ask: Ask | None = None
) -> Outcome:
    """The loop with what was learned before, and what it teaches; raises Failure where the run cannot go on. A cell of
    a matrix is told nothing of other runs, so that cells compare in whatever order they end."""
    from coda_synth.agent.asking import here
    from coda_synth.agent.budget import Stop
    from coda_synth.agent.lessons import LessonsError, learn, load, told
    from coda_synth.agent.loop import synthesize
    from coda_synth.agent.provider import ProviderError
    from coda_synth.coda_api.devices import device
    from coda_synth.evaluator.judge import JudgeError
    from coda_synth.runs.store import StoreError
    from coda_synth.tasks.catalog import task

    writer, settings = begun.writer, begun.settings
    name, root = writer.run.task, writer.folder.parent
    try:
        compared = "bench" in writer.run.settings
        known = () if compared else told(load(root), name, device(settings.target).name)
        outcome = synthesize(
            task(name), begun.provider, judge, writer, loop_settings(settings, known), tell, ask or here
        )
        learn(root, writer.run, outcome.attempts)
        return outcome
    except (ProviderError, JudgeError, StoreError, LessonsError) as error:
        if begun.fresh and writer.discarded():
            raise
        with suppress(StoreError):  # of a full disk, as it may be
            writer.end(Stop.BROKE_OFF.value, str(error))
        again = f"`coda-synth resume {writer.run.id}{runs_option(args)}` goes on with it"
        told_where = f"the record up to there: {writer.folder}; {again}"
        raise Failure(f"{error} ({told_where})", Exit.ENVIRONMENT) from error
    except Exception as error:  # a fault of ours; the record says that the run did not end, and why
        with suppress(StoreError):
            writer.end(Stop.BROKE_OFF.value, f"unexpected {type(error).__name__} {error}".rstrip())
        raise


def ended(writer: RunWriter, stop: str, reason: str) -> dict[str, Any]:
    """How a run ended, as data. stop: in the words of Stop; reason: with the author's own words, if there are any."""
    from coda_synth.agent.loop import Stop
    from coda_synth.runs.report import report

    return {
        "task": writer.run.task,
        "report": report(writer.run, writer.attempts),
        "folder": str(writer.folder),
        "stop": reason,
        "ended": stop,
        "interrupted": stop == Stop.INTERRUPTED,
        "waiting": stop == Stop.WAITING,
    }


def broken_off(name: str, failure: Failure, writer: RunWriter | None = None) -> dict[str, Any]:
    """Likewise of a run that could not go on, or (without a writer, or with nothing left of it) not begin."""
    from coda_synth.agent.budget import Stop

    kept = writer is not None and writer.folder.exists()
    nothing = {"task": name, "report": None, "folder": None, "interrupted": False, "waiting": False}
    end = ended(writer, Stop.BROKE_OFF.value, "") if kept and writer is not None else nothing
    return {
        **end,
        "ended": Stop.BROKE_OFF.value,
        "stop": str(failure),
        "error": str(failure),
        "exit": int(failure.code),
    }


def show_end(args: argparse.Namespace, end: dict[str, Any]) -> None:
    """Nothing with --json, where all ends are one document; of a run that broke off a line on stderr."""
    from coda_synth.agent.cli_run import print_run
    from coda_synth.agent.cli_view import console

    if "error" in end:
        print(f"coda-synth: {end['task']}: {end['error']}", file=sys.stderr)
    elif not args.json:
        said = f"Ended:   {end['stop']}"
        print_run(console(), end["report"], Path(end["folder"]), runs_option(args), said, end["ended"])


def exit_of(ends: list[dict[str, Any]], interrupted: bool = False) -> Exit:
    """The exit code of a command that worked on these runs. interrupted: perhaps before a run began."""
    where = [end["folder"] for end in ends if end["interrupted"]]
    if where or interrupted:
        kept = f"; what was judged until then is whole in {', '.join(where)}" if where else ""
        print(f"coda-synth: interrupted{kept}", file=sys.stderr)
        return Exit.INTERRUPTED
    if any(end["waiting"] for end in ends):
        return Exit.WAITING
    if ends and all("error" in end for end in ends):
        return Exit(ends[-1]["exit"])
    return Exit.OK if all("error" not in end and end["report"].best for end in ends) else Exit.NOT_PASSED

"""The runs of one command: one after another, or side by side. One that breaks off leaves the others alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import as_failure
from coda_synth.agent.cli_session import Begun, JudgeOnDemand, broken_off, ended, loop_settings, session, show_end, work

End = dict[str, Any]
Begin = Callable[[str], Begun]
PAID_JOBS = 4  # a reply takes minutes and its judging seconds: so many authors keep one judge busy
_PAID = ("anthropic", "openai")
_SERVICES = (*_PAID, "openai-compatible")


class Judges:
    """The judges of one command: runs that ask for the same one share it, and its warm processes."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._known: dict[tuple[object, ...], JudgeOnDemand] = {}

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def of(self, settings: config.Config) -> JudgeOnDemand:
        """Raises Failure where it is to be on a GPU and there is none."""
        key = tuple(getattr(settings, name) for name in config.OF_THE_JUDGE)
        new = key not in self._known
        if new:
            self._known[key] = self._stack.enter_context(JudgeOnDemand(settings))
        self._known[key].require()
        if new:
            self._known[key].remark()
        return self._known[key]


def jobs_for(settings: Iterable[config.Config], said: int | None) -> int:
    """How many runs go on at once: what was said, else what their authors can make use of."""
    every = tuple(settings)
    return max(1, min(said or max(map(_useful, every), default=1), len(every)))


def _useful(settings: config.Config) -> int:
    """The planner needs the processor that the judge needs, a server of one's own may answer one at a time, and an
    exchange that does not wait is over at once; people who write may as well see all their questions."""
    if settings.provider == "exchange" and settings.wait:
        return sys.maxsize
    return PAID_JOBS if settings.provider in _PAID else 1


def say_dollars(args: argparse.Namespace, settings: Iterable[config.Config]) -> None:
    """What all runs together may cost, since each has a budget of its own; nothing where one run alone may."""
    dear = [s.usd for s in settings if any(_priced(*author) for author in _authors(s))]
    if len(dear) > 1 and not args.quiet and not args.json:
        said = f"{len(dear)} runs, each with its own budget in dollars: ${sum(dear):.2f} at most in all"
        print(f"coda-synth: {said}", file=sys.stderr)


def _authors(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Provider and model of everyone who may be asked."""
    yield settings.provider, settings.model or ""
    for entry in filter(None, (settings.fallback or "").replace(" ", "").split(",")):
        first, _, rest = entry.partition("/")
        yield (first, rest) if first in config.PROVIDERS else (settings.provider, entry)


def _priced(provider: str, model: str) -> bool:
    from coda_synth.agent.models import default_model, price

    known = model or (default_model(provider) if provider in _PAID else "")
    return provider in _SERVICES and bool(known) and price(known) is not None


def all_ended(args: argparse.Namespace, names: Sequence[str], begin: Begin, jobs: int) -> tuple[list[End], bool]:
    """How each run ended, in the order of the names, all shown; and whether Ctrl-C came, after which none is begun."""
    if jobs > 1:
        found, interrupted = side_by_side(args, names, begin, jobs)
        for end in found.values():
            show_end(args, end)
        return list(found.values()), interrupted
    ends: list[End] = []
    for name in names:
        end = session(args, begin(name)) if len(names) == 1 else _one_of_several(args, name, begin)
        ends.append(end)
        if end["interrupted"]:
            break
    return ends, any(end["interrupted"] for end in ends)


def _one_of_several(args: argparse.Namespace, name: str, begin: Begin) -> End:
    begun: Begun | None = None
    try:
        begun = begin(name)
        return session(args, begun)
    except Exception as error:
        end = broken_off(name, as_failure(error), begun.writer if begun else None)
        show_end(args, end)
        return end


def side_by_side(
    args: argparse.Namespace, names: Sequence[str], begin: Begin, jobs: int
) -> tuple[dict[str, End], bool]:
    """How each run that was begun ended, by its name, in the order of the names; and whether Ctrl-C came. All that it
    shows is how they go on."""
    from coda_synth.agent.cli_overview import Watch, watching_all
    from coda_synth.agent.turns import InTurn, Turns

    turns = Turns()

    def worked_on(begun: Begun, watch: Watch) -> End:
        label, tell = watch.begun(begun.writer, loop_settings(begun.settings).budget)
        try:
            outcome = work(args, begun, InTurn(begun.judge, turns), tell, turns.aside)
            end = ended(begun.writer, outcome.stop.value, outcome.reason)
        except Exception as error:
            end = broken_off(begun.writer.run.task, as_failure(error), begun.writer)
        finally:
            begun.writer.close()
        watch.over(label, end)
        return end

    def warmed(name: str) -> Begun:
        begun = begin(name)
        begun.warm()
        return begun

    def one(name: str, watch: Watch) -> End | None:
        try:
            begun = turns.in_turn(lambda: warmed(name))
        except KeyboardInterrupt:
            return None
        except Exception as error:
            end = broken_off(name, as_failure(error))
            watch.over(name, end)
            return end
        return worked_on(begun, watch)

    with watching_all(args, len(names)) as watch:
        ends = turns.work([lambda name=name: (name, one(name, watch)) for name in names], jobs)  # type: ignore[misc]
    return {name: end for name, end in ends if end is not None}, turns.interrupted

"""How much the loop's feedback is worth, measured with a SIMULATED author: no model is asked, and none is imitated.

    python benchmarks/loop.py

1. Mistakes that the language refuses: the share whose diagnostic carries an edit that alone makes the text a program.
2. Mistakes that give wrong results: the author has seen each mistake's feedback once, on inputs from another seed. On
   fresh inputs it sees the feedback, nothing else, and picks the repair of the mistake whose feedback was most alike.
   The control picks blindly.
3. Strategies against each other on one task, with an author that errs at random and repairs as in 2: attempts to the
   first PASS, attempts to within 5 % of the best, evaluations that the recognition of duplicates saved.
4. The loop's own time an attempt, everything but author and judge; and the tokens of each task's prompt (estimated).
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from coda_synth.agent.feedback import feedback
from coda_synth.agent.loop import Budget, Settings, synthesize
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Reply, Request
from coda_synth.agent.tokens import estimate
from coda_synth.agent.tuner import with_hints
from coda_synth.evaluator.evaluation import Candidate, Evaluation, Modelled, Verdict
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Run
from coda_synth.runs.store import Store
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from benchmarks.mistakes import BLOCK, BREAKING, WRONG, Mistake
from benchmarks.simulated import Simulated, judged_here, mended_by_edit, symptoms, told

TAUGHT, SEEDS = 1000, (1, 2, 3)
RUNS, ATTEMPTS = 20, 12
STRATEGIES = ("refine", "beam", "best-of-n")
_SHOWN = re.compile(r"^## Your last program \((\w+)\)", re.MULTILINE)
TILES = ((128, 256), (128, 128), (256, 128), (64, 256))


def taught() -> Simulated:
    """The author after it has seen every mistake's feedback once."""
    seen = {m.name: told(m, judged_here(Candidate(m.task, m.text), TAUGHT)) for m in WRONG}
    return Simulated({name: (symptoms(text),) for name, text in seen.items()})


def repairs(author: Simulated, seeds: Sequence[int] = SEEDS) -> list[tuple[Mistake, list[str]]]:
    """For every mistake, what the author takes it to be, once for each seed of the inputs."""
    return [
        (m, [author.repair(told(m, judged_here(Candidate(m.task, m.text), seed))) for seed in seeds]) for m in WRONG
    ]


@dataclass
class Erring:
    """Starts from a program with several mistakes; each turn repairs what the feedback names, or tries another tile."""

    mind: Simulated
    random: random.Random
    name: str = "simulated"
    model: str = "erring"
    texts: dict[str, frozenset[str]] = field(default_factory=dict)  # a text, and the mistakes in it
    tried: dict[frozenset[str], set[str]] = field(default_factory=dict)  # repairs that did not help there

    def propose(self, request: Request) -> Reply:
        shown = _SHOWN.search(request.prompt.user)  # a strategy may hide the history, or show an earlier program
        judged = [a for a in request.attempts if a.evaluation and a.candidate]
        last = next((a for a in judged if shown and a.candidate and a.candidate.id == shown[1]), None)
        if last is None or last.candidate is None or last.evaluation is None:
            return self._say(frozenset(self.random.sample([m.name for m in _OF_BLOCK], 2)))
        mistakes = self.texts[last.candidate.source]
        if last.evaluation.verdict is Verdict.PASSED:
            return self._say(frozenset())
        tried = self.tried.setdefault(mistakes, set())
        taken = next((name for name in self.mind.order(feedback(last)) if name not in tried), "")
        tried.add(taken)
        return self._say(mistakes - {taken})

    def _say(self, mistakes: frozenset[str]) -> Reply:
        text = worked_candidate(BLOCK)
        for mistake in _OF_BLOCK:
            if mistake.name in mistakes and mistake.old in text:
                text = text.replace(mistake.old, mistake.new, 1)
        m, n = self.random.choice(TILES)
        text = with_hints(text, {"gate_up": {"block_m": m, "block_n": n}}) + "\n"
        self.texts[text] = mistakes
        return Reply(f"```\n{text}```\n")


_OF_BLOCK = [m for m in WRONG if m.task == BLOCK and not m.also[0]]


@dataclass
class Quick:
    """Reads and checks here, and gives what passes a modelled time by its tile; counts what it was asked to judge."""

    asked: int = 0
    spent: float = 0.0

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        started = time.perf_counter()
        self.asked += 1
        found = judged_here(candidate, 7)
        if found.verdict is Verdict.PASSED:
            ms = next((1.0 + 0.1 * i for i, (m, n) in enumerate(TILES) if f"{m}, block_n={n}" in candidate.source), 2.0)
            model = Modelled("llama3-8b", {"T": 8192}, "H200", 1, 1, 0.5, ms, 0.9)
            found = Evaluation(
                *(candidate.id, candidate.task, Verdict.PASSED, "check", 7), checks=found.checks, modelled=(model,)
            )
        self.spent += time.perf_counter() - started
        return found

    def trace(self, name: str) -> Graph:
        return Graph(name, {}, (), {})


@dataclass(frozen=True)
class Course:
    """One run: steps to the first PASS and to within 5 % of the best possible (None: never), duplicates, own time."""

    passed: int | None
    near: int | None
    saved: int
    overhead_ms: float


def course(mind: Simulated, strategy: str, seed: int) -> Course:
    """One run of a strategy."""
    author, judge = Erring(mind, random.Random(seed)), Quick()
    asking = _Timed(author)
    with tempfile.TemporaryDirectory() as folder:
        head = Run("run", BLOCK, author.name, author.model, {}, "2026-01-01T00:00:00+00:00", "0")
        writer = Store(Path(folder)).create(head)
        started = time.perf_counter()
        settings = Settings(Budget(attempts=ATTEMPTS, minutes=60), strategy=strategy)
        attempts = synthesize(task(BLOCK), asking, judge, writer, settings).attempts
        own = time.perf_counter() - started - judge.spent - asking.spent
        writer.close()
    passing = [a for a in attempts if a.evaluation and a.evaluation.verdict is Verdict.PASSED]
    near = [a for a in passing if a.evaluation and a.evaluation.modelled[0].estimate_ms <= 1.05]
    saved = sum(a.outcome == "duplicate" for a in attempts)
    first, close = (min((a.step for a in found), default=None) for found in (passing, near))
    return Course(first, close, saved, 1e3 * own / len(attempts))


@dataclass
class _Timed:
    author: Erring
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.name, self.model = self.author.name, self.author.model

    def propose(self, request: Request) -> Reply:
        started = time.perf_counter()
        try:
            return self.author.propose(request)
        finally:
            self.spent += time.perf_counter() - started


def _middle(values: list[int | None]) -> str:
    """The median with its quartiles, runs that never came there counted as beyond the last attempt."""
    reached = sum(v is not None for v in values)
    known = sorted(ATTEMPTS + 1 if v is None else v for v in values)
    low, middle, high = statistics.quantiles(known, n=4)
    return f"{middle:.0f} ({low:.0f} to {high:.0f}), {reached} of {len(values)} runs"


def main() -> None:
    argparse.ArgumentParser(description="what the loop's feedback is worth to a simulated author").parse_args()
    torch.set_num_threads(1)
    mended = [mended_by_edit(m) for m in BREAKING]
    print("SIMULATION: the author below is a program that knows a catalogue of mistakes. No model was asked.\n")
    print(f"Mistakes that the language refuses: {sum(mended)} of {len(mended)} mended by the first edit alone\n")
    mind = taught()
    found = repairs(mind)
    print("| wrong result | task | taken for | right |\n|---|---|---|---|")
    for mistake, taken in found:
        named = ", ".join(sorted(set(taken)))
        print(f"| {mistake.name} | {mistake.task} | {named} | {sum(t == mistake.name for t in taken)}/{len(taken)} |")
    right = sum(t == m.name for m, taken in found for t in taken)
    count = len(found) * len(SEEDS)
    blind = random.Random(0)
    guessed = sum(blind.choice(WRONG).name == m.name for m, taken in found for _ in taken)
    print(f"\nRight at once: {right}/{count} = {right / count:.0%}; picking blindly {guessed}/{count}.\n")
    print("| strategy | attempts to PASS | attempts to within 5 % | evaluations saved | own time an attempt |")
    print("|---|---|---|---|---|")
    for strategy in STRATEGIES:
        courses = [course(mind, strategy, seed) for seed in range(RUNS)]
        saved = sum(c.saved for c in courses)
        own = statistics.median(c.overhead_ms for c in courses)
        reached = _middle([c.passed for c in courses]), _middle([c.near for c in courses])
        print(f"| {strategy} | {reached[0]} | {reached[1]} | {saved} of {RUNS * ATTEMPTS} | {own:.0f} ms |")
    print("\n| task | system text | task text | tokens, estimated |\n|---|---|---|---|")
    for name in task_names():
        made = prompt(task(name))
        one, two = estimate(made.system), estimate(made.user)
        print(f"| {name} | {one:,} | {two:,} | {one + two:,} |")


if __name__ == "__main__":
    main()

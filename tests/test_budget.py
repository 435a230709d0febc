"""Budgets: what is used, what the next call may cost, when to stop; and authors who stand in where one refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from coda_synth.agent import models
from coda_synth.agent.budget import Budget, Stop, cannot_afford, spent, used_up
from coda_synth.agent.fallback import Fallback
from coda_synth.agent.loop import Settings, synthesize
from coda_synth.agent.prompting import prompt
from coda_synth.agent.provider import Options, Paid, Prompt, PromptTooLong, Provider, ProviderError, Reply, Request
from coda_synth.agent.providers import make, make_all
from coda_synth.agent.strategy import choose
from coda_synth.evaluator.evaluation import Timing, Verdict
from coda_synth.runs.record import Attempt, Usage

from tests.fake_llm_server import INPUT, KEY, FakeService
from tests.test_loop import GOOD, TASK, Author, ReadingJudge, better, fenced, judged, new_run


def measured(step: int, ms: float, bound: float = 1.0) -> Attempt:
    attempt = judged(step, Verdict.PASSED)
    assert attempt.evaluation
    timing = Timing("8b", {}, "H200", ms, ms * 0.99, ms * 1.01, 10, bound, 0.0, ())
    return replace(attempt, evaluation=replace(attempt.evaluation, timings=(timing,), seconds={"measure": 5.0}))


def test_headroom_and_patience() -> None:
    history = (measured(1, 1.5), measured(2, 1.04))
    assert used_up(Budget(within=0.05), history[:1]) is None
    stop, detail = used_up(Budget(within=0.05), history) or (None, "")
    assert stop is Stop.NEAR and "step 2 takes 1.04 ms, 3.8% above what is possible" in detail
    vain = (*history, measured(3, 2.0), judged(4, Verdict.INCORRECT))
    assert used_up(Budget(patience=3), vain) is None
    assert used_up(Budget(patience=2), vain) == (Stop.VAIN, "2 attempts since step 2 brought no gain")
    assert spent(vain).gpu_seconds == 15.0 and used_up(Budget(gpu_seconds=15.0), vain) == (Stop.GPU, "")


def test_an_estimate_is_never_near_the_bound() -> None:
    assert used_up(Budget(within=0.99), (judged(1, Verdict.PASSED),)) is None


def test_the_worst_case_of_the_next_call_is_checked() -> None:
    told = Prompt("s" * 4000, "u" * 4000)  # at most 4,000 tokens
    model = "claude-opus-5-5"  # 4 and 20 dollars a million, 8 where it is written to a cache
    assert models.worst_usd(model, 4000, 10_000) == pytest.approx(0.232)
    assert cannot_afford(Budget(usd=0.24), (), model, told, 10_000) == ""
    said = cannot_afford(Budget(usd=0.23), (), model, told, 10_000)
    assert said.startswith("the next call may cost $0.24, and $0.23 are left of $0.23; --max-output-tokens lowers")
    paid = (Attempt(1, "no_program", usage=Usage(1000, 0, 0, 500, 0.1)),)
    assert "$0.14 are left of $0.24" in cannot_afford(Budget(usd=0.24), paid, model, told, 10_000)
    assert cannot_afford(Budget(tokens=15_000), (), "unknown", told, 10_000) == ""
    assert "14,000 tokens, and 13,500 are left" in cannot_afford(Budget(tokens=15_000), paid, "unknown", told, 10_000)


@dataclass
class Dear(Author):
    """An author with a price."""

    model: str = "claude-opus-5-5"
    max_output_tokens: int = 10_000
    checked: list[str] = field(default_factory=list)

    def check(self) -> None:
        self.checked.append(self.model)

    def count(self, prompt: Prompt) -> int | None:
        return None


def test_a_call_that_might_break_the_budget_is_not_made(tmp_path: Path) -> None:
    author = Dear([Reply(fenced(GOOD), usage=Usage(9000, 0, 0, 500, 0.3)), Reply(fenced(better(1)))])
    assert isinstance(author, Paid)
    outcome = synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), Settings(Budget(usd=0.55)))
    assert (outcome.stop, len(author.asked)) == (Stop.USD, 1)
    assert "the next call may cost" in outcome.reason


def test_after_a_refusal_the_next_author_answers(tmp_path: Path) -> None:
    no = Reply("frontier_llm", "refused")
    first, second = Author([no], model="one"), Author([Reply(fenced(GOOD)), no], model="two")
    authors = Fallback((first, second))
    outcome = synthesize(TASK, authors, ReadingJudge(), new_run(tmp_path), Settings(Budget(attempts=5)))
    assert [a.outcome for a in outcome.attempts] == ["refused", "evaluated", "refused"]
    assert outcome.attempts[1].candidate is not None and outcome.attempts[1].candidate.author == "author/two"
    assert len(first.asked) == 1


def test_fallbacks_are_models_or_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = make_all("anthropic", Options(model="a"), ("b", "openai/c", "planner"))
    assert isinstance(made, Fallback)
    assert [(p.name, p.model) for p in made.authors] == [
        *(("anthropic", "a"), ("anthropic", "b"), ("openai", "c"), ("planner", "rules"))
    ]


def test_a_prompt_that_is_too_long_is_an_attempt_and_the_next_is_shorter(tmp_path: Path) -> None:
    too_long = PromptTooLong("the prompt is too long")
    before = [Reply(fenced(better(n))) for n in range(6)]
    author = Author([*before, too_long, Reply(fenced(better(9)))])
    outcome = synthesize(TASK, author, ReadingJudge(), new_run(tmp_path), Settings(Budget(attempts=8)))
    assert [a.outcome for a in outcome.attempts] == [*["evaluated"] * 6, "too_long", "evaluated"]
    assert len(author.asked[7].prompt.user) < len(author.asked[6].prompt.user)
    twice = Author([too_long, too_long, Reply(fenced(GOOD))])
    with pytest.raises(ProviderError, match="this was the shortest prompt"):
        synthesize(TASK, twice, ReadingJudge(), new_run(tmp_path / "two"), Settings())


# -- before the first attempt


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Paid]:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODA_SYNTH_API_KEY"):
        monkeypatch.setenv(variable, KEY)

    def made(name: str, model: str, url: str) -> Paid:
        author: Provider = make(name, Options(model=model, base_url=url if name == "anthropic" else f"{url}/v1"))
        assert isinstance(author, Paid)
        return author

    return made


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-compatible"])
def test_key_and_model_are_checked_at_no_cost(name: str, build: Callable[[str, str, str], Paid]) -> None:
    with FakeService("text") as service:
        build(name, "ok", service.url).check()
        with pytest.raises(ProviderError, match="has no model 'oke'"):
            build(name, "oke", service.url).check()
        service.key = "another"
        with pytest.raises(ProviderError, match="refuses the key"):
            build(name, "ok", service.url).check()
        assert service.requests == []  # nothing was asked of a model


def test_tokens_are_counted_by_the_service(build: Callable[[str, str, str], Paid]) -> None:
    told = Prompt("the language", "the task")
    with FakeService("text") as service:
        assert build("anthropic", "ok", service.url).count(told) == INPUT
        assert build("openai", "ok", service.url).count(told) == INPUT
        assert build("openai-compatible", "ok", service.url).count(told) is None


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-compatible"])
def test_a_prompt_that_does_not_fit_is_told_apart(name: str, build: Callable[[str, str, str], Paid]) -> None:
    request = Request("t", Prompt("a", "b"), (), lambda: pytest.fail("no graph is needed"))
    with FakeService("text") as service, pytest.raises(PromptTooLong):
        build(name, "too-long", service.url).propose(request)


def test_prices_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "prices.toml"
    own.write_text("[prices.mine]\ninput = 1.0\noutput = 2.0\n")
    models._table.cache_clear()
    monkeypatch.setenv("CODA_SYNTH_MODELS", str(own))
    try:
        assert models.usd("mine", models.Tokens(fresh=1_000_000, output=500_000)) == 2.0
        assert models.price("claude-opus-5-5") is not None and models.price("nobody") is None
        own.write_text("[prices.mine]\ninptu = 1.0\n")
        models._table.cache_clear()
        with pytest.raises(ProviderError, match="CODA_SYNTH_MODELS"):
            models.price("mine")
    finally:
        models._table.cache_clear()


# -- what the author is told of it


def test_the_stable_part_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """Also on resuming with other lessons: the system text of a run is kept in its folder."""
    author = Author([Reply(fenced(better(n))) for n in range(4)])
    writer = new_run(tmp_path)
    synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=2), lessons=("one lesson",)))
    synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=4), lessons=("another",)))
    systems = {request.prompt.system for request in author.asked}
    assert len(author.asked) == 4 and len(systems) == 1
    assert "one lesson" in systems.pop() and "another" not in author.asked[3].prompt.system


def test_a_prompt_says_what_is_left_and_what_was_not_tried(tmp_path: Path) -> None:
    author = Author([Reply(fenced(GOOD))])
    writer = new_run(tmp_path)
    synthesize(TASK, author, ReadingJudge(), writer, Settings(Budget(attempts=3)))
    told = prompt(TASK, writer.attempts, choose(writer.attempts), Settings(Budget(attempts=3)))
    assert "2 of 3 attempts" in told.user and "## Not tried yet\n\nNone." in told.user  # one GEMM, nothing beside it
    assert "H200 (sm_90): 132 SMs" in told.system


# -- answers that broke off


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from coda_synth.agent import retry

    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-compatible"])
def test_an_answer_that_broke_off_counts(
    name: str, build: Callable[[str, str, str], Paid], tmp_path: Path, quick: None
) -> None:
    """Its whole prompt, and what had come of it, at most; beside what the answer took that came in the end."""
    with FakeService(fenced(GOOD)) as service:
        plain = synthesize(
            TASK, build(name, "ok", service.url), ReadingJudge(), new_run(tmp_path / "1"), Settings(Budget(attempts=1))
        )
        broken = synthesize(
            *(TASK, build(name, "breaks-then-ok", service.url), ReadingJudge(), new_run(tmp_path / "2")),
            Settings(Budget(attempts=1)),
        )
    one, two = plain.attempts[0].usage, broken.attempts[0].usage
    asked = len((tmp_path / "2/run/steps/001/prompt.md").read_text()) / 2
    assert two.input_tokens == pytest.approx(one.input_tokens + asked, abs=3)
    assert 0 < two.output_tokens - one.output_tokens < len(GOOD)


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-compatible"])
def test_no_more_tries_than_the_budget_bears_and_none_is_forgotten(
    name: str, build: Callable[[str, str, str], Paid], tmp_path: Path, quick: None
) -> None:
    writer = new_run(tmp_path)
    told = prompt(TASK)
    worst = -(-len(told.system + told.user) // 2) + Options().max_output_tokens
    settings = Settings(Budget(tokens=2 * worst + 100))
    with FakeService(fenced(GOOD)) as service:
        author = build(name, "cut", service.url)
        with pytest.raises(ProviderError, match="failed 2 times, .*; the budget bears no further try"):
            synthesize(TASK, author, ReadingJudge(), writer, settings)
        assert len(service.requests) == 2
        spare = Settings(Budget(tokens=worst + 5000))
        outcome = synthesize(TASK, author, ReadingJudge(), writer, spare)  # going on does not begin the account anew
        assert outcome.stop is Stop.TOKENS and len(service.requests) == 2
    kept = (writer.folder / "steps/001/spoilt.json").read_text()
    assert '"input_tokens"' in kept and not (writer.folder / "steps/001/reply.json").exists()


def test_a_broken_answer_has_a_price() -> None:
    from coda_synth.agent.retry import BrokenStream, metered

    request = Request("t", Prompt("s" * 4000, "u" * 4000), (), lambda: pytest.fail("no graph is needed"))
    with pytest.raises(BrokenStream), metered(request, "claude-opus-5-5") as meter:
        meter.add("x" * 2000)
        raise BrokenStream("cut")
    with pytest.raises(BrokenStream), metered(request, "claude-opus-5-5"):
        raise BrokenStream("refused at the door")
    (spoilt,) = request.spoilt
    assert (spoilt.input_tokens, spoilt.output_tokens) == (4000, 1000)
    assert spoilt.usd == models.worst_usd("claude-opus-5-5", 4000, 1000)

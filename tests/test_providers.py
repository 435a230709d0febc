"""The providers over a real loopback server: what they send, what they make of answers, what they say of errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.agent import models
from coda_synth.agent.models import Tokens
from coda_synth.agent.provider import Options, Prompt, Provider, ProviderError, Request
from coda_synth.agent.providers import PROVIDERS, make
from coda_synth.evaluator.trace import Graph
from coda_synth.runs.record import Attempt

from tests.fake_llm_server import CACHED, INPUT, KEY, OUTPUT, WRITTEN, FakeService

PAID = ("anthropic", "openai", "openai-compatible")
VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai-compatible": "CODA_SYNTH_API_KEY"}
TEXT = "Here it is.\n```coda\n@program\ndef f(): \u2264\n```\n"
Make = Callable[..., Provider]


def untraced() -> Graph:
    raise AssertionError("a model's provider has no use for the graph")


REQUEST = Request("linear_swiglu", Prompt("the language", "the task"), (), untraced)


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeService]:
    with FakeService(TEXT) as service:
        yield service


@pytest.fixture
def service(shared: FakeService) -> FakeService:
    shared.requests.clear()
    shared._seen.clear()
    return shared


@pytest.fixture
def build(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Make:
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, KEY)

    def made(name: str, model: str, **options: object) -> Provider:
        base = service.url if name == "anthropic" else f"{service.url}/v1"
        return make(name, replace(Options(model=model, base_url=base), **options))  # type: ignore[arg-type]

    return made


@pytest.mark.parametrize("name", PAID)
def test_an_answer_comes_whole_with_what_it_took(name: str, build: Make) -> None:
    reply = build(name, "ok").propose(REQUEST)
    assert (reply.text, reply.outcome, reply.model) == (TEXT, "text", "ok")
    used = reply.usage
    assert (used.input_tokens, used.cached_tokens, used.output_tokens) == (INPUT, CACHED, OUTPUT)
    assert used.cache_write_tokens == (0 if name == "openai-compatible" else WRITTEN)
    assert used.request_id == "req_1"
    assert used.seconds > 0
    assert used.usd is None  # "ok" is in no price list


@pytest.mark.parametrize("name", PAID)
def test_the_key_is_sent_and_kept_nowhere_else(name: str, build: Make, service: FakeService) -> None:
    build(name, "ok").propose(REQUEST)
    (received,) = service.requests
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(received.body)
    assert received.body["stream"] is True


def test_anthropic_caches_the_stable_part_alone(build: Make, service: FakeService) -> None:
    build("anthropic", "ok").propose(REQUEST)
    body = service.requests[0].body
    assert body["system"] == [
        {"type": "text", "text": "the language", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    assert body["messages"] == [{"role": "user", "content": "the task"}]
    assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    assert "temperature" not in body


def test_openai_sends_the_stable_part_as_instructions_and_stores_nothing(build: Make, service: FakeService) -> None:
    build("openai", "ok", effort="low").propose(REQUEST)
    body = service.requests[0].body
    assert (body["instructions"], body["input"]) == ("the language", [{"role": "user", "content": "the task"}])
    assert (body["store"], body["reasoning"]) == (False, {"effort": "low"})
    assert body["prompt_cache_key"] == "coda-synth:linear_swiglu"


def test_a_local_server_gets_the_common_subset(build: Make, service: FakeService) -> None:
    build("openai-compatible", "ok").propose(REQUEST)
    body = service.requests[0].body
    assert body["messages"] == [
        {"role": "system", "content": "the language"},
        {"role": "user", "content": "the task"},
    ]
    assert set(body) == {"model", "messages", "stream", "stream_options"}


def test_thoughts_left_in_an_answer_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODA_SYNTH_API_KEY", raising=False)
    with FakeService(f"<think>\n```\n@program\ndraft\n```\n</think>\n\n{TEXT}", key="none") as server:
        local = make("openai-compatible", Options(model="ok", base_url=f"{server.url}/v1"))
        assert local.propose(REQUEST).text == TEXT


@pytest.mark.parametrize("name", PAID)
def test_a_refusal_is_an_outcome(name: str, build: Make, service: FakeService) -> None:
    reply = build(name, "refuses").propose(REQUEST)
    assert reply.outcome == "refused"
    assert len(service.requests) == 1
    if name != "openai-compatible":
        assert "not this" in reply.text


@pytest.mark.parametrize("name", PAID)
def test_a_truncated_answer_is_an_outcome(name: str, build: Make) -> None:
    reply = build(name, "truncates").propose(REQUEST)
    assert (reply.outcome, reply.usage.output_tokens) == ("truncated", OUTPUT)


@pytest.mark.parametrize("name", PAID)
@pytest.mark.parametrize(
    ("model", "tries"), [("busy-then-ok", 3), ("down-then-ok", 2), ("breaks-then-ok", 2), ("fails-then-ok", 2)]
)
def test_what_may_pass_is_tried_again(
    name: str, model: str, tries: int, build: Make, service: FakeService, quick: None
) -> None:
    assert build(name, model).propose(REQUEST).text == TEXT
    assert len(service.requests) == tries


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's own waits, without a hint of the service, last seconds; the tests have the same policy, faster."""
    from coda_synth.agent import retry

    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)


@pytest.mark.parametrize("name", PAID)
@pytest.mark.parametrize(
    ("model", "said", "tries"),
    [
        ("busy", "failed 4 times, last with: slow down", 4),
        ("cut", "failed 4 times, last with: the connection closed in mid-answer", 4),
        ("busy-for-hours", "asks to wait 7200 seconds", 1),
        ("no-credit", "no credit left, or has met its limit: buy credit", 1),
        ("too-long", "refuses the request (400): prompt is too long", 1),
        ("unheard-of", "has no model 'unheard-of' at http://127.0.0.1", 1),
    ],
)
def test_what_will_not_pass_is_one_message(
    name: str, model: str, said: str, tries: int, build: Make, service: FakeService, quick: None
) -> None:
    with pytest.raises(ProviderError) as caught:
        build(name, model).propose(REQUEST)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(service.requests) == tries


@pytest.mark.parametrize("name", PAID)
def test_a_wrong_key_names_its_variable_and_not_itself(
    name: str, build: Make, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[name], "sk-wrong-9876543210")
    with pytest.raises(ProviderError, match=f"refuses the key in {VARIABLES[name]}") as caught:
        build(name, "ok").propose(REQUEST)
    assert "sk-wrong-9876543210" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert len(service.requests) == 1


@pytest.mark.parametrize("name", PAID)
def test_nobody_at_the_address(name: str, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    monkeypatch.setenv(VARIABLES[name], KEY)
    with FakeService("") as gone:
        url = gone.url
    with pytest.raises(ProviderError, match=f"cannot be reached at {url}"):
        make(name, Options(model="ok", base_url=url)).propose(REQUEST)


@pytest.mark.parametrize("name", PAID)
def test_an_answer_without_end_is_given_up(name: str, build: Make, quick: None) -> None:
    with pytest.raises(ProviderError, match="took more than 0 seconds"):
        build(name, "ok", seconds=0.0).propose(REQUEST)


@pytest.mark.parametrize("name", ["anthropic", "openai"])
@pytest.mark.parametrize("key", [None, "", "  "])
def test_no_key_is_said_before_any_request_or_import(
    name: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLES[name], raising=False)
    if key is not None:
        monkeypatch.setenv(VARIABLES[name], key)
    with pytest.raises(ProviderError, match=f"{VARIABLES[name]} is not set.*--provider planner"):
        make(name, Options())


def test_choosing_a_provider_loads_no_sdk() -> None:
    code = (
        "import os, sys; os.environ['ANTHROPIC_API_KEY'] = os.environ['OPENAI_API_KEY'] = 'x';"
        "from coda_synth.agent.providers import make; from coda_synth.agent.provider import Options;"
        "names = 'anthropic', 'openai', 'openai-compatible';"
        "[make(name, Options(model='m', base_url='http://localhost')) for name in names];"
        "print([m for m in ('anthropic', 'openai', 'torch', 'triton') if m in sys.modules])"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_a_local_server_needs_an_address_and_a_model() -> None:
    with pytest.raises(ProviderError, match="needs the server's address: --base-url"):
        make("openai-compatible", Options(model="m"))
    with pytest.raises(ProviderError, match="needs --model"):
        make("openai-compatible", Options(base_url="http://localhost:8000/v1"))
    with pytest.raises(ProviderError, match="must start with http"):
        make("openai-compatible", Options(model="m", base_url="localhost:8000"))


def test_an_address_with_a_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(ProviderError, match="must not hold a name or a key") as caught:
        make("openai-compatible", Options(model="m", base_url="https://me:hunter2@host/v1"))
    assert "hunter2" not in str(caught.value)


def test_an_unknown_provider_gets_the_nearest_name() -> None:
    with pytest.raises(ProviderError, match="did you mean anthropic"):
        make("antropic", Options())
    assert set(PROVIDERS) == {"planner", "scripted", "exchange", "anthropic", "openai", "openai-compatible"}


def test_prices() -> None:
    """By hand from the table: dollars per million tokens."""
    opus = Tokens(fresh=20, cache_read=3000, cache_write_1h=1500, output=11)
    assert models.usd("claude-opus-5-5", opus) == pytest.approx((20 * 4 + 3000 * 0.20 + 1500 * 8 + 11 * 20) / 1e6)
    assert models.usd("claude-opus-5-5-20261101", opus) == models.usd("claude-opus-5-5", opus)
    assert models.usd("claude-opus-5-5-turbo", opus) is None
    assert models.usd("claude-haiku-5-5", Tokens(fresh=100_000)) == pytest.approx(0.01)
    assert models.usd("claude-haiku-5-5", Tokens(fresh=100_001, output=10)) == pytest.approx((10_000.1 * 5 + 25) / 1e6)
    assert models.usd("gpt-6-luna", Tokens(fresh=300_000, output=100)) == pytest.approx((30_000 * 2 + 50 * 1.5) / 1e6)
    assert models.usd("gpt-6.2-sol", Tokens(cache_read=1_000_000)) == pytest.approx(
        4.0
    )  # unstated: as plain input, long
    assert models.usd("gpt-6.2-sol", Tokens(cache_write_1h=1)) is None
    assert models.usd("some-local-model", Tokens(fresh=1)) is None


def test_every_default_model_has_a_price() -> None:
    for provider in ("anthropic", "openai"):
        assert models.price(models.default_model(provider)) is not None
    assert models.default_model("openai-compatible") == ""


def attempts(count: int) -> tuple[Attempt, ...]:
    return tuple(Attempt(step, "no_program") for step in range(1, count + 1))


def replay(path: Path) -> list[str]:
    scripted = make("scripted", Options(replies=path))
    told = []
    while (
        reply := scripted.propose(replace(REQUEST, attempts=attempts(len(told)), number=len(told) + 1))
    ).outcome != "done":
        told.append(reply.text)
    return told


def test_scripted_replays_a_folder_by_name(tmp_path: Path) -> None:
    (tmp_path / "2.coda").write_text("@program\n")
    (tmp_path / "1.md").write_text("I need to think.")
    (tmp_path / "notes.txt").write_text("not a reply")
    assert replay(tmp_path) == ["I need to think.", "~~~~\n@program\n~~~~\n"]


def test_scripted_replays_a_file_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "talk.md"
    path.write_text("=== reply\none\n=== reply\ntwo\n\n=== replying is not a separator\n")
    assert replay(path) == ["one\n", "two\n\n=== replying is not a separator\n"]


def test_scripted_says_what_it_cannot_replay(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="needs the replies that it replays: --replies"):
        make("scripted", Options())
    with pytest.raises(ProviderError, match="cannot be read: No such file"):
        make("scripted", Options(replies=tmp_path / "none"))
    with pytest.raises(ProviderError, match="holds no replies"):
        make("scripted", Options(replies=tmp_path))
    (tmp_path / "x.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ProviderError, match="not UTF-8"):
        make("scripted", Options(replies=tmp_path))

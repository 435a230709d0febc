"""The providers by name. A provider's module, and the SDK that it may need, is loaded when it is chosen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace

from coda_synth.agent.provider import BadOption, Options, Provider


def make(name: str, options: Options) -> Provider:
    """The provider, ready for its first request; raises ProviderError (no key) or BadOption."""
    if name not in PROVIDERS:
        near = difflib.get_close_matches(name, PROVIDERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PROVIDERS)}"
        raise BadOption(f"there is no provider {name!r}; {hint}")
    return PROVIDERS[name](options)


def make_all(name: str, options: Options, fallback: Sequence[str] = ()) -> Provider:
    """The provider, and behind it those who are asked where it refuses: "model" of the same, or "provider/model"."""
    authors = [make(name, options)]
    for entry in fallback:
        first, _, rest = entry.partition("/")
        other = (first, rest) if first in PROVIDERS else (name, entry)
        authors.append(make(other[0], replace(options, model=other[1])))
    if len(authors) == 1:
        return authors[0]
    from coda_synth.agent.fallback import Fallback

    return Fallback(authors)


def _planner(options: Options) -> Provider:
    from coda_synth.agent.planner import Planner

    return Planner()


def _scripted(options: Options) -> Provider:
    from coda_synth.agent.scripted import Scripted

    if options.replies is None:
        raise BadOption("the provider scripted needs the replies that it replays: --replies PATH")
    return Scripted(options.replies)


def _exchange(options: Options) -> Provider:
    from coda_synth.agent.exchange import Exchange

    return Exchange(options.wait)


def _anthropic(options: Options) -> Provider:
    from coda_synth.agent.anthropic_provider import Anthropic

    return Anthropic(options)


def _openai(options: Options) -> Provider:
    from coda_synth.agent.openai_provider import OpenAI

    return OpenAI(options)


def _compatible(options: Options) -> Provider:
    from coda_synth.agent.compatible_provider import OpenAICompatible

    return OpenAICompatible(options)


PROVIDERS: dict[str, Callable[[Options], Provider]] = {
    "planner": _planner,
    "scripted": _scripted,
    "exchange": _exchange,
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-compatible": _compatible,
}

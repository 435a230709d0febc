"""Which model a provider uses when none is named, and what a call to a known model costs: both from models.toml."""

from __future__ import annotations

import functools
import os
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from coda_synth.agent.provider import ProviderError

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens; long_*: factors on the whole call above `long_from` input tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write_5m: float | None = None
    cache_write_1h: float | None = None
    long_from: int | None = None
    long_input: float = 1.0
    long_output: float = 1.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one call, by what they cost. fresh: input that neither came from a cache nor went into one."""

    fresh: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0

    @property
    def input(self) -> int:
        return self.fresh + self.cache_read + self.cache_write_5m + self.cache_write_1h


def default_model(provider: str) -> str:
    """The id that models.toml names for a provider, "" where it names none (a server of one's own)."""
    return str(_table()["defaults"].get(provider, ""))


def price(model: str) -> Price | None:
    """None for an unknown model. A dated id, as services report them ("name-20261101"), has its name's price."""
    prices = _table()["prices"]
    names = [name for name in prices if model == name or _dated(model, name)]
    return Price(**prices[names[0]]) if names else None


def usd(model: str, tokens: Tokens) -> float | None:
    """What the call costs, at most; None where the model, or its writing to a cache, has no known price."""
    known = price(model)
    if known is None:
        return None
    paid = [
        (tokens.fresh, known.input),
        (tokens.cache_read, known.input if known.cache_read is None else known.cache_read),
        (tokens.cache_write_5m, known.cache_write_5m),
        (tokens.cache_write_1h, known.cache_write_1h),
    ]
    if any(count and rate is None for count, rate in paid):
        return None
    spent_in = sum(count * (rate or 0.0) for count, rate in paid)
    spent_out = tokens.output * known.output
    if known.long_from is not None and tokens.input > known.long_from:
        spent_in, spent_out = spent_in * known.long_input, spent_out * known.long_output
    return (spent_in + spent_out) / _MILLION


def worst_usd(model: str, input_tokens: int, output_tokens: int) -> float | None:
    """What a call of this size can cost at most: its input at the dearest rate, as if all were written to a cache."""
    known = price(model)
    if known is None:
        return None
    rate = max(known.input, known.cache_write_5m or 0.0, known.cache_write_1h or 0.0)
    long = known.long_from is not None and input_tokens > known.long_from
    times_in, times_out = (known.long_input, known.long_output) if long else (1.0, 1.0)
    return (input_tokens * rate * times_in + output_tokens * known.output * times_out) / _MILLION


def _dated(model: str, name: str) -> bool:
    rest = model.removeprefix(name + "-").replace("-", "")
    return model.startswith(name + "-") and len(rest) == 8 and rest.isdigit()


@functools.cache
def _table() -> dict[str, Any]:
    """The package's file, and over it the user's own: a file of the same form that CODA_SYNTH_MODELS names."""
    table = tomllib.loads(files("coda_synth.agent").joinpath("models.toml").read_text(encoding="utf-8"))
    own = os.environ.get("CODA_SYNTH_MODELS")
    if own:
        try:
            mine = tomllib.loads(Path(own).read_text(encoding="utf-8"))
            [Price(**row) for row in mine.get("prices", {}).values()]
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise ProviderError(f"the price table {own} (CODA_SYNTH_MODELS) cannot be read: {error}") from None
        for name in ("defaults", "prices"):
            table[name] = {**table[name], **mine.get(name, {})}
    return table

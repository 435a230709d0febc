"""How many tokens a text has, without asking a service: an estimate, and a number that it will hardly exceed."""

from __future__ import annotations

import math

_LIKELY = 3.4  # characters a token, of English and program text mixed
_LEAST = 2.0


def estimate(text: str) -> int:
    """About so many; services differ by a fifth either way."""
    return math.ceil(len(text) / _LIKELY)


def at_most(text: str) -> int:
    """For budgets: no tokenizer in use needs more for such text."""
    return math.ceil(len(text) / _LEAST)

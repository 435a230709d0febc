"""How good the library's own approximations are: their very text, in numpy's fp32, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coda_synth.coda_api.gluon_text import library


def fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded once: a product of two fp32 is exact in float64."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def spelled(name: str) -> Callable[..., Any]:
    """A function of the library, with what it calls, on arrays."""
    words = {n: getattr(np, n) for n in ("abs", "exp2", "where", "minimum", "maximum")}
    text = library(f"{name}(").replace("@triton.jit", "").replace(": tl.constexpr", "")
    namespace: dict[str, Any] = {"tl": SimpleNamespace(**words, fma=fma, PropagateNan=SimpleNamespace(ALL=None))}
    exec(text.replace(", propagate_nan=tl.PropagateNan.ALL", ""), namespace)
    found: Callable[..., Any] = namespace[name]
    return found


X = np.linspace(-20, 20, 200_001, dtype=np.float32)
PHI = np.array([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in X])


def test_gelu() -> None:
    """To 2e-5 of itself, or as if Phi were off by 2e-8: less than what 1 + erf in fp32 is off by."""
    off = np.abs(spelled("gelu")(X).astype(np.float64) - X * PHI)
    assert (off <= np.maximum(2e-5 * np.abs(X * PHI), 2e-8 * np.abs(X))).all()
    assert 2e-6 < off.max() < 3e-6  # which tests of drawn programs allow for


def test_ndtr() -> None:
    """On both sides; 1 less the tail is rounded to fp32."""
    off = np.abs(spelled("ndtr")(X).astype(np.float64) - PHI)
    assert (off <= 8e-7 * np.minimum(PHI, 1 - PHI) + np.where(X < 0, 2e-9, 6e-8)).all()
    assert off.max() < 2.5e-7


def test_what_is_not_finite() -> None:
    ends = np.array([np.inf, -np.inf, np.nan, 0.0], dtype=np.float32)
    gelu, ndtr = spelled("gelu")(ends), spelled("ndtr")(ends)
    assert gelu[0] == np.inf and abs(gelu[1]) < 1e-36 and np.isnan(gelu[2]) and gelu[3] == 0
    assert ndtr[0] == 1 and ndtr[1] < 1e-36 and np.isnan(ndtr[2]) and ndtr[3] == 0.5


@pytest.mark.parametrize("last", [131_072, 2**22, 2**24])
def test_rotation(last: int) -> None:
    """Frequencies in turns, in two parts, at positions as far as fp32 counts."""
    generator = np.random.default_rng(7)
    position = np.append(generator.integers(0, last, 20_000), last - 1).astype(np.float32)
    turns = 500_000.0 ** -generator.random(position.size) / (2 * math.pi)
    high = turns.astype(np.float32)
    low = (turns - high).astype(np.float32)
    cos, sin = spelled("rotation")(position, high, low)
    angle = np.longdouble(position) * (np.longdouble(high) + np.longdouble(low))
    angle = (2 * np.pi * (angle - np.rint(angle))).astype(np.float64)
    assert max(np.abs(cos - np.cos(angle)).max(), np.abs(sin - np.sin(angle)).max()) < 6e-7


def test_whole_turns_stay_whole_far_beyond_any_position() -> None:
    position = np.array([2.0**22 + 1, 3e7, 1e9, -1e9], dtype=np.float32)
    for frequency in (np.float32(0.159), np.float32(1.0)):
        n = spelled("whole_turns")(position, frequency).astype(np.float64)
        left = np.float64(position) * np.float64(frequency) - n
        assert (n == np.rint(n)).all() and (np.abs(left) <= 2.0**-23 * np.abs(n) + 0.5).all()

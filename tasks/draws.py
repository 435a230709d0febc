"""How a task's inputs are drawn, one rule a style; scales are chosen so that every term of an operator matters.

Everything comes from the generator, as float32 on the CPU, so that a seed and a style replay an input anywhere.
"""

from __future__ import annotations

import math

import torch

SCALES = {"small": 1e-3, "large": 1e3}
LAST_POSITION = 131_071


def activation(shape: tuple[int, int], generator: torch.Generator, style: str) -> torch.Tensor:
    """Rows of hidden states, [tokens, features], of about unit scale except where the style says otherwise."""
    if style == "skewed":
        return torch.empty(shape).exponential_(generator=generator) - 0.5
    if style == "integers":
        return torch.randint(-3, 4, shape, generator=generator).float()
    if style == "one_hot":
        return _one_hot(shape, generator)
    if style == "repeated_rows":
        distinct = torch.randn((2, shape[1]), generator=generator)
        return distinct[torch.arange(shape[0]) % 2]
    if style == "adversarial_rows":
        return _adversarial(shape, generator)
    return torch.randn(shape, generator=generator) * SCALES.get(style, 1.0)


def residual(shape: tuple[int, int], generator: torch.Generator, style: str) -> torch.Tensor:
    """What is added to such a product: of the product's scale, and dense where probes are sparse."""
    if style != "one_hot":
        return activation(shape, generator, style)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def weight(shape: tuple[int, int], generator: torch.Generator, style: str) -> torch.Tensor:
    """A linear weight [out, in]: its product with a unit-scale activation has unit scale. Integers stay integers."""
    if style == "integers":
        return torch.randint(-2, 3, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def bias(length: int, generator: torch.Generator, style: str) -> torch.Tensor:
    """A vector added to every row of a product, of that product's scale."""
    if style == "integers":
        return torch.randint(-3, 4, (length,), generator=generator).float()
    return torch.randn(length, generator=generator) * SCALES.get(style, 1.0)


def beside(shape: tuple[int, int], generator: torch.Generator, style: str) -> torch.Tensor:
    """A saved tensor that meets a gradient in a sum over tokens: of unit scale, dense where probes are sparse, and
    without equal rows, whose equal roundings would add up as those of no real batch do."""
    dense = style in ("one_hot", "repeated_rows")
    return torch.randn(shape, generator=generator) if dense else activation(shape, generator, style)


def stored(value: torch.Tensor) -> torch.Tensor:
    """What bfloat16 keeps of a value: whatever is computed from it then fits what a program is given."""
    return value.bfloat16().float()


def product(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """a w^T in float32, for what a forward would have saved. A real shape takes the GPU where there is one: its fp32
    sums are the same in every process there, and within roundoff of the CPU's."""
    if a.numel() * len(w) < 1 << 34 or not torch.cuda.is_available():
        return a @ w.T
    return (a.cuda() @ w.cuda().T).to(a.device)


def accumulated(shape: tuple[int, int], tokens: int, generator: torch.Generator, style: str) -> torch.Tensor:
    """A weight's gradient of earlier passes: of the scale that a sum over `tokens` gives to the next one."""
    if style == "integers":
        return torch.randint(-9, 10, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) * math.sqrt(tokens) * SCALES.get(style, 1.0) ** 2


def gain(length: int, generator: torch.Generator) -> torch.Tensor:
    """A norm's weight: around one, with both signs present."""
    return 1.0 + 0.5 * torch.randn(length, generator=generator)


def epsilon(generator: torch.Generator) -> float:
    """What a norm adds to the mean square of a row."""
    return (1e-4, 1e-5, 1e-6)[int(torch.randint(0, 3, (1,), generator=generator))]


def positions(count: int, generator: torch.Generator) -> torch.Tensor:
    """Places in a sequence, int64: the first and the last of a context of 131,072, and others in between."""
    found = torch.randint(0, LAST_POSITION + 1, (count,), generator=generator)
    found[0], found[-1] = 0, LAST_POSITION
    return found


def inverse_frequencies(half: int, generator: torch.Generator) -> torch.Tensor:
    """Radians a position, one for each rotated pair of a head, with one of the usual bases."""
    theta = (10_000.0, 500_000.0)[int(torch.randint(0, 2, (1,), generator=generator))]
    return theta ** (-torch.arange(half) / half)


def packed_frequencies(pairs: int, generator: torch.Generator) -> torch.Tensor:
    """Radians a position for the pairs of packed query, key and value heads; the last quarter does not rotate."""
    found = inverse_frequencies(max(1, pairs // 4), generator).repeat(5)[:pairs]
    found[pairs - pairs // 4 :] = 0.0
    return found


def _one_hot(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """One entry of +-1 a row; the columns are probed in a random order, none twice before all were seen once."""
    rows, columns = shape
    order = torch.randperm(columns, generator=generator).repeat(-(-rows // columns))[:rows]
    sign = torch.randint(0, 2, (rows,), generator=generator).float() * 2 - 1
    result = torch.zeros(shape)
    result[torch.arange(rows), order] = sign
    return result


def _adversarial(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Rows that are hard for norms and softmax: huge, tiny, constant, zero, one spike, alternating, ordinary."""
    rows, columns = shape
    noise = torch.randn(shape, generator=generator)
    spike = noise * 1e-2
    place = torch.randint(0, columns, (rows,), generator=generator)
    spike[torch.arange(rows), place] = 1e2
    alternating = (1.0 - 2.0 * (torch.arange(columns) % 2)).expand(shape)
    kinds = torch.stack((noise * 1e4, noise * 1e-4, torch.ones(shape), torch.zeros(shape), spike, alternating, noise))
    first = int(torch.randint(0, len(kinds), (1,), generator=generator))
    return kinds[(torch.arange(rows) + first) % len(kinds), torch.arange(rows)]

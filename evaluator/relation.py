"""How a wrong output relates to the exact one, in words that name a mistake: a sign, a factor of each row, a swap."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

_CLOSE = 0.02  # relative residual below which a relation holds
_LEAST = 8  # elements; fewer fit any relation


def relation(exact: torch.Tensor, output: torch.Tensor) -> str:
    """The simplest relation that holds over the whole output, as a clause; "" where none does. Any shape, float64."""
    one = exact.reshape(exact.shape[0] if exact.dim() else 1, -1)
    other = output.to(exact).reshape(one.shape)
    if output.numel() < _LEAST or not other.isfinite().all():
        return ""
    if not float(other.abs().max()):
        return "it is zero everywhere"
    return next((said for said in _relations(one, other) if said), "")


def _relations(exact: torch.Tensor, output: torch.Tensor) -> Iterator[str]:
    yield _factor(exact, output)
    rows, columns = exact.shape
    if rows > 1 and columns > 1:
        yield _by(exact, output, 1, "row")
        yield _by(exact, output, 0, "column")
        yield _offset(exact, output, 1, "row")
        yield _offset(exact, output, 0, "column")
    for name, moved in _MOVES.items():
        if columns % 2 == 0 or "column" not in name:
            yield f"it is the exact result with {name}" if _same(moved(exact), output) else ""


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return float((one - two).norm()) <= _CLOSE * float(two.norm())


def _explained(related: torch.Tensor, output: torch.Tensor, exact: torch.Tensor) -> bool:
    """It is the output, and nearer to it than the exact result is: any factor near 1 gives what is nearly right."""
    return _same(related, output) and 2 * float((related - output).norm()) <= float((exact - output).norm())


def _factor(exact: torch.Tensor, output: torch.Tensor) -> str:
    factor = float((exact * output).sum() / exact.square().sum().clamp_min(1e-300))
    if not factor or not _explained(factor * exact, output, exact):
        return ""
    return (
        "it is the exact result negated" if abs(factor + 1) < _CLOSE else f"it is {factor:.4g} times the exact result"
    )


def _by(exact: torch.Tensor, output: torch.Tensor, dim: int, name: str) -> str:
    """One factor a row, or a column."""
    factors = (exact * output).sum(dim, keepdim=True) / exact.square().sum(dim, keepdim=True).clamp_min(1e-300)
    if not _explained(factors * exact, output, exact):
        return ""
    return f"each {name} is the exact one times a factor of its own, {_range(factors)}"


def _offset(exact: torch.Tensor, output: torch.Tensor, dim: int, name: str) -> str:
    """One addend a row, or a column."""
    off = (output - exact).mean(dim, keepdim=True)
    if float((output - exact - off).norm()) > _CLOSE * float((output - exact).norm()):
        return ""
    return f"each {name} is the exact one plus a number of its own, {_range(off)}"


def _range(values: torch.Tensor) -> str:
    return f"{float(values.min()):.4g} to {float(values.max()):.4g}"


def _swap_pairs(exact: torch.Tensor) -> torch.Tensor:
    return exact.reshape(exact.shape[0], -1, 2).flip(2).reshape(exact.shape)


def _swap_halves(exact: torch.Tensor) -> torch.Tensor:
    return torch.cat(exact.chunk(2, 1)[::-1], 1)


_MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "even and odd columns swapped": _swap_pairs,
    "the two halves of its columns swapped": _swap_halves,
    "its rows one too far down": lambda exact: exact.roll(1, 0),
    "its rows one too far up": lambda exact: exact.roll(-1, 0),
}

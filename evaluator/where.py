"""Says in words which elements of an output are meant, so that the pattern shows: a tile, an edge, a parity."""

from __future__ import annotations

import torch


def where(mask: torch.Tensor) -> str:
    """The marked elements, as in "12 of 64 elements (the last row)"; `mask` is boolean, of any rank, not all False."""
    count, total = int(mask.sum()), mask.numel()
    if count == total:
        return "all elements" if total > 1 else "the only element"
    matrix = mask.reshape(-1, 1) if mask.dim() < 2 else mask.flatten(0, -2)
    rows = _along(matrix.any(1), "row")
    columns = _along(matrix.any(0), "column") if mask.dim() > 1 else ""
    place = ", ".join(part for part in (rows, columns) if part)
    return f"{count} of {total} elements ({place or 'scattered'})"


def _along(marked: torch.Tensor, noun: str) -> str:
    """Which rows or columns hold a marked element, or "" where that says nothing."""
    places = marked.nonzero().flatten().tolist()
    length, first, last = len(marked), places[0], places[-1]
    if len(places) == length:
        return ""
    if len(places) == 1:
        return f"the last {noun}" if first == length - 1 else f"{noun} {first}"
    if len(places) == last - first + 1:
        if last == length - 1:
            return f"the last {len(places)} {noun}s"
        return f"the first {len(places)} {noun}s" if first == 0 else f"{noun}s {first} to {last}"
    for parity, word in ((0, "even"), (1, "odd")):
        if places == list(range(parity, length, 2)):
            return f"every {word} {noun}"
    return f"{len(places)} {noun}s between {first} and {last}"

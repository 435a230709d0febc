"""Says in words which elements of an output are meant, so that the pattern shows: a tile, an edge, a parity; and draws
it."""

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


_SIDE = 12  # cells of a picture along each side, at most
_SHADES = ".:+#"  # none of a cell's elements, some, most, all


def picture(mask: torch.Tensor) -> str:
    """The marked elements of a matrix as a map, one character a cell, with the size of a cell; "" where a map says
    no more than words."""
    if mask.dim() != 2 or min(mask.shape) < 2 or bool(mask.all()):
        return ""
    height, width = (-(-length // _SIDE) for length in mask.shape)
    padded = torch.nn.functional.pad(mask.double(), (0, -mask.shape[1] % width, 0, -mask.shape[0] % height))
    counted = torch.nn.functional.pad(
        torch.ones_like(mask, dtype=torch.float64), (0, -mask.shape[1] % width, 0, -mask.shape[0] % height)
    )
    shares = _cells(padded, height, width) / _cells(counted, height, width)
    rows = ["".join(_shade(float(share)) for share in row) for row in shares]
    return f"map of the wrong elements, a cell {height} rows x {width} columns:\n" + "\n".join(rows)


def _cells(values: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return values.reshape(values.shape[0] // height, height, values.shape[1] // width, width).sum((1, 3))


def _shade(share: float) -> str:
    return _SHADES[0 if share == 0 else 3 if share == 1 else 1 if share < 0.5 else 2]


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

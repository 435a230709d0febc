"""Sums cut in a stream (stream-K): the steps along K of all tiles, one tile after the other, in equal runs, one for
each program. A run covers the end of one tile, whole tiles, and the beginning of another; what it has of a tile is a
piece.

The rule needs no table. With `length` steps in a run and `steps` in a tile, tile t is touched by the runs from
t * steps // length to (t * steps + steps - 1) // length, so a run's number less the first of these is the piece's. An
interval of `steps` meets at most ceil((steps - 1) / length) + 1 runs: with length >= steps / (most - 1) that is no more
than `most`. Pieces are added up in the order of their runs, so equal inputs give equal bits.
"""

from __future__ import annotations


def run_length(tiles: int, steps: int, runs: int, most: int) -> int:
    """Steps of one run; the library function of this name computes it on the device. most: pieces of a tile, from 2."""
    return max(-(-tiles * steps // runs), -(-steps // (most - 1)))


def piece_count(tiles: int, steps: int, length: int) -> int:
    """Pieces of all tiles: one more begins wherever a tile or a run does."""
    starts = tiles + -(-tiles * steps // length)
    return starts - sum(tile * steps % length == 0 for tile in range(tiles))


def pieces_in_a_run(tiles: int, steps: int, length: int) -> int:
    """The most that any run has."""
    runs = -(-tiles * steps // length)
    return max(-(-min((run + 1) * length, tiles * steps) // steps) - run * length // steps for run in range(runs))


def stream_text(m: str, n: str, k: str) -> list[str]:
    """What a program works out first: its run, from `begin` to `end`. Lengths of the product as texts."""
    m, n, k = (length.strip("()") for length in (m, n, k))
    return [
        f"tiles_m, tiles_n, along = tl.cdiv({m}, BLOCK_M), tl.cdiv({n}, BLOCK_N), tl.cdiv({k}, BLOCK_K)",
        "length = run_length(tiles_m * tiles_n, along, RUNS, SPLIT_K)",
        "begin = tl.program_id(0) * length",
        "end = min(begin + length, tiles_m * tiles_n * along)",
    ]


PIECE = [
    "first, last = max(begin - tile * along, 0), min(end - tile * along, along)",
    "piece = tl.program_id(0) - tile * along // length",
]
"""And of each tile: its steps from `first` to `last`, and the piece's number."""

ALONG_K = "range(first * BLOCK_K, last * BLOCK_K, BLOCK_K)"


def count_text(k: str) -> list[str]:
    """The number of a tile's pieces, for who adds them up; DEPTH is the block_k of those that computed them."""
    return [
        f"along = tl.cdiv({k.strip('()')}, DEPTH)",
        "length = run_length(tiles_m * tiles_n, along, RUNS, SPLIT_K)",
        "count = (tile * along + along - 1) // length - tile * along // length + 1",
    ]

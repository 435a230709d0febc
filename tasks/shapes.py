"""Shapes that many tasks share: small ones to check (odd, aligned, coinciding, one row) and real ones to time."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = tuple[Mapping[str, int], ...]
Timed = Mapping[str, Mapping[str, int]]

# A projection from D features to F: the up half of an MLP.
CHECK_UP: Shapes = (
    {"T": 37, "D": 53, "F": 41},
    {"T": 40, "D": 64, "F": 80},
    {"T": 48, "D": 48, "F": 48},
    {"T": 5, "D": 7, "F": 3},
    {"T": 1, "D": 1, "F": 1},
)
TIME_UP: Timed = {
    "llama3-8b": {"T": 8192, "D": 4096, "F": 14336},
    "llama3-1b": {"T": 8192, "D": 2048, "F": 8192},
    "odd": {"T": 7919, "D": 3000, "F": 8008},
}

# A projection from K features back to the D of the residual stream: attention's output.
CHECK_OUT: Shapes = (
    {"T": 37, "D": 41, "K": 53},
    {"T": 33, "D": 80, "K": 64},
    {"T": 48, "D": 48, "K": 48},
    {"T": 5, "D": 3, "K": 7},
    {"T": 1, "D": 1, "K": 1},
)
TIME_OUT: Timed = {
    "llama3-8b": {"T": 8192, "D": 4096, "K": 4096},
    "llama3-1b": {"T": 8192, "D": 2048, "K": 2048},
    "odd": {"T": 7919, "D": 3000, "K": 2504},
}

# Query, key and value heads of H features, with fewer heads for keys and values.
CHECK_HEADS: Shapes = (
    {"T": 37, "D": 53, "HQ": 3, "HK": 1, "H": 16},
    {"T": 33, "D": 64, "HQ": 4, "HK": 2, "H": 16},
    {"T": 32, "D": 32, "HQ": 1, "HK": 1, "H": 32},
    {"T": 5, "D": 7, "HQ": 3, "HK": 3, "H": 32},
    {"T": 1, "D": 1, "HQ": 1, "HK": 1, "H": 16},
)
TIME_HEADS: Timed = {
    "llama3-8b": {"T": 8192, "D": 4096, "HQ": 32, "HK": 8, "H": 128},
    "llama3-1b": {"T": 8192, "D": 2048, "HQ": 32, "HK": 8, "H": 64},
    "odd": {"T": 7919, "D": 3000, "HQ": 25, "HK": 5, "H": 64},
}

# The LM head, with a vocabulary of V.
CHECK_HEAD: Shapes = (
    {"T": 37, "D": 53, "V": 101},
    {"T": 33, "D": 64, "V": 80},
    {"T": 48, "D": 48, "V": 48},
    {"T": 5, "D": 7, "V": 3},
    {"T": 1, "D": 1, "V": 1},
)
TIME_HEAD: Timed = {
    "llama3-8b": {"T": 8192, "D": 4096, "V": 128256},
    "llama3-1b": {"T": 8192, "D": 2048, "V": 128256},
    "odd": {"T": 7919, "D": 3000, "V": 50257},
}

# A unit of a Llama: attention outputs of width A, a residual stream of D, an MLP of F, and Q columns of q, k and v.
CHECK_UNIT: Shapes = (
    {"T": 37, "D": 53, "A": 29, "F": 41, "Q": 58},
    {"T": 40, "D": 80, "A": 64, "F": 48, "Q": 96},
    {"T": 48, "D": 48, "A": 48, "F": 48, "Q": 48},
    {"T": 5, "D": 7, "A": 3, "F": 9, "Q": 6},
    {"T": 1, "D": 1, "A": 1, "F": 1, "Q": 2},
)
TIME_UNIT: Timed = {
    "llama3-8b": {"T": 8192, "D": 4096, "A": 4096, "F": 14336, "Q": 6144},
    "llama3-1b": {"T": 8192, "D": 2048, "A": 2048, "F": 8192, "Q": 3072},
    "odd": {"T": 7919, "D": 3000, "A": 2504, "F": 8008, "Q": 5000},
}

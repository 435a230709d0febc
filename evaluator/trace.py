"""A task's reference as a graph of ATen operations, as data: made in the reference child, read by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. args and kwargs hold JSON values, with {"node": name} where another node's result enters."""

    name: str
    op: str  # "input", "output" or an ATen overload, "aten.mm.default"
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced reference. sizes: the size of every symbol used for tracing, all distinct, so that a size names a dim."""

    task: str
    sizes: Mapping[str, int]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str]  # output name -> node name

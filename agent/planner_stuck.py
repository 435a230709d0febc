"""What the planner says where its rules end."""

from __future__ import annotations

from coda_synth.coda_api.dims import Dim
from coda_synth.evaluator.trace import Node


class Stuck(Exception):
    """The planner's rules end here: at which node, why, and what rule would be needed."""

    def __init__(self, node: Node | None, reason: str, need: str) -> None:
        self.node, self.reason, self.need = node, reason, need
        super().__init__(f"stopped at {_shown(node)}: {reason}. Needed: {need}.")


class SplitNeeded(Exception):
    """Two pieces meet side by side in every group of columns: the tile is made half by half."""

    def __init__(self, group: Dim) -> None:
        self.group = group


def _shown(node: Node | None) -> str:
    if node is None:
        return "the program as a whole"
    return f"{node.op} (node {node.name}, {node.place})" if node.place else f"{node.op} (node {node.name})"

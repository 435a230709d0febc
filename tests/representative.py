"""The tasks on which slow machinery (judge, export, planner, builds) is tested; cheap tests take every task."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from coda_synth.evaluator.checking import meaning_cases
from coda_synth.evaluator.oracle import facts_of
from coda_synth.tasks.catalog import task, task_names
from coda_synth.tasks.spec import STYLES

REPRESENTATIVE = (
    "linear_bias_gelu",
    "linear_swiglu",
    "linear_residual",
    "residual_rmsnorm_swiglu",
    "linear_rope",
    "lm_head_cross_entropy",
)

# Every task; those beside the representative ones with every pair of shape and style in the slow run alone.
BOTH_WAYS: list[Any] = [(name, name in REPRESENTATIVE) for name in task_names()]
BOTH_WAYS += [pytest.param(name, True, marks=pytest.mark.slow) for name in task_names() if name not in REPRESENTATIVE]


def shapes_and_styles(name: str, every_pair: bool) -> list[tuple[Mapping[str, int], str]]:
    """The pairs of shape and style that a task is checked with: all, or as the judge plans, each at least once."""
    spec = task(name)
    if every_pair:
        return list(itertools.product(spec.check_shapes, STYLES))
    return [(case.sizes, case.style) for case in meaning_cases(facts_of(spec, "bfloat16"), seed=0)]

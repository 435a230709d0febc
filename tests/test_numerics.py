"""Moved roundings cost no more than eager's own, or than rounding once: the rule of docs/numerics.md, on every task."""

from __future__ import annotations

import pytest
import torch
from coda_synth.tasks.catalog import task, task_names

from benchmarks import numerics

torch.set_num_threads(1)


@pytest.mark.parametrize("name", task_names())
def test_the_worst_row_is_as_good_as_eagers_or_as_rounding_once(name: str) -> None:
    cells, broken = numerics.row_of(task(name))
    assert not broken
    assert sum(bool(cell) for cell in cells) == len(numerics.cases_of(task(name)))


def test_what_the_rule_refuses() -> None:
    assert numerics.excess((2.5e-3, 2e-3, 1.9e-3)) > numerics.FACTOR > numerics.excess((2.3e-3, 2e-3, 1.9e-3))


def test_layernorm_of_a_far_mean_is_much_closer_than_eagers() -> None:
    found = numerics.errors(task("residual_layernorm_linear"), "mean 100 sigma", 0)
    ours, eager, _ = found["z"]
    assert ours < 0.1 * eager

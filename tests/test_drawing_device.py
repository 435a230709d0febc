"""Real shapes drawn for a device that is not the CPU: which operation meets tensors of both is found without a GPU, on
torch's meta device, which has devices and shapes and no data."""

from __future__ import annotations

import pytest
import torch
from coda_synth.evaluator.drawing import LARGE, Drawing
from coda_synth.tasks.catalog import task, task_names


@pytest.mark.parametrize("name", task_names())
def test_every_task_draws_its_real_shapes_on_the_device(name: str) -> None:
    spec = task(name)
    sizes = next(iter(spec.time_shapes.values()))
    with Drawing("meta"):
        made = spec.make_inputs(sizes, torch.Generator().manual_seed(1), "normal")
    tensors = {n: v for n, v in made.items() if isinstance(v, torch.Tensor)}
    assert any(v.numel() >= LARGE for v in tensors.values())
    assert all(v.device.type == "meta" for v in tensors.values() if v.numel() >= LARGE)

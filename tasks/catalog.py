"""The tasks by name. Names are known without importing torch; a task's module is imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coda_synth.tasks.spec import TaskSpec

_MODULES = {
    name: f"coda_synth.tasks.{name}"
    for name in (
        "linear_bias_gelu",
        "linear_swiglu",
        "linear_residual",
        "residual_rmsnorm_swiglu",
        "linear_rope",
        "lm_head_cross_entropy",
        "linear_nn",
        "linear_nt",
        "linear_tn",
        "linear_tt",
        "linear_bias",
        "linear_bias_relu2",
        "linear_gelu",
        "linear_gelu_tanh",
        "linear_geglu",
        "linear_scale_residual",
        "linear_sigmoid_gate",
        "residual_rmsnorm",
        "rmsnorm_linear",
        "rmsnorm_qkv_rope",
        "qknorm_rope",
        "residual_layernorm_linear",
        "lm_head_cross_entropy_logits",
        "lm_head_softcap_cross_entropy",
        "linear_quantize_fp8",
        "linear_quantize_fp8_rowwise",
        "linear_backward",
        "swiglu_backward",
        "geglu_backward",
        "gelu_bias_backward",
        "rmsnorm_backward",
        "layernorm_backward",
        "rope_backward",
        "qknorm_rope_backward",
        "lm_head_cross_entropy_backward",
        "llama_unit_forward",
        "llama_unit_backward",
    )
}


class UnknownTask(LookupError):
    """No task has this name; the message gives the nearest ones, or all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nearest = tuple(difflib.get_close_matches(name.lower().replace("-", "_"), _MODULES, n=3, cutoff=0.5))
        hint = f"did you mean {' or '.join(self.nearest)}?" if self.nearest else f"the tasks are {', '.join(_MODULES)}"
        super().__init__(f"there is no task {name!r}; {hint}")


def task_names() -> tuple[str, ...]:
    return tuple(_MODULES)


def task(name: str) -> TaskSpec:
    """The task of this name; raises UnknownTask."""
    spec: TaskSpec = importlib.import_module(_module(name)).TASK
    return spec


def worked_names() -> tuple[str, ...]:
    """The tasks beside which a hand-written candidate lies; a new one may have none."""
    return tuple(name for name in _MODULES if files("coda_synth.tasks").joinpath(f"{name}.coda").is_file())


def worked_candidate(name: str) -> str:
    """The text of the hand-written candidate that lies beside the task; raises UnknownTask."""
    _module(name)
    return files("coda_synth.tasks").joinpath(f"{name}.coda").read_text(encoding="utf-8")


def _module(name: str) -> str:
    if name not in _MODULES:
        raise UnknownTask(name)
    return _MODULES[name]

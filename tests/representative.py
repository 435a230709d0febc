"""The tasks on which slow machinery (judge, export, planner, builds) is tested; cheap tests take every task."""

from __future__ import annotations

REPRESENTATIVE = (
    "linear_bias_gelu",
    "linear_swiglu",
    "linear_residual",
    "residual_rmsnorm_swiglu",
    "linear_rope",
    "lm_head_cross_entropy",
)

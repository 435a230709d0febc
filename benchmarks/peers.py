"""What Liger and QuACK have for a task: callables made of their public functions, where the libraries are installed.

A peer takes the task's inputs and gives a function without arguments that returns outputs of the task by name; what a
user of the library would make once (packed weights, tables of angles) it makes beforehand. It may give fewer outputs
than the task asks for, and is then said to: it did less. Written for liger-kernel 0.8 and quack-kernels 0.6.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from coda_synth.tasks.spec import Tensors

Inputs = Mapping[str, Any]
Run = Callable[[], Tensors]
Peer = Callable[[Inputs], Run]
DISTRIBUTIONS = {"liger": "liger-kernel", "quack": "quack-kernels"}


def found() -> dict[str, str]:
    """The version of every peer that can be imported here, and why the others cannot ("no ...")."""
    return {name: _version(name, distribution) for name, distribution in DISTRIBUTIONS.items()}


def _version(name: str, distribution: str) -> str:
    try:
        importlib.import_module({"liger": "liger_kernel.ops.swiglu", "quack": "quack.gemm_interface"}[name])
        return importlib.metadata.version(distribution)
    except Exception as error:  # what a library raises where it cannot run is its own affair
        return f"no {distribution}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def peers(task: str, versions: Mapping[str, str]) -> dict[str, Peer]:
    """The peers among `versions` (as `found` gave them) that have something for a task."""
    usable = [name for name, version in versions.items() if not version.startswith("no ")]
    return {name: PEERS[name][task] for name in usable if task in PEERS[name]}


def _angles(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [1, T, H], for heads whose halves rotate."""
    freqs = torch.outer(given["pos"].to(given["inv_freq"].dtype), given["inv_freq"])
    angles = torch.cat((freqs, freqs), dim=-1)[None]
    return angles.cos().to(given["x"].dtype), angles.sin().to(given["x"].dtype)


def _interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.stack((gate, up), 1).flatten(0, 1).contiguous()


# -- Liger: kernels between the GEMMs


def _liger_swiglu(given: Inputs) -> Run:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction as Gate

    x, gate, up = given["x"], given["w_gate"], given["w_up"]
    return lambda: {"act": Gate.apply(F.linear(x, gate), F.linear(x, up))}


def _liger_residual_rmsnorm_swiglu(given: Inputs) -> Run:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Norm
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction as Gate

    y, w_o, x, gamma, gate, up, eps = (given[n] for n in ("y", "w_o", "x", "gamma", "w_gate", "w_up", "eps"))

    def run() -> Tensors:
        h, total = Norm.apply(F.linear(y, w_o), x, gamma, eps)
        return {"x": total, "act": Gate.apply(F.linear(h, gate), F.linear(h, up))}

    return run


def _liger_rmsnorm_linear(given: Inputs) -> Run:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Norm

    x, gamma, w, eps = (given[n] for n in ("x", "gamma", "w", "eps"))
    return lambda: {"y": F.linear(Norm.apply(x, gamma, eps), w)}


def _liger_residual_layernorm_linear(given: Inputs) -> Run:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction as Norm

    y, w_o, x, gamma, beta, w, b, eps = (given[n] for n in ("y", "w_o", "x", "gamma", "beta", "w", "b", "eps"))

    def run() -> Tensors:
        total = x + F.linear(y, w_o)
        return {"x": total, "z": F.linear(Norm.apply(total, gamma, beta, eps), w, b)}

    return run


def _liger_qkv(given: Inputs, normed: Callable[[], torch.Tensor]) -> Run:
    from liger_kernel.ops.rope import LigerRopeFunction as Rope

    cos, sin = _angles(given)

    def heads(projected: torch.Tensor) -> torch.Tensor:
        apart: torch.Tensor = projected.unflatten(-1, (-1, cos.shape[-1]))
        return apart[None].transpose(1, 2)

    def run() -> Tensors:
        h = normed()
        q, k, v = (F.linear(h, given[w]) for w in ("w_q", "w_k", "w_v"))
        rotated = Rope.apply(heads(q), heads(k), cos, sin)
        return {"v": v} | {n: r[0].transpose(0, 1).flatten(-2) for n, r in zip(("q", "k"), rotated, strict=True)}

    return run


def _liger_rope(given: Inputs) -> Run:
    return _liger_qkv(given, lambda: given["x"])


def _liger_rmsnorm_qkv_rope(given: Inputs) -> Run:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Norm

    return _liger_qkv(given, lambda: Norm.apply(given["x"], given["gamma"], given["eps"]))


def _liger_cross_entropy(given: Inputs) -> Run:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Loss

    h, w, target, cap = given["h"], given["w"], given["target"], given.get("cap")
    return lambda: {"mean": Loss.apply(h, w, target, None, None, -100, 0.0, 0.0, "mean", cap)[0]}


# -- QuACK: epilogues inside the GEMMs


def _quack_linear(given: Inputs) -> Run:
    from quack.gemm_interface import gemm

    x, w, b = given["x"], given["w"], given.get("b")
    return lambda: {"y": gemm(x, w.t(), bias=b)}


def _quack_residual(given: Inputs) -> Run:
    from quack.gemm_interface import gemm_add

    return lambda: {"out": gemm_add(given["y"], given["w"].t(), given["x"])}


def _quack_act(activation: str) -> Peer:
    def made(given: Inputs) -> Run:
        from quack.gemm_interface import gemm_act

        x, w, b = given["x"], given["w"], given.get("b")
        return lambda: {"y": gemm_act(x, w.t(), bias=b, activation=activation, store_preact=False)[1]}

    return made


def _quack_swiglu(given: Inputs) -> Run:
    from quack.gemm_interface import gemm_gated

    x, w = given["x"], _interleaved(given["w_gate"], given["w_up"])
    return lambda: {"act": gemm_gated(x, w.t(), activation="swiglu", store_preact=False)[1]}


def _quack_residual_rmsnorm(given: Inputs) -> Run:
    from quack.gemm_interface import gemm_rms

    y, w_o, x, gamma, eps = (given[n] for n in ("y", "w_o", "x", "gamma", "eps"))
    total = torch.empty_like(x)

    def run() -> Tensors:
        h, rstd = gemm_rms(y, w_o.t(), C=x, norm_weight=gamma, premult_out=total, eps=eps)
        return {"x": total, "h": h, "rstd": rstd}

    return run


def _quack_residual_rmsnorm_swiglu(given: Inputs) -> Run:
    from quack.gemm_interface import gemm_norm_act

    first, w = _quack_residual_rmsnorm(given), _interleaved(given["w_gate"], given["w_up"])

    def run() -> Tensors:
        got = first()
        act = gemm_norm_act(got["h"], w.t(), rstd=got["rstd"], activation="swiglu", store_preact=False)[1]
        return {"x": got["x"], "act": act}

    return run


def _quack_rmsnorm_linear(given: Inputs) -> Run:
    from quack import rmsnorm
    from quack.gemm_interface import gemm

    x, gamma, w, eps = (given[n] for n in ("x", "gamma", "w", "eps"))
    return lambda: {"y": gemm(rmsnorm(x, gamma, eps=eps), w.t())}


def _quack_cross_entropy(given: Inputs) -> Run:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return lambda: {"mean": chunked_linear_cross_entropy(given["h"], given["w"], given["target"])}


def _quack_swiglu_backward(given: Inputs) -> Run:
    from quack.gemm_interface import gemm, gemm_dgated

    e, w_down, z = given["e"], given["w_down"], given["z"]

    def run() -> Tensors:
        dz, act = gemm_dgated(e, w_down, z, activation="swiglu")
        return {"dz": dz, "act": act, "dw_down": gemm(e.T, act)}

    return run


PEERS: dict[str, dict[str, Peer]] = {
    "liger": {
        "linear_swiglu": _liger_swiglu,
        "residual_rmsnorm_swiglu": _liger_residual_rmsnorm_swiglu,
        "rmsnorm_linear": _liger_rmsnorm_linear,
        "residual_layernorm_linear": _liger_residual_layernorm_linear,
        "linear_rope": _liger_rope,
        "rmsnorm_qkv_rope": _liger_rmsnorm_qkv_rope,
        "lm_head_cross_entropy": _liger_cross_entropy,
        "lm_head_softcap_cross_entropy": _liger_cross_entropy,
    },
    "quack": {
        "linear_nt": _quack_linear,
        "linear_bias": _quack_linear,
        "linear_residual": _quack_residual,
        "linear_gelu_tanh": _quack_act("gelu_tanh_approx"),
        "linear_bias_relu2": _quack_act("relu_sq"),
        "linear_swiglu": _quack_swiglu,
        "residual_rmsnorm": _quack_residual_rmsnorm,
        "residual_rmsnorm_swiglu": _quack_residual_rmsnorm_swiglu,
        "rmsnorm_linear": _quack_rmsnorm_linear,
        "lm_head_cross_entropy": _quack_cross_entropy,
        "swiglu_backward": _quack_swiglu_backward,
    },
}

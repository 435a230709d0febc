"""The backward tasks mean what autograd makes of the forward, its own float64 values put for those that were saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coda_synth.evaluator.trace import trace_task
from coda_synth.tasks.catalog import task

from tests.mutations import wide

torch.set_num_threads(1)  # the tensors are tiny: threads would only wait for each other

Inputs = dict[str, Any]
Forward = Callable[[Inputs], tuple[Inputs, Mapping[str, torch.Tensor]]]
EPS = 1e-5


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()


def grads(loss: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


def rms(x: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(x.pow(2).mean(-1) + EPS)


def linear(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    x, w = leaf(i["x"]), leaf(i["w"])
    b = torch.zeros(len(w), dtype=w.dtype, requires_grad=True)
    dx, dw, db = grads((F.linear(x, w, b) * i["dy"]).sum(), x, w, b)
    return {}, {"dx": dx, "dw": i["dw"] + dw, "db": db}


def gated(activation: Callable[[torch.Tensor], torch.Tensor]) -> Forward:
    def forward(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
        z, w = leaf(i["z"]), leaf(i["w_down"])
        act = activation(z[:, 0::2]) * z[:, 1::2]
        dz, dw = grads((F.linear(act, w) * i["e"]).sum(), z, w)
        return {}, {"dz": dz, "act": act, "s": (z * dz).sum(-1) / len(w), "dw_down": dw}

    return forward


def gelu_bias(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    plain, b, w = leaf(i["z"] - i["b"]), leaf(i["b"]), leaf(i["w_down"])
    act = F.gelu(plain + b)
    dz, db, dw = grads((F.linear(act, w) * i["e"]).sum(), plain, b, w)
    return {}, {"dz": dz, "act": act, "db": db, "s": (plain * dz).sum(-1) / len(w), "dw_down": dw}


def rmsnorm(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    x, gamma, w = leaf(i["x"]), leaf(i["gamma"]), leaf(i["w"])
    y = F.rms_norm(x, x.shape[-1:], gamma, EPS)
    z = F.linear(y, w)
    dx, dgamma, dw = grads((z * i["dz"]).sum(), x, gamma, w)
    given = {"r": rms(x).detach(), "s": (z * i["dz"]).sum(-1).detach() / x.shape[-1]}
    return given, {"dx": i["dres"] + dx, "y": y, "dgamma": dgamma, "dw": dw}


def layernorm(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    x, gamma, beta, w, b = (leaf(i[n]) for n in ("x", "gamma", "beta", "w", "b"))
    z = F.linear(F.layer_norm(x, x.shape[-1:], gamma, beta, EPS), w, b)
    dx, dgamma, dbeta, dw, db = grads((z * i["dz"]).sum(), x, gamma, beta, w, b)
    r = torch.rsqrt(x.var(-1, unbiased=False) + EPS)
    given = {"mu": x.mean(-1).detach(), "r": r.detach(), "z": z.detach()}
    return given, {"dx": i["dres"] + dx, "dgamma": dgamma, "dbeta": dbeta, "dw": dw, "db": db}


def rope(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    angle = i["pos"].double()[:, None] * i["inv_freq"]
    z = leaf(i["qkv"])
    turned = torch.view_as_complex(z.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)
    qkv = torch.view_as_real(turned).flatten(1)
    (dz,) = grads((qkv * i["dqkv"]).sum(), z)
    return {"qkv": qkv.detach()}, {"dz": dz, "zdz": (z * dz).sum(-1)}


def qknorm_rope(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    found = {}
    angle = (i["pos"].double()[:, None] * i["inv_freq"])[:, None]
    for name in ("q", "k"):
        z, gain = leaf(i[name]), leaf(i[f"g_{name}"])
        heads = F.rms_norm(z.unflatten(-1, (-1, len(gain))), (len(gain),), gain, i["eps"])
        a, b = heads.chunk(2, -1)
        turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
        y = torch.cat((turned.real, turned.imag), -1).flatten(1)
        found[f"dz_{name}"], found[f"dg_{name}"] = grads((y * i[f"d{name}"]).sum(), z, gain)
    return {}, {n: found[n] for n in ("dz_q", "dz_k", "dg_q", "dg_k")}


def cross_entropy(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    h, w = leaf(i["h"]), leaf(i["w"])
    z = F.linear(h, w)
    total = F.cross_entropy(z, i["target"], reduction="sum")
    (dz,) = torch.autograd.grad(total, z, retain_graph=True)
    dh, dw = grads(i["alpha"] * total, h, w)
    given = {"lse": torch.logsumexp(z, -1).detach()}
    return given, {"dz": dz, "s": (z * dz).sum(-1) / h.shape[-1], "dh": dh, "dw": dw}


def llama_unit(i: Inputs) -> tuple[Inputs, Mapping[str, torch.Tensor]]:
    weights = {n: leaf(i[n]) for n in ("w_o", "gamma1", "w1", "w2", "gamma2", "w_qkv")}
    x0, y0 = leaf(i["x1"] - i["y0"] @ i["w_o"].T), leaf(i["y0"])
    plain = {"pos": i["pos"], "inv_freq": i["inv_freq"], "eps": EPS}
    saved = task("llama_unit_forward").reference(y0=y0, x0=x0, **weights, **plain)
    loss = (saved["qkv"] * i["dqkv"]).sum() + (saved["x2"] * i["dx2"]).sum()
    names = ("dx0", "dy0", *(f"d{n}" for n in weights))
    found = dict(zip(names, grads(loss, x0, y0, *weights.values()), strict=True))
    return {n: v.detach() for n, v in saved.items()}, found


FORWARDS: dict[str, Forward] = {
    "linear_backward": linear,
    "swiglu_backward": gated(F.silu),
    "geglu_backward": gated(F.gelu),
    "gelu_bias_backward": gelu_bias,
    "rmsnorm_backward": rmsnorm,
    "layernorm_backward": layernorm,
    "rope_backward": rope,
    "qknorm_rope_backward": qknorm_rope,
    "lm_head_cross_entropy_backward": cross_entropy,
    "llama_unit_backward": llama_unit,
}


@pytest.mark.parametrize("name", FORWARDS)
def test_the_reference_is_autograds_result(name: str) -> None:
    spec = task(name)
    for sizes in spec.check_shapes:
        made = wide(spec.make_inputs(sizes, torch.Generator().manual_seed(5), "normal"))
        given, expected = FORWARDS[name](made)
        with torch.no_grad():
            found = spec.reference(**{**made, **given})
        assert list(found) == list(expected)
        for output, value in expected.items():
            size = value.abs().max().clamp(min=1.0)  # one element has no slope through its own norm
            assert (found[output] - value).abs().max() <= 1e-10 * size, (output, sizes)


@pytest.mark.parametrize(
    "name", ["rmsnorm_backward", "layernorm_backward", "lm_head_cross_entropy_backward", "llama_unit_backward"]
)
def test_saved_values_are_those_of_the_forward(name: str) -> None:
    """What the generator gives beside what it draws is what the forward would have saved, up to float32."""
    spec = task(name)
    made = spec.make_inputs(spec.check_shapes[0], torch.Generator().manual_seed(5), "normal")
    given, _ = FORWARDS[name](wide(made))
    for saved, value in given.items():
        fine = made[saved].bfloat16().float().ne(made[saved]).any()  # a statistic, not a stored bf16 tensor
        torch.testing.assert_close(
            made[saved].double(), value, rtol=2e-3 if fine else 2e-2, atol=2e-3 if fine else 2e-2
        )


@pytest.mark.parametrize("name", FORWARDS)
def test_the_reference_can_be_traced(name: str) -> None:
    assert {port.name for port in trace_task(task(name)).ports} >= {o.name for o in task(name).outputs}

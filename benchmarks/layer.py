"""One Llama layer from rotated queries, keys and values to the next layer's, forward and backward, by several authors.

Attention by torch's scaled_dot_product_attention in all. Ours is the two unit programs around it; eager is the layer as
models write it, weights apart and the two halves of a head rotating; Liger's is that with its kernels. Ours keeps gate
and up rows interleaved and rotates adjacent pairs, so that its rows and columns are a fixed order of eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from coda_synth.coda_api import toolchain
from coda_synth.tasks.catalog import task

from benchmarks.contest import lowered

EPS = 1e-5
_BASE = 500_000.0  # of the rotary frequencies
Tensor = torch.Tensor
Layer = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Shape:
    """batch sequences of `length` tokens; d: hidden size; f: of the MLP; heads and kv of `head` features each."""

    batch: int
    length: int
    d: int
    f: int
    heads: int
    kv: int
    head: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def columns(self) -> int:
        """Of queries, keys and values together."""
        return (self.heads + 2 * self.kv) * self.head

    @property
    def sizes(self) -> dict[str, int]:
        """In the symbols of the unit's tasks."""
        return {"T": self.tokens, "D": self.d, "A": self.heads * self.head, "F": self.f, "Q": self.columns}


SHAPES = {
    "8b": Shape(batch=2, length=8192, d=4096, f=14336, heads=32, kv=8, head=128),
    "1b": Shape(batch=4, length=8192, d=2048, f=8192, heads=32, kv=8, head=64),
}
TINY = {"tiny": Shape(batch=2, length=16, d=32, f=48, heads=2, kv=1, head=16)}


@dataclass(frozen=True)
class Weights:
    """As nn.Linear keeps them: [out, in]."""

    w_o: Tensor
    gamma1: Tensor
    w_gate: Tensor
    w_up: Tensor
    w_down: Tensor
    gamma2: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Given:
    """What a layer is run on. q, k, v and their gradients: [batch, heads, length, head]; x and dx: [tokens, d]."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    dx: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def drawn(shape: Shape, device: str) -> tuple[Weights, Given]:
    """bf16; everything that takes a gradient is a leaf."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        made = torch.randn(size, device=device, generator=generator) * scale
        return made.to(torch.bfloat16)

    def linear(out: int, into: int) -> Tensor:
        return normal(out, into, scale=into**-0.5).requires_grad_()

    def gain() -> Tensor:
        return (1 + normal(shape.d, scale=0.1)).requires_grad_()

    def heads(count: int) -> Tensor:
        return normal(shape.batch, shape.length, count, shape.head).transpose(1, 2)

    d, f, q, kv = shape.d, shape.f, shape.heads * shape.head, shape.kv * shape.head
    mlp = (linear(f, d), linear(f, d), linear(d, f))
    weights = Weights(linear(d, q), gain(), *mlp, gain(), linear(q, d), linear(kv, d), linear(kv, d))
    q_in, k_in, v_in = (heads(n).requires_grad_() for n in (shape.heads, shape.kv, shape.kv))
    x = normal(shape.tokens, d).requires_grad_()
    return weights, Given(q_in, k_in, v_in, x, normal(shape.tokens, d), *map(heads, (shape.heads, shape.kv, shape.kv)))


def angles(shape: Shape, device: str) -> Tensor:
    """[length, head / 2], float32."""
    inverse = _BASE ** (-torch.arange(0, shape.head, 2, device=device).float() / shape.head)
    return torch.outer(torch.arange(shape.length, device=device).float(), inverse)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[tokens, heads * head]"""
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1).flatten(1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def eager_layer(shape: Shape, device: str) -> Layer:
    """layer(q, k, v, x, *weights) -> x, q, k, v of the next."""
    turned = angles(shape, device)
    cos, sin = (torch.cat((t, t), -1).to(torch.bfloat16) for t in (turned.cos(), turned.sin()))

    def layer(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        w_o, gamma1, w_gate, w_up, w_down, gamma2, *qkv = weights
        x = x + F.linear(attention(q, k, v), w_o)
        h = F.rms_norm(x, (shape.d,), gamma1, EPS)
        x = x + F.linear(F.silu(F.linear(h, w_gate)) * F.linear(h, w_up), w_down)
        h = F.rms_norm(x, (shape.d,), gamma2, EPS)
        q, k, v = (in_heads(F.linear(h, w), shape) for w in qkv)
        return x, rotated(q, cos, sin), rotated(k, cos, sin), v

    return layer


def liger_layer(shape: Shape, device: str) -> Layer:
    """The same with Liger's kernels; raises ImportError where they are not installed."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Norm
    from liger_kernel.ops.rope import LigerRopeFunction as Rope
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction as Gate

    turned = angles(shape, device)
    cos, sin = (torch.cat((t, t), -1).to(torch.bfloat16)[None] for t in (turned.cos(), turned.sin()))

    def layer(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        w_o, gamma1, w_gate, w_up, w_down, gamma2, *qkv = weights
        h, x = Norm.apply(F.linear(attention(q, k, v), w_o), x, gamma1, EPS)
        h, x = Norm.apply(F.linear(Gate.apply(F.linear(h, w_gate), F.linear(h, w_up)), w_down), x, gamma2, EPS)
        q, k, v = (in_heads(F.linear(h, w), shape) for w in qkv)
        return x, *Rope.apply(q, k, cos, sin), v

    return layer


def in_heads(projected: Tensor, shape: Shape) -> Tensor:
    """[tokens, heads * head] -> [batch, heads, length, head], a view."""
    return projected.view(shape.batch, shape.length, -1, shape.head).transpose(1, 2)


def in_pairs(x: Tensor, dim: int) -> Tensor:
    """Halves of a head side by side: i and i + head / 2 become 2 i and 2 i + 1."""
    dim %= x.dim()
    apart: Tensor = x.unflatten(dim, (2, -1)).transpose(dim, dim + 1)
    return apart.flatten(dim, dim + 1)


def in_halves(x: Tensor, dim: int) -> Tensor:
    """in_pairs undone."""
    dim %= x.dim()
    apart: Tensor = x.unflatten(dim, (-1, 2)).transpose(dim, dim + 1)
    return apart.flatten(dim, dim + 1)


class Program:
    """A task's worked candidate for one size. Calls allocate what they return and their scratch, as eager code does."""

    def __init__(self, name: str, shape: Shape, device: str, tiny: bool, fixed: dict[str, Any]) -> None:
        self.made = lowered(task(name), shape.sizes, device, tiny)
        self.device = device
        self.module = toolchain.load(self.made.source, name)
        self.fixed = {**fixed, **self.module.prepare(**{n: fixed[n] for n in self.made.prepare_arguments})}

    def __call__(self, **given: Tensor) -> dict[str, Tensor]:
        buffers = {
            b.name: torch.empty(b.shape, dtype=getattr(torch, b.dtype), device=self.device) for b in self.made.buffers
        }
        known = {**self.fixed, **given, **buffers}
        self.module.launch(**{name: known[name] for name in self.made.arguments})
        return {output: buffers[b.name] for b in self.made.buffers for output in b.outputs}


class Ours:
    """The unit programs around attention. Queries, keys and values of a layer lie in one packed matrix."""

    def __init__(self, weights: Weights, shape: Shape, device: str, tiny: bool) -> None:
        self.shape = shape
        w = Weights(*(t.detach() for t in weights.tensors()))
        qkv = torch.cat([_rows_in_pairs(w.w_q, shape), _rows_in_pairs(w.w_k, shape), w.w_v])
        inverse = _BASE ** (-torch.arange(0, shape.head, 2, device=device).float() / shape.head)
        still = torch.zeros(shape.kv * shape.head // 2, device=device)
        fixed: dict[str, Any] = {
            "w_o": w.w_o,
            "gamma1": w.gamma1,
            "w1": torch.stack((w.w_gate, w.w_up), 1).flatten(0, 1).contiguous(),
            "w2": w.w_down,
            "gamma2": w.gamma2,
            "w_qkv": qkv.contiguous(),
            "pos": torch.arange(shape.length, device=device).repeat(shape.batch),
            "inv_freq": torch.cat([inverse.repeat(shape.heads + shape.kv), still]),
            "eps": EPS,
        }
        self.unit = Program("llama_unit_forward", shape, device, tiny, fixed)
        self.back = Program("llama_unit_backward", shape, device, tiny, fixed)

    def packed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[tokens, columns] from heads as eager has them."""
        parts = (in_pairs(q, -1), in_pairs(k, -1), v)
        return torch.cat([p.transpose(1, 2).flatten(0, 1).flatten(1) for p in parts], 1).contiguous()

    def views(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """q, k and v inside a packed matrix, [batch, heads, length, head]."""
        s = self.shape
        whole = qkv.view(s.batch, s.length, s.heads + 2 * s.kv, s.head).transpose(1, 2)
        parts: tuple[Tensor, ...] = whole.split((s.heads, s.kv, s.kv), 1)
        return parts

    def forward(self, qkv: Tensor, x: Tensor) -> dict[str, Tensor]:
        """The unit's outputs, without anything kept for a backward of attention."""
        with torch.no_grad():
            return self.unit(y0=attention(*self.views(qkv)), x0=x)

    def kept(self, qkv: Tensor, x: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """What a backward takes: the unit's outputs and y0; attention's leaves and its result with its graph."""
        leaves = tuple(view.detach().requires_grad_() for view in self.views(qkv))
        with torch.enable_grad():
            y0 = attention(*leaves)
        saved = self.unit(y0=y0.detach(), x0=x)
        return {**saved, "y0": y0.detach()}, (*leaves, y0)

    def backward(
        self, saved: dict[str, Tensor], graph: tuple[Tensor, ...], dqkv: Tensor, dx: Tensor
    ) -> dict[str, Tensor]:
        """The unit's gradients, and dqkv of this layer's own attention, packed for the unit before."""
        found = self.back(dqkv=dqkv, dx2=dx, **saved)
        *leaves, y0 = graph
        own = torch.autograd.grad(y0, leaves, found["dy0"])
        return {**found, "dqkv": torch.cat([g.transpose(1, 2).flatten(0, 1).flatten(1) for g in own], 1)}

    def gradients(self, found: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Those of q, k, v, x and the weights, in eager's order of rows and columns."""
        s = self.shape
        q, k, v = self.views(found["dqkv"])
        w_q, w_k, w_v = found["dw_qkv"].split((s.heads * s.head, s.kv * s.head, s.kv * s.head))
        gate, up = found["dw1"].unflatten(0, (-1, 2)).unbind(1)
        heads = (_rows_in_halves(w, s) for w in (w_q, w_k))
        own = (found["dw_o"], found["dgamma1"], gate, up, found["dw2"], found["dgamma2"], *heads, w_v)
        return (in_halves(q, -1), in_halves(k, -1), v, found["dx0"], *own)


def _rows_in_pairs(w: Tensor, shape: Shape) -> Tensor:
    return in_pairs(w.unflatten(0, (-1, shape.head)), 1).flatten(0, 1)


def _rows_in_halves(w: Tensor, shape: Shape) -> Tensor:
    return in_halves(w.unflatten(0, (-1, shape.head)), 1).flatten(0, 1)

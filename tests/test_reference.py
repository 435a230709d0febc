# ruff: noqa: E501
"""The reference meaning: operators of a Transformer block, forward and backward, against plain PyTorch at float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from coda_synth.coda_api.dims import DimSizeError
from coda_synth.coda_api.meaning import ELEMENTWISE, rounded
from coda_synth.coda_api.preparation import WORDS as PREPARATION
from coda_synth.coda_api.program import Ref
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.storage import stored_dtype
from coda_synth.coda_api.unit_meaning import MEANINGS
from coda_synth.coda_api.words import WORDS, Place
from torch import Tensor

from tests.language import randn, run, signature_of, worst

TILINGS = [(3, 4), (2, 2), (16, 16), (64, 64)]
T, D, E, V, H = 7, 6, 10, 11, 4

Case = Callable[[], tuple[str, dict[str, Tensor | float], dict[str, Tensor]]]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, seed=seed).requires_grad_()


def plain(**tensors: Tensor | float) -> dict[str, Tensor | float]:
    return {name: t.detach() if isinstance(t, Tensor) else t for name, t in tensors.items()}


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma


@case
def transposed_operands():  # type: ignore[no-untyped-def]
    text = """
@kernel
def nn(a: Tensor["M", "K"], b: Tensor["K", "N"]):
    return {"y": gemm(a, b)}
@kernel
def tt(a: Tensor["K", "M"], b: Tensor["N", "K"]):
    return {"y": gemm(a, b)}
@kernel
def tn(a: Tensor["K", "M"], b: Tensor["K", "N"]):
    return {"y": gemm(a, b)}
@program
def p(x: Tensor["T", "D"], xt: Tensor["D", "T"], w: Tensor["D", "E"], wt: Tensor["E", "D"]):
    a = nn(x, w)
    b = tt(xt, wt)
    c = tn(xt, w)
    return {"a": a.y, "b": b.y, "c": c.y}
"""
    x, w = randn(T, D), randn(D, E)
    return text, plain(x=x, xt=x.T.contiguous(), w=w, wt=w.T.contiguous()), {n: x @ w for n in "abc"}


@case
def square_operands_where_every_size_coincides():  # type: ignore[no-untyped-def]
    text = """
@kernel
def f(a: Tensor["M", "K"], b: Tensor["K", "N"], r: Tensor["M"], c: Tensor["N"]):
    z = gemm(a, b)
    return {"y": z * r + c, "rows": tile_sum(z, "N"), "cols": tile_sum(z, "M")}
@finisher
def total(p: Partial["A", "B"]):
    return {"v": total_sum(p)}
@program
def p(x: Tensor["T", "T"], w: Tensor["T", "T"], r: Tensor["T"], c: Tensor["T"]):
    a = f(x, w, r, c)
    b = total(a.rows)
    d = total(a.cols)
    return {"y": a.y, "rows": b.v, "cols": d.v}
"""
    x, w, r, c = randn(8, 8), randn(8, 8, seed=1), randn(8), randn(8, seed=2)
    z = x @ w
    return text, plain(x=x, w=w, r=r, c=c), {"y": z * r[:, None] + c, "rows": z.sum(1), "cols": z.sum(0)}


@case
def activations_of_a_gated_unit():  # type: ignore[no-untyped-def]
    text = """
@prepare
def pack(w_gate: Tensor["F", "D"], w_up: Tensor["F", "D"]):
    return {"w": interleave(w_gate, w_up, "F"), "halves": concat(w_gate, w_up, "F"), "blocks": join(w_gate, w_up, 2, "F")}
@kernel
def glu(x: Tensor["M", "K"], w: Tensor["2*N", "K"]):
    z = gemm(x, w)
    return {"y": silu(even(z)) * odd(z)}
@kernel
def both(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    return {"z": gemm(x, w)}
@kernel
def split(z: Tensor["M", "2*N"]):
    return {"y": gelu_tanh(low(z, 2)) * high(z, 2)}
@program
def p(x: Tensor["T", "D"], w_gate: Tensor["F", "D"], w_up: Tensor["F", "D"]):
    w = pack(w_gate, w_up)
    a = glu(x, w.w)
    b = both(x, w.halves)
    c = both(x, w.blocks)
    d = split(c.z)
    return {"y": a.y, "z": b.z, "tanh": d.y}
"""
    x, g, u = randn(T, D), randn(E, D), randn(E, D, seed=1)
    gate, up = x @ g.T, x @ u.T
    expected = {"y": F.silu(gate) * up, "z": torch.cat((gate, up), 1), "tanh": F.gelu(gate, approximate="tanh") * up}
    return text, plain(x=x, w_gate=g, w_up=u), expected


@case
def rms_norm_between_two_gemms():  # type: ignore[no-untyped-def]
    text = """
@prepare
def prepared(w: Tensor["E", "D"], w_norm: Tensor["D"]):
    return {"w": w * w_norm}
@kernel
def first(y: Tensor["M", "K"], w: Tensor["N", "K"], x: Tensor["M", "N"]):
    h = gemm(y, w) + x
    return {"h": h, "squares": tile_sum(h ** 2, "N")}
@finisher
def scale(squares: Partial["M", "N"], eps: Scalar):
    return {"r": rsqrt(total_sum(squares) / size("N") + eps)}
@kernel
def second(h: Tensor["M", "K"], w: Tensor["N", "K"], r: Tensor["M"]):
    return {"y": gemm(h, w) * r}
@program
def p(y: Tensor["T", "K"], w_o: Tensor["D", "K"], x: Tensor["T", "D"], w_norm: Tensor["D"], w: Tensor["E", "D"], eps: Scalar):
    f = prepared(w, w_norm)
    a = first(y, w_o, x)
    s = scale(a.squares, eps)
    b = second(a.h, f.w, s.r)
    return {"x": a.h, "y": b.y, "r": s.r}
"""
    y, wo, x, g, w, eps = randn(T, 5), randn(D, 5), randn(T, D), randn(D), randn(E, D), 1e-5
    h = y @ wo.T + x
    expected = {"x": h, "y": rms_norm(h, g, eps) @ w.T, "r": torch.rsqrt(h.square().mean(-1) + eps)}
    return text, plain(y=y, w_o=wo, x=x, w_norm=g, w=w, eps=eps), expected


@case
def layer_norm_with_moments_and_folded_bias():  # type: ignore[no-untyped-def]
    text = """
@prepare
def prepared(w: Tensor["E", "D"], w_scale: Tensor["D"], w_shift: Tensor["D"], w_bias: Tensor["E"]):
    return {"w": w * w_scale, "v": matvec(w, w_scale), "c": matvec(w, w_shift) + w_bias}
@kernel
def look(x: Tensor["M", "N"]):
    mean, m2 = tile_moments(x, "N")
    return {"mean": mean, "m2": m2}
@finisher
def norm(mean: Partial["M", "N"], m2: Partial["M", "N"], eps: Scalar):
    mu, var = total_moments(mean, m2)
    return {"mu": mu, "r": rsqrt(var + eps)}
@kernel
def project(x: Tensor["M", "K"], w: Tensor["N", "K"], mu: Tensor["M"], r: Tensor["M"], v: Tensor["N"], c: Tensor["N"]):
    return {"y": r * (gemm(x, w) - mu * v) + c}
@program
def p(x: Tensor["T", "D"], w: Tensor["E", "D"], w_scale: Tensor["D"], w_shift: Tensor["D"], w_bias: Tensor["E"], eps: Scalar):
    f = prepared(w, w_scale, w_shift, w_bias)
    a = look(x)
    n = norm(a.mean, a.m2, eps)
    b = project(x, f.w, n.mu, n.r, f.v, f.c)
    return {"y": b.y}
"""
    x, w, scale, shift, bias, eps = randn(T, D) + 3, randn(E, D), randn(D), randn(D, seed=1), randn(E), 1e-5
    expected = {"y": F.layer_norm(x, (D,), scale, shift, eps) @ w.T + bias}
    return text, plain(x=x, w=w, w_scale=scale, w_shift=shift, w_bias=bias, eps=eps), expected


@case
def rotary_positions_of_both_conventions():  # type: ignore[no-untyped-def]
    text = """
@prepare
def turns(w_freq: Tensor["H/2"]):
    t = w_freq / (2 * pi)
    hi = cast(t, "float32")
    return {"hi": hi, "lo": t - hi}
@kernel
def halves(x: Tensor["M", "N"], pos: Index["M"], hi: Tensor["H/2"], lo: Tensor["H/2"]):
    c, s = rotation(pos, cycle(hi, "N/2"), cycle(lo, "N/2"))
    a, b = low(x, "H"), high(x, "H")
    return {"y": join(a * c - b * s, b * c + a * s, "H")}
@kernel
def pairs(x: Tensor["M", "N"], pos: Index["M"], hi: Tensor["H/2"], lo: Tensor["H/2"]):
    c, s = rotation(pos, cycle(hi, "N/2"), cycle(lo, "N/2"))
    a, b = even(x), odd(x)
    return {"y": interleave(a * c - b * s, b * c + a * s)}
@program
def p(x: Tensor["T", "Q*H"], pos: Index["T"], w_freq: Tensor["H/2"]):
    t = turns(w_freq)
    a = halves(x, pos, t.hi, t.lo)
    b = pairs(x, pos, t.hi, t.lo)
    return {"halves": a.y, "pairs": b.y}
"""
    x, freq = randn(T, 3 * H), 10000.0 ** (-torch.arange(H // 2, dtype=torch.float64) / (H / 2))
    pos = torch.tensor([0, 1, 2, 77, 4096, 131071, 9])
    turn = torch.polar(torch.ones(T, 1, H // 2, dtype=torch.float64), pos[:, None, None] * freq)
    heads = x.reshape(T, 3, H)
    first = torch.complex(heads[..., : H // 2], heads[..., H // 2 :]) * turn
    second = torch.view_as_complex(heads.reshape(T, 3, H // 2, 2).contiguous()) * turn
    expected = {
        "halves": torch.cat((first.real, first.imag), -1).reshape(T, -1),
        "pairs": torch.view_as_real(second).reshape(T, -1),
    }
    return text, plain(x=x, pos=pos, w_freq=freq), expected


@case
def head_norm_over_symbolic_groups():  # type: ignore[no-untyped-def]
    text = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["K", "N"], g: Tensor["H"], heads: Scalar, eps: Scalar):
    z = gemm(x, w)
    r = rsqrt(group_sum(z * z, "H") / size("H") + eps)
    normed = z * spread(r, "H") * cycle(g, "N")
    return {"y": where(index("N") < heads * size("H"), normed, z), "r": r, "peak": group_max(abs(z), 2), "least": group_min(z, "2*H")}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "Q*H"], g: Tensor["H"], heads: Scalar, eps: Scalar):
    a = f(x, w, g, heads, eps)
    return {"y": a.y, "r": a.r, "peak": a.peak, "least": a.least}
"""
    x, w, g, eps = randn(T, D), randn(D, 4 * H), randn(H), 1e-6
    z = (x @ w).reshape(T, 4, H)
    r = torch.rsqrt(z.square().mean(-1) + eps)
    y = torch.where(torch.arange(4)[:, None] < 3, z * r[..., None] * g, z)
    expected = {
        "y": y.reshape(T, -1),
        "r": r,
        "peak": z.reshape(T, -1, 2).abs().amax(-1),
        "least": z.reshape(T, 2, 2 * H).amin(-1),
    }
    return text, plain(x=x, w=w, g=g, heads=3, eps=eps), expected


@case
def cross_entropy_and_its_norm_statistic():  # type: ignore[no-untyped-def]
    text = """
@kernel
def head(h: Tensor["M", "K"], w: Tensor["N", "K"], target: Index["M"], cap: Scalar):
    z = cap * tanh(gemm(h, w) / cap)
    lse, mean = tile_logsumexp(z, "N", z)
    return {"lse": lse, "mean": mean, "chosen": pick(z, target)}
@finisher
def rows(lse: Partial["M", "N"], mean: Partial["M", "N"], chosen: Tensor["M"], target: Index["M"]):
    total = total_logsumexp(lse)
    kept = target != -100
    s = total_sum(exp(lse - total) * mean) - chosen
    return {"lse": total, "loss": where(kept, total - chosen, 0), "s": where(kept, s, 0), "kept": where(kept, 1.0, 0.0)}
@finisher
def average(loss: Tensor["M"], kept: Tensor["M"]):
    return {"mean": sum(loss) / maximum(sum(kept), 1)}
@program
def p(h: Tensor["T", "D"], w: Tensor["V", "D"], target: Index["T"], cap: Scalar):
    a = head(h, w, target, cap)
    r = rows(a.lse, a.mean, a.chosen, target)
    m = average(r.loss, r.kept)
    return {"lse": r.lse, "loss": r.loss, "s": r.s, "mean": m.mean}
"""
    h, w, cap = randn(T, D), randn(V, D), 3.0
    target = torch.tensor([0, 10, -100, 5, 3, -100, 8])
    z = (cap * torch.tanh(h @ w.T / cap)).requires_grad_()
    loss = F.cross_entropy(z, target, reduction="none")
    (dz,) = torch.autograd.grad(loss.sum(), z)
    expected = {
        "lse": z.logsumexp(-1),
        "loss": loss,
        "s": (z * dz).sum(-1),
        "mean": F.cross_entropy(z, target),
    }
    return text, plain(h=h, w=w, target=target, cap=cap), {n: t.detach() for n, t in expected.items()}


@case
def softmax_backward_with_a_sum_passed_to_a_kernel():  # type: ignore[no-untyped-def]
    text = """
@finisher
def scale(target: Index["M"], up: Scalar):
    return {"alpha": up / sum(where(target == -100, 0.0, 1.0))}
@kernel
def grad(z: Tensor["M", "N"], lse: Tensor["M"], target: Index["M"], alpha: Scalar):
    hot = where(index("N") == target, 1.0, 0.0)
    return {"dz": where(target == -100, 0.0, alpha * (exp(z - lse) - hot))}
@program
def p(z: Tensor["T", "V"], lse: Tensor["T"], target: Index["T"], up: Scalar):
    s = scale(target, up)
    a = grad(z, lse, target, s.alpha)
    return {"dz": a.dz}
"""
    z, target, up = leaf(T, V), torch.tensor([0, 10, -100, 5, 3, -100, 8]), 1.7
    (dz,) = torch.autograd.grad(F.cross_entropy(z, target) * up, z)
    return text, plain(z=z, lse=z.logsumexp(-1), target=target, up=up), {"dz": dz}


@case
def gated_unit_backward():  # type: ignore[no-untyped-def]
    text = """
@kernel
def back(e: Tensor["M", "K"], w: Tensor["N", "K"], z: Tensor["M", "2*N"]):
    d = gemm(e, w)
    g, u = even(z), odd(z)
    t = sigmoid(g)
    dg, du = d * u * (t + g * t * (1 - t)), d * g * t
    return {"dz": interleave(dg, du), "y": g * t * u, "s": tile_sum(g * dg + u * du, "N"), "db": tile_sum(interleave(dg, du), "M")}
@finisher
def over_columns(s: Partial["M", "N"], d: Size["D"]):
    return {"s": total_sum(s) / size("D")}
@finisher
def over_rows(db: Partial["N", "M"]):
    return {"db": total_sum(db)}
@kernel
def weights(a: Tensor["M", "K"], b: Tensor["M", "N"]):
    return {"dw": gemm(a, b)}
@program
def p(e: Tensor["T", "D"], w: Tensor["F", "D"], z: Tensor["T", "2*F"]):
    a = back(e, w, z)
    b = over_columns(a.s, size("D"))
    c = over_rows(a.db)
    v = weights(a.y, e)
    return {"dz": a.dz, "s": b.s, "db": c.db, "dw": v.dw}
"""
    e, w, z = randn(T, D), leaf(E, D), leaf(T, 2 * E)
    y = F.silu(z[:, ::2]) * z[:, 1::2]
    dz, dw = torch.autograd.grad(y @ w, (z, w), e)
    expected = {"dz": dz, "dw": dw, "db": dz.sum(0), "s": (z * dz).sum(-1).detach() / D}
    return text, plain(e=e, w=w, z=z), expected


@case
def rms_norm_backward():  # type: ignore[no-untyped-def]
    text = """
@kernel
def back(dz: Tensor["M", "K"], w: Tensor["N", "K"], x: Tensor["M", "N"], gamma: Tensor["N"], r: Tensor["M"], s: Tensor["M"], dres: Tensor["M", "N"]):
    d = gemm(dz, w)
    xhat = r * x
    return {"dx": dres + r * (d * gamma - xhat * s), "dgamma": tile_sum(d * xhat, "M")}
@finisher
def columns(p: Partial["N", "M"]):
    return {"sum": total_sum(p)}
@program
def p(dz: Tensor["T", "E"], w: Tensor["D", "E"], x: Tensor["T", "D"], gamma: Tensor["D"], r: Tensor["T"], s: Tensor["T"], dres: Tensor["T", "D"]):
    a = back(dz, w, x, gamma, r, s, dres)
    g = columns(a.dgamma)
    return {"dx": a.dx, "dgamma": g.sum}
"""
    x, w, gamma, dz, dres, eps = leaf(T, D), randn(D, E), leaf(D), randn(T, E), randn(T, D, seed=3), 1e-5
    z = rms_norm(x, gamma, eps) @ w
    dx, dgamma = torch.autograd.grad(z, (x, gamma), dz)
    r, s = torch.rsqrt(x.square().mean(-1) + eps), (z * dz).sum(-1) / D
    return text, plain(dz=dz, w=w, x=x, gamma=gamma, r=r, s=s, dres=dres), {"dx": dx + dres, "dgamma": dgamma}


@case
def folding_a_gradient_over_heads():  # type: ignore[no-untyped-def]
    text = """
@kernel
def f(x: Tensor["M", "N"], y: Tensor["M", "N"]):
    return {"d": tile_sum(x * y, "M"), "hi": tile_max(x, "N"), "lo": tile_min(x, "N")}
@finisher
def fold_heads(d: Partial["N", "M"], n_q: Scalar, h: Size["H"]):
    v = total_sum(d)
    return {"q": fold(where(index("N") < n_q, v, 0), "H"), "all": fold(v, "H") * 2}
@finisher
def extremes(hi: Partial["M", "N"], lo: Partial["M", "N"]):
    return {"spread": total_max(hi) - total_min(lo), "both": total_max(hi - lo)}
@program
def p(x: Tensor["T", "Q*H"], y: Tensor["T", "Q*H"], g: Tensor["H"], n_q: Scalar):
    a = f(x, y)
    b = fold_heads(a.d, n_q, size("H"))
    c = extremes(a.hi, a.lo)
    return {"q": b.q, "all": b.all, "spread": c.spread}
"""
    x, y = randn(T, 3 * H), randn(T, 3 * H, seed=1)
    d = (x * y).sum(0).reshape(3, H)
    expected = {"q": d[:2].sum(0), "all": d.sum(0) * 2, "spread": x.amax(1) - x.amin(1)}
    return text, plain(x=x, y=y, g=randn(H), n_q=2 * H), expected


@case
def quantizing_rows_to_fp8():  # type: ignore[no-untyped-def]
    text = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["K", "N"]):
    z = gemm(x, w)
    return {"z": z, "amax": tile_max(abs(z), "N")}
@finisher
def scales(amax: Partial["M", "N"]):
    a = maximum(total_max(amax), 1e-12)
    return {"scale": a / 448, "inverse": 448 / a}
@kernel
def quantize(z: Tensor["M", "N"], inverse: Tensor["M"]):
    return {"q": cast(z * inverse, "float8_e4m3")}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "N"]):
    a = f(x, w)
    b = scales(a.amax)
    c = quantize(a.z, b.inverse)
    return {"q": c.q, "scale": b.scale}
"""
    x, w = randn(T, D), randn(D, 12)
    z = x @ w
    amax = z.abs().amax(-1)
    q = (z * (448 / amax)[:, None]).float().to(torch.float8_e4m3fn).double()
    return text, plain(x=x, w=w), {"q": q, "scale": amax / 448}


@case
def accumulating_a_weight_gradient():  # type: ignore[no-untyped-def]
    text = """
@kernel
def f(x: Tensor["M", "K"], dy: Tensor["M", "N"], old: Tensor["K", "N"]):
    return {"dw": accumulate(old, gemm(x, dy))}
@program
def p(x: Tensor["T", "D"], dy: Tensor["T", "E"], old: Tensor["D", "E"]):
    a = f(x, dy, old)
    return {"dw": a.dw}
"""
    x, dy, old = randn(T, D), randn(T, E), randn(D, E)
    return text, plain(x=x, dy=dy, old=old), {"dw": old + x.T @ dy}


@case
def preparations_by_name():  # type: ignore[no-untyped-def]
    text = """
@prepare
def prepared(w: Tensor["E", "D"], w_in: Tensor["D"], w_out: Tensor["E"]):
    return {"w": transpose(w * w_in - w_out / size("E")) ** 2, "v": matvec(w, w_out), "twice": concat(w_in, w_in, "D"), "pairs": interleave(w_in, -w_in, "D")}
@kernel
def f(x: Tensor["M", "K"], w: Tensor["K", "N"], v: Tensor["K"]):
    return {"y": gemm(x, w)}
@kernel
def g(x: Tensor["M", "N"], v: Tensor["N"], t: Tensor["2*N"], q: Tensor["2*N"]):
    return {"y": x * v + even(t) + odd(q)}
@program
def p(x: Tensor["T", "D"], w: Tensor["E", "D"], w_in: Tensor["D"], w_out: Tensor["E"]):
    a = prepared(w, w_in, w_out)
    b = f(x, a.w, a.v)
    c = g(x, a.v, a.twice, a.pairs)
    return {"y": b.y, "z": c.y}
"""
    x, w, w_in, w_out = randn(T, D), randn(E, D), randn(D), randn(E)
    folded = (w * w_in - w_out[:, None] / E).T.square()
    even = torch.cat((w_in, w_in))[::2]
    return text, plain(x=x, w=w, w_in=w_in, w_out=w_out), {"y": x @ folded, "z": x * (w_out @ w) + even - w_in}


@pytest.mark.parametrize("block", TILINGS, ids=str)
@pytest.mark.parametrize("make", CASES, ids=[c.__name__ for c in CASES])
def test_operator_equals_pytorch(make: Case, block: tuple[int, int]) -> None:
    text, inputs, expected = make()
    actual = run(text, block, **inputs)
    assert actual.keys() == expected.keys()
    for name, reference in expected.items():
        assert worst(actual[name], reference) < 1e-10, name


UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "softplus": lambda x: F.softplus(x, threshold=1e9),
    "silu": F.silu,
    "gelu": F.gelu,
    "ndtr": torch.special.ndtr,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "round": torch.round,
    "abs": torch.abs,
}


@pytest.mark.parametrize("word", UNARY)
def test_elementwise_word_equals_torch(word: str) -> None:
    text = f"""
@kernel
def f(x: Tensor["M", "N"]):
    return {{"y": {word}(x)}}
@program
def p(x: Tensor["T", "D"]):
    a = f(x)
    return {{"y": a.y}}
"""
    x = randn(5, 9) * 3
    x = x.abs() + 0.1 if word in ("log", "log2", "sqrt", "rsqrt") else x
    assert worst(run(text, x=x)["y"], UNARY[word](x)) < 1e-14


def test_every_word_has_a_meaning() -> None:
    for word in WORDS:
        if word.places & {Place.KERNEL, Place.FINISHER}:
            assert word.name in ELEMENTWISE or word.name in MEANINGS or word.name == "pow", word.name
        if word.places == {Place.PREPARATION}:
            assert word.name in PREPARATION, word.name


NORM = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    z = gemm(x, w)
    return {"z": z, "s": tile_sum(z * z, "N"), "q": cast(z, "float16")}
@finisher
def g(s: Partial["M", "N"]):
    v = total_sum(s)
    return {"v": v, "mean": sum(v) / size("M")}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "D"]):
    a = f(x, w)
    b = g(a.s)
    c = f(a.z, w)
    return {"v": b.v, "mean": b.mean, "z": c.z}
"""


def test_rounding_stores_in_the_declared_dtypes() -> None:
    program = read(NORM)
    signature = signature_of(program, {"z": "bfloat16", "v": "bfloat16"}, "bfloat16")
    x, w = randn(5, 6).bfloat16(), randn(6, 6).bfloat16()
    exact = evaluate(program, signature, {"x": x, "w": w})
    stored = evaluate(program, signature, {"x": x, "w": w}, rounding=True)
    assert {name: t.dtype for name, t in stored.items()} == {
        "v": torch.bfloat16,
        "mean": torch.float32,
        "z": torch.bfloat16,
    }
    assert all(t.dtype == torch.float64 for t in exact.values())
    first = (x.double() @ w.double().T).bfloat16().double()
    assert torch.equal(stored["z"], (first @ w.double().T).bfloat16())
    assert worst(stored["z"], exact["z"]) > 1e-4


def test_stored_dtypes_follow_from_what_a_value_is() -> None:
    program = read(NORM)
    signature = signature_of(program, {"v": "bfloat16"}, "bfloat16")
    by_name = {c.name: c for c in program.calls}
    kinds = {(c, o): stored_dtype(program, signature, by_name[c], o) for c, o in [("a", "z"), ("a", "s"), ("a", "q")]}
    assert kinds == {("a", "z"): "bfloat16", ("a", "s"): "float32", ("a", "q"): "float16"}
    assert stored_dtype(program, signature, by_name["b"], "v") == "bfloat16"
    assert stored_dtype(program, signature, by_name["b"], "mean") == "float32"
    assert program.outputs["v"] == Ref(call="b", output="v")


def test_prepared_weights_keep_their_dtype_where_only_rearranged() -> None:
    program = read(CASES[2]()[0])
    signature = signature_of(program, dtype="bfloat16")
    assert stored_dtype(program, signature, program.calls[0], "blocks") == "bfloat16"
    folded = read(CASES[4]()[0])
    signature = signature_of(folded, dtype="bfloat16")
    assert stored_dtype(folded, signature, folded.calls[0], "w") == "bfloat16"
    assert stored_dtype(folded, signature, folded.calls[0], "v") == "float32"


def test_a_hi_lo_pair_of_turns_is_better_than_single_precision() -> None:
    text, inputs, expected = rotary_positions_of_both_conventions()
    single = text.replace('"lo": t - hi', '"lo": hi - hi')
    assert worst(run(text, **inputs)["halves"], expected["halves"]) < 1e-10
    assert worst(run(single, **inputs)["halves"], expected["halves"]) > 1e-4


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_fp8_saturates_and_keeps_nan(dtype: str) -> None:
    most = {"float8_e4m3": 448.0, "float8_e5m2": 57344.0}[dtype]
    x = torch.tensor([1e9, -1e9, math.inf, -math.inf, 0.3, math.nan], dtype=torch.float64)
    y = rounded(x, dtype)
    assert y[:4].tolist() == [most, -most, most, -most]
    assert y[4].item() == pytest.approx(0.3, rel=0.13) and y[4].item() != 0.3
    assert y[5].isnan()


def test_a_masked_row_gives_clean_partials() -> None:
    """Where every element of a tile is -inf, its weighted mean is 0 and not NaN."""
    text = """
@kernel
def f(x: Tensor["M", "N"]):
    lse, mean = tile_logsumexp(x, "N", x)
    return {"lse": lse, "mean": mean}
@finisher
def g(lse: Partial["M", "N"], mean: Partial["M", "N"]):
    l = total_logsumexp(lse)
    return {"l": l, "mean": total_sum(exp(lse - l) * mean)}
@program
def p(x: Tensor["T", "D"]):
    a = f(x)
    b = g(a.lse, a.mean)
    return {"l": b.l, "mean": b.mean}
"""
    x = randn(4, 8)
    x[:, :4] = -math.inf
    out = run(text, (4, 4), x=x)
    kept = x[:, 4:]
    assert worst(out["l"], kept.logsumexp(1)) < 1e-12
    assert worst(out["mean"], (kept.softmax(1) * kept).sum(1)) < 1e-12


def test_picks_out_of_range_are_zero() -> None:
    text = """
@kernel
def f(x: Tensor["M", "N"], t: Index["M"]):
    return {"p": pick(2 * x, t)}
@program
def p(x: Tensor["T", "D"], t: Index["T"]):
    a = f(x, t)
    return {"p": a.p}
"""
    x, t = randn(5, 6), torch.tensor([0, 5, 6, -1, -100])
    assert run(text, x=x, t=t)["p"].tolist() == [2 * x[0, 0].item(), 2 * x[1, 5].item(), 0, 0, 0]


def test_large_integers_are_compared_exactly() -> None:
    text = """
@kernel
def f(x: Tensor["M", "N"], t: Index["M"], u: Index["M"]):
    return {"y": where(t == u, x, 0.0)}
@program
def p(x: Tensor["T", "D"], t: Index["T"], u: Index["T"]):
    a = f(x, t, u)
    return {"y": a.y}
"""
    program = read(text)
    t = torch.tensor([2**24, 2**24])
    u = torch.tensor([2**24 + 1, 2**24])
    inputs = {"x": torch.ones(2, 3), "t": t, "u": u}
    out = evaluate(program, signature_of(program), inputs, dtype=torch.float32)
    assert out["y"].tolist() == [[0, 0, 0], [1, 1, 1]]


GROUPS = """
@kernel
def f(x: Tensor["M", "N"], h: Tensor["H"]):
    return {"y": %s}
@program
def p(x: Tensor["T", "D"], h: Tensor["H"]):
    a = f(x, h)
    return {"y": a.y}
"""


@pytest.mark.parametrize(
    "expression",
    [
        'spread(group_sum(x, "H"), "H")',
        'join(low(x, "H"), high(x, "H"), "H")',
        'x * cycle(h, "N")',
        "spread(group_max(x, 5), 5)",
        "interleave(even(x), odd(x))",
    ],
)
def test_groups_that_do_not_fit_are_said(expression: str) -> None:
    with pytest.raises(DimSizeError):
        run(GROUPS % expression, x=randn(4, 9), h=randn(4))


def test_inputs_that_disagree_about_a_dim_are_said() -> None:
    text, inputs, _ = CASES[0]()
    with pytest.raises(DimSizeError, match="w"):
        run(text, **{**inputs, "w": randn(D + 1, E)})

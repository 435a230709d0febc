# ruff: noqa: E501
"""The reader: what it accepts, and that every rule of the language is said with its place and, where possible, a repair."""

from __future__ import annotations

import inspect
import time

import pytest
from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.errors import Diagnostic, ProgramError
from coda_synth.coda_api.program import (
    Form,
    InputSpec,
    Kernel,
    Kind,
    OutputSpec,
    Program,
    Ref,
    Signature,
    Type,
    TypeKind,
    walk,
)
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import ALLOWED, HINTS
from coda_synth.coda_api.syntax import MAX_CHARACTERS
from coda_synth.coda_api.words import HABITS, LOOKUP, WORDS, Place, words_in

BASE = '''"""Scale rows after the second GEMM."""
from coda_api import *

HALF = 1 / 2

@prepare
def pack(w_gate: Tensor["F", "D"], w_up: Tensor["F", "D"]):
    return {"w": interleave(w_gate, w_up, "F")}

@kernel
def out_proj(y: Tensor["M", "K"], w: Tensor["N", "K"], x: Tensor["M", "N"], gamma: Tensor["N"]):
    h = gemm(y, w) + x
    return {"h": h, "hg": h * gamma, "ssq": tile_sum(h * h, "N")}

@finisher
def rms(ssq: Partial["M", "N"], eps: Scalar):
    total = total_sum(ssq)
    return {"rstd": rsqrt(total / size("N") + eps)}

@kernel(block_m=128, block_n=256, warps=8)
def up_proj(hg: Tensor["M", "K"], w: Tensor["2*N", "K"], rstd: Tensor["M"]):
    z = gemm(hg, w) * rstd
    g, u = even(z), odd(z)
    return {"act": g * sigmoid(g) * u}

@program
def task(y: Tensor["T", "K"], w_o: Tensor["D", "K"], x: Tensor["T", "D"], gamma: Tensor["D"], w_gate: Tensor["F", "D"], w_up: Tensor["F", "D"], eps: Scalar):
    p = pack(w_gate, w_up)
    a = out_proj(y, w_o, x, gamma)
    r = rms(a.ssq, eps)
    b = up_proj(a.hg, p.w, r.rstd)
    return {"x": a.h, "act": b.act}
'''


def dims(*texts: str) -> tuple[Dim, ...]:
    return tuple(map(Dim.parse, texts))


def tensor(*texts: str) -> Type:
    return Type(TypeKind.TENSOR, dims(*texts))


SIGNATURE = Signature(
    "task",
    (
        InputSpec("y", tensor("T", "K"), "bfloat16", "activation"),
        InputSpec("w_o", tensor("D", "K"), "bfloat16", "weight"),
        InputSpec("x", tensor("T", "D"), "bfloat16", "activation"),
        InputSpec("gamma", tensor("D"), "bfloat16", "weight"),
        InputSpec("w_gate", tensor("F", "D"), "bfloat16", "weight"),
        InputSpec("w_up", tensor("F", "D"), "bfloat16", "weight"),
        InputSpec("eps", Type(TypeKind.SCALAR), "float32", "scalar"),
    ),
    (OutputSpec("x", dims("T", "D"), "bfloat16"), OutputSpec("act", dims("T", "F"), "bfloat16")),
    "bfloat16",
)


SHAPES = ({"T": 96, "K": 64, "D": 512, "F": 768}, {"T": 5, "K": 8, "D": 1024, "F": 96})


def errors(text: str, signature: Signature | None = SIGNATURE) -> tuple[Diagnostic, ...]:
    with pytest.raises(ProgramError) as caught:
        read(text, signature, SHAPES if signature else ())
    return caught.value.diagnostics


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)


# (rule, what is replaced, by what); § marks the place that must be reported.
CASES = [
    ("BrokenSyntax", "total = total_sum(ssq)", "total = §= total_sum(ssq)"),
    ("BrokenSyntax", "HALF = 1 / 2", "§```python"),
    ("TopLevel", "HALF = 1 / 2", "§import torch"),
    ("TopLevel", "from coda_api import *", "§from torch import nn"),
    ("TopLevel", "HALF = 1 / 2", "§for i in range(3): pass"),
    ("TopLevel", "HALF = 1 / 2", "§class A: pass"),
    ("TopLevel", "HALF = 1 / 2", "§print(1)"),
    ("TopLevel", "HALF = 1 / 2", "§HALF: float = 0.5"),
    ("TopLevel", "HALF = 1 / 2", "§async def f(): pass"),
    ("DecoratorNeeded", "HALF = 1 / 2", "§def f(): return 1"),
    ("DecoratorNeeded", "HALF = 1 / 2", "@§triton.jit\ndef f(): return 1"),
    ("DecoratorNeeded", "@finisher", "@§finish"),
    ("OneProgram", 'return {"x": a.h, "act": b.act}', 'return {"x": a.h, "act": b.act}\n\n@program\n§def second(x: Scalar):\n    return {"x": x}'),
    ("DuplicateName", "@finisher\ndef rms", "@finisher\n§def out_proj(v: Tensor['M']):\n    return {'v': v}\n\n@finisher\ndef rms"),
    ("DuplicateName", '"hg": h * gamma', '§"h": h * gamma'),
    ("DuplicateName", "r = rms(a.ssq, eps)", "r = rms(a.ssq, eps)\n    §a = out_proj(y, w_o, x, gamma)"),
    ("ReservedName", "total = total_sum(ssq)", "total = total_sum(ssq)\n    §ssq = total"),
    ("ReservedName", "total = total_sum(ssq)", "total = total_sum(ssq)\n    §size = total"),
    ("ReservedName", "HALF = 1 / 2", "§pi = 3"),
    ("ReservedName", "x: Tensor[\"M\", \"N\"], gamma: Tensor[\"N\"]):\n    h = gemm(y, w) + x", "x: Tensor[\"M\", \"N\"], gamma: Tensor[\"N\"], §exp: Scalar):\n    h = gemm(y, w) + x"),
    ("BadName", '"hg": h * gamma', '§"h g": h * gamma'),
    ("BadName", '"hg": h * gamma', '§"lambda": h * gamma'),
    ("BadName", "HALF = 1 / 2", "§größe = 1"),
    ("ConstantValue", "HALF = 1 / 2", "HALF = §sqrt(2)"),
    ("ConstantValue", "HALF = 1 / 2", "HALF = §'half'"),
    ("NumberRange", "HALF = 1 / 2", "HALF = §1 / 0"),
    ("NumberRange", "h = gemm(y, w) + x", "h = gemm(y, w) + x * §5000000000"),
    ("NumberRange", "h = gemm(y, w) + x", "h = gemm(y, w) + x * §1e39"),
    ("ParameterList", "ssq: Partial[\"M\", \"N\"], eps: Scalar", "ssq: Partial[\"M\", \"N\"], eps: Scalar = §1e-5"),
    ("ParameterList", "ssq: Partial[\"M\", \"N\"], eps: Scalar", "ssq: Partial[\"M\", \"N\"], eps: Scalar, *§more"),
    ("TypeNeeded", "rms(ssq: Partial[\"M\", \"N\"], eps: Scalar", "rms(ssq: Partial[\"M\", \"N\"], §eps"),
    ("TypeNeeded", "rms(ssq: Partial[\"M\", \"N\"], eps: Scalar", "rms(ssq: Partial[\"M\", \"N\"], eps: §float"),
    ("TypeNeeded", "hg: Tensor[\"M\", \"K\"]", "§hg: Tensor[\"B\", \"M\", \"K\"]"),
    ("TypeNeeded", "rstd: Tensor[\"M\"]):", "§rstd: Partial[\"M\", \"N\"]):"),
    ("DimSyntax", "rstd: Tensor[\"M\"]):", "rstd: Tensor[§M]):"),
    ("DimSyntax", "rstd: Tensor[\"M\"]):", "rstd: Tensor[§\"M + 1\"]):"),
    ("StatementForm", "total = total_sum(ssq)", "§for i in range(4): total = total_sum(ssq)"),
    ("StatementForm", "total = total_sum(ssq)", "total = total_sum(ssq)\n    §total += 1"),
    ("StatementForm", "total = total_sum(ssq)", "total = total_sum(ssq)\n    §total * 2"),
    ("StatementForm", "total = total_sum(ssq)", "total = total_sum(ssq)\n    §if 1: pass"),
    ("StatementForm", "h = gemm(y, w) + x", "h = gemm(y, w) + x\n    §return {'h': h}"),
    ("ReturnForm", 'return {"rstd": rsqrt(total / size("N") + eps)}', "§return total"),
    ("ReturnForm", 'return {"rstd": rsqrt(total / size("N") + eps)}', "return {§eps: total}"),
    ("ReturnForm", "@finisher\ndef rms(ssq", "@finisher\n§def idle(v: Tensor['M']):\n    a = v * 2\n@finisher\ndef rms(ssq"),
    ("ScheduleHint", "block_m=128", "§block_m=100"),
    ("ScheduleHint", "block_m=128", "§blok_m=128"),
    ("ScheduleHint", "block_m=128", "§block_m=True"),
    ("ScheduleHint", "block_m=128", "block_m=64, §slice_n=512"),
    ("ScheduleHint", "block_m=128", "split_k=2, §split_k=4"),
    ("ExpressionForm", "sigmoid(g)", "§torch.sigmoid(g)"),
    ("ExpressionForm", "sigmoid(g)", "§z[:, 0]"),
    ("ExpressionForm", "sigmoid(g)", "(§g if u else z)"),
    ("ExpressionForm", "sigmoid(g)", "(§lambda q: q)"),
    ("ExpressionForm", "sigmoid(g)", "§[g for g in z]"),
    ("ExpressionForm", "sigmoid(g)", "§z.T"),
    ("ExpressionForm", "sigmoid(g)", "§'text'"),
    ("ExpressionForm", "sigmoid(g)", "§True"),
    ("ExpressionForm", "sigmoid(g)", "(§g @ u)"),
    ("ExpressionForm", "sigmoid(g)", "§rstd(g)"),
    ("UnknownName", "sigmoid(g)", "sigmoid(§gg)"),
    ("UnknownName", "sigmoid(g)", "§sigmoid"),
    ("UnknownWord", "sigmoid(g)", "§sigmoyd(g)"),
    ("UnknownWord", "sigmoid(g)", "§max(g, u)"),
    ("UnknownWord", "sigmoid(g)", "§__import__('os')"),
    ("WordPlace", "total = total_sum(ssq)", "total = §tile_sum(ssq, 'N')"),
    ("WordPlace", "sigmoid(g)", "§total_sum(g)"),
    ("WordPlace", "sigmoid(g)", "§sum(g)"),
    ("WordPlace", 'interleave(w_gate, w_up, "F")', "§exp(w_gate)"),
    ("WordPlace", 'interleave(w_gate, w_up, "F")', "(§w_gate < w_up)"),
    ("WordArguments", "sigmoid(g)", "§sigmoid(g, u)"),
    ("WordArguments", "sigmoid(g)", "§sigmoid(x=g)"),
    ("WordArguments", "sigmoid(g)", "§maximum(*z)"),
    ("UnknownDim", 'size("N")', 'size(§"D")'),
    ("UnknownDim", 'b = up_proj(a.hg, p.w, r.rstd)', 'b = up_proj(a.hg, p.w, size(§"Q"))'),
    ("Unpacking", "g, u = even(z), odd(z)", "§g, u = even(z)"),
    ("Unpacking", '"ssq": tile_sum(h * h, "N")', '"ssq": §tile_moments(h, "N")'),
    ("PowerForm", "sigmoid(g)", "§g ** 4"),
    ("PowerForm", "sigmoid(g)", "§g ** u"),
    ("OneComparison", "sigmoid(g)", "where(§0 < g < 1, g, u)"),
    ("BooleanForm", "sigmoid(g)", "where(§g > 0 and u > 0, g, u)"),
    ("BooleanForm", "sigmoid(g)", "where(§not g > 0, g, u)"),
    ("KindMismatch", "g * sigmoid(g)", "§g * (g > 0)"),
    ("KindMismatch", "sigmoid(g)", "§where(g, g, u)"),
    ("KindMismatch", "sigmoid(g)", "where(§g & u, g, u)"),
    ("DimMismatch", "g * sigmoid(g)", "§g * z"),
    ("DimMismatch", "g, u = even(z), odd(z)", "g, u = even(z), §odd(rstd)"),
    ("OneGemm", "h = gemm(y, w) + x", "h = gemm(y, w) + §gemm(y, w)"),
    ("GemmOperand", "gemm(hg, w)", "gemm(§hg * rstd, w)"),
    ("GemmOperand", "gemm(hg, w)", "gemm(hg, §rstd)"),
    ("GemmOperand", "gemm(hg, w)", "§gemm(w, w)"),
    ("Contraction", 'hg: Tensor["M", "K"], w: Tensor["2*N", "K"], rstd: Tensor["M"]):\n    z = gemm', 'hg: Tensor["M", "K"], w: Tensor["2*N", "L"], rstd: Tensor["M"]):\n    z = §gemm'),
    ("TileDims", 'def up_proj(hg: Tensor["M", "K"], w: Tensor["2*N", "K"]', '§def up_proj(hg: Tensor["M", "K"], w: Tensor["N*H", "K"]'),
    ("NotOverTile", "h = gemm(y, w) + x", "h = gemm(y, w) + §y"),
    ("PartialUse", '"hg": h * gamma', '"hg": §h * tile_sum(h * h, "N")'),
    ("ReduceDim", 'tile_sum(h * h, "N")', 'tile_sum(h * h, §"K")'),
    ("ReduceDim", '{"act": g * sigmoid(g) * u}', '{"act": g * u, "s": tile_sum(z, §"N")}'),
    ("ReduceDim", '"ssq": tile_sum(h * h, "N")', '"ssq": tile_sum(h * h, "N"), "low": tile_logsumexp(h, §"M")'),
    ("ReduceDim", 'tile_sum(h * h, "N")', '§tile_sum(gamma, "N")'),
    ("GroupSize", "g, u = even(z), odd(z)", 'g, u = §low(z, "N"), odd(z)'),
    ("GroupSize", "g, u = even(z), odd(z)", "g, u = §low(z, 127), odd(z)"),
    ("GroupSize", "g, u = even(z), odd(z)", "g, u = low(z, §0), odd(z)"),
    ("VectorStored", '"act": g', '"r": §rstd * 2, "act": g'),
    ("StoredKind", '"act": g * sigmoid(g) * u', '"act": §g > u'),
    ("CastDtype", '"hg": h * gamma', '"hg": cast(h * gamma, §"float8")'),
    ("CastDtype", '"hg": h * gamma', '"hg": cast(h * gamma, §float32)'),
    ("AccumulateUse", '"hg": h * gamma', '"hg": §accumulate(x, h * gamma)'),
    ("FinisherDim", 'def rms(ssq: Partial["M", "N"], eps: Scalar):', 'def rms(ssq: Partial["M", "N"], §eps: Tensor["M", "N"]):'),
    ("FinisherDim", '@finisher\ndef rms(ssq: Partial["M", "N"], eps: Scalar):', '@finisher\n§def rms(ssq: Partial["M", "N"], eps: Index["N"]):'),
    ("PartialNeeded", "total = total_sum(ssq)", "total = total_sum(§eps)"),
    ("PartialLeft", '"rstd": rsqrt(total / size("N") + eps)', '"rstd": §rsqrt(ssq / size("N") + eps)'),
    ("SumUse", "total = total_sum(ssq)", "v = total_sum(ssq)\n    total = §v / sum(v)"),
    ("SumUse", "total = total_sum(ssq)", "v = §sum(ssq)\n    total = total_sum(ssq)"),
    ("FinisherOutput", '"rstd": rsqrt', '"e": §eps * 2, "rstd": rsqrt'),
    ("PreparationDim", 'interleave(w_gate, w_up, "F")', 'interleave(w_gate, w_up, §"2*D")'),
    ("PreparationDim", 'interleave(w_gate, w_up, "F")', '§interleave(w_gate, transpose(w_up), "F")'),
    ("ProgramStatement", "p = pack(w_gate, w_up)", "§p = w_gate"),
    ("ProgramStatement", "p = pack(w_gate, w_up)", "§if eps: p = pack(w_gate, w_up)"),
    ("ProgramStatement", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(§a.hg * 2, p.w, r.rstd)"),
    ("ProgramStatement", "b = up_proj(a.hg, p.w, r.rstd)", "c = §exp(a.hg)\n    b = up_proj(a.hg, p.w, r.rstd)"),
    ("UnknownUnit", "r = rms(a.ssq, eps)", "r = §rmz(a.ssq, eps)"),
    ("CallArguments", "r = rms(a.ssq, eps)", "r = §rms(a.ssq)"),
    ("CallArguments", "r = rms(a.ssq, eps)", "r = §rms(a.ssq, eps, eps)"),
    ("CallArguments", "r = rms(a.ssq, eps)", "r = rms(a.ssq, eps, §epsilon=eps)"),
    ("CallType", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(a.hg, p.w, §a.ssq)"),
    ("CallType", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(a.hg, p.w, §1.0)"),
    ("CallType", "r = rms(a.ssq, eps)", "r = rms(a.ssq, §size('D'))"),
    ("CallDim", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(a.hg, §w_o, r.rstd)"),
    ("CallDim", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(a.hg, p.w, §x)"),
    ("UnknownOutput", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(§a.hgg, p.w, r.rstd)"),
    ("UnknownOutput", "b = up_proj(a.hg, p.w, r.rstd)", "b = up_proj(a.hg, p.w, §r)"),
    ("ProgramOutput", '"x": a.h', '"x": §a.ssq'),
    ("ProgramOutput", '"x": a.h', '"x": §x'),
    ("ProgramOutput", '"x": a.h', '"x": §p.w'),
    ("ProgramName", "def task(y:", "§def tusk(y:"),
    ("SignatureParameters", 'eps: Scalar):\n    p = pack', 'eps: Scalar, §extra: Scalar):\n    p = pack'),
    ("SignatureParameters", 'w_up: Tensor["F", "D"], eps: Scalar):\n    p', 'w_up: §Tensor["D", "F"], eps: Scalar):\n    p'),
    ("SignatureOutputs", 'return {"x": a.h, "act": b.act}', '§return {"x": a.h}'),
    ("SignatureOutputs", '"x": a.h, "act": b.act', '"x": a.h, "act": §a.h'),
]  # fmt: skip

# Rules that need a text of their own.
WHOLE = [
    ("TextTooLarge", "§" + "#" * (MAX_CHARACTERS + 1)),
    ("TooDeep", "x = " + "-" * 59 + "§-1"),
    ("BrokenSyntax", "§a = '\0'"),
    ("OneProgram", "§"),
    ("OneProgram", "§# nothing"),
    (
        "MixedTilings",
        """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    z = gemm(x, w)
    return {"a": tile_sum(z, "N"), "b": tile_max(z, "N")}
@finisher
def mix(a: Partial["M", "N"], b: Partial["M", "N"]):
    return {"v": total_sum(a * b)}
@program
def p(x: Tensor["T", "D"], w: Tensor["T", "D"]):
    c = f(x, w)
    d = f(w, x)
    m = §mix(c.a, d.b)
    return {"v": m.v}
""",
    ),
    (
        "MixedTilings",
        """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    z = gemm(x, w)
    return {"a": tile_sum(z, "N"), "b": tile_sum(z, "M")}
@finisher
def mix(a: Partial["M", "N"], b: Partial["M", "N"]):
    return {"v": total_sum(a + b)}
@program
def p(x: Tensor["T", "D"], w: Tensor["T", "D"]):
    c = f(x, w)
    m = §mix(c.a, c.b)
    return {"v": m.v}
""",
    ),
    (
        "MixedTilings",
        """
@kernel
def f(x: Tensor["M", "N"]):
    mean, m2 = tile_moments(x, "N")
    return {"mean": mean, "m2": m2}
@finisher
def merge(mean: Partial["M", "N"], m2: Partial["M", "N"]):
    mu, var = total_moments(mean, m2)
    return {"v": var}
@program
def p(x: Tensor["T", "D"]):
    c = f(x)
    m = §merge(c.m2, c.mean)
    return {"v": m.v}
""",
    ),
    (
        "MixedTilings",
        """
@finisher
def mix(a: Partial["M", "N"], b: Partial["M", "L"]):
    return {"v": total_sum(§a * b)}
@kernel
def f(x: Tensor["M", "N"], y: Tensor["M", "N"]):
    return {"a": tile_sum(x, "N"), "y": x * 2}
@program
def p(x: Tensor["T", "D"], y: Tensor["T", "E"]):
    c = f(x, x)
    d = f(y, y)
    m = mix(c.a, d.a)
    return {"v": m.v}
""",
    ),
    (
        "CallDim",
        """
@kernel
def f(x: Tensor["M", "N"], v: Tensor["N/H"]):
    return {"y": x * spread(v, "H"), "z": x * size("H")}
@kernel
def g(x: Tensor["M", "N"], h: Size["L*L"]):
    return {"y": x * size("L")}
@program
def p(x: Tensor["T", "D"], v: Tensor["E"]):
    c = f(x, v)
    d = §g(x, size("D"))
    return {"y": c.y}
""",
    ),
    (
        "TileDims",
        """
@kernel
§def f(x: Tensor["M"], w: Tensor["N"]):
    return {"y": x * w}
@program
def p(x: Tensor["T"], w: Tensor["D"]):
    c = f(x, w)
    return {"y": c.y}
""",
    ),
    (
        "TileDims",
        """
@kernel
§def f(x: Tensor["2*M", "K"], w: Tensor["M", "K"]):
    return {"y": gemm(x, w)}
@program
def p(x: Tensor["2*T", "D"], w: Tensor["T", "D"]):
    c = f(x, w)
    return {"y": c.y}
""",
    ),
    (
        "NotOverTile",
        """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], v: Tensor["K"]):
    return {"y": §gemm(x, w) * v}
@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], v: Tensor["D"]):
    c = f(x, w, v)
    return {"y": c.y}
""",
    ),
    (
        "PartialUse",
        """
@kernel
def f(x: Tensor["M", "N"], t: Index["M"]):
    chosen = pick(x, t)
    return {"chosen": chosen, "y": §x - chosen}
@program
def p(x: Tensor["T", "D"], t: Index["T"]):
    c = f(x, t)
    return {"y": c.y}
""",
    ),
    (
        "AmbiguousDim",
        """
@prepare
def f(w: Tensor["F", "F"], v: Tensor["F"]):
    return {"w": §w * v}
@kernel
def g(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    return {"y": gemm(x, w)}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "D"], v: Tensor["D"]):
    a = f(w, v)
    c = g(x, a.w)
    return {"y": c.y}
""",
    ),
    (
        "AmbiguousDim",
        """
@prepare
def f(a: Tensor["F", "F"], b: Tensor["F", "F"]):
    return {"w": §concat(a, b, "F")}
@kernel
def g(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    return {"y": gemm(x, w)}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "D"]):
    a = f(w, w)
    c = g(x, w)
    return {"y": c.y}
""",
    ),
    (
        "PreparationInput",
        """
@prepare
def twice(w: Tensor["N", "K"]):
    return {"w": w * 2}
@kernel
def g(x: Tensor["M", "K"], w: Tensor["N", "K"]):
    return {"y": gemm(x, w)}
@program
def p(x: Tensor["T", "D"], w: Tensor["D", "D"]):
    a = g(x, w)
    b = twice(§a.y)
    c = g(b.w, w)
    return {"y": c.y}
""",
    ),
    (
        "AccumulateUse",
        """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], out: Tensor["M", "N"]):
    return {"y": accumulate(out, gemm(x, w))}
@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], out: Tensor["T", "F"]):
    a = f(x, w, out)
    b = f(x, w, §a.y)
    return {"y": b.y}
""",
    ),
    (
        "AccumulateUse",
        """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], out: Tensor["M", "N"]):
    z = gemm(x, w)
    return {"y": §accumulate(out, z) * 2}
@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], out: Tensor["T", "F"]):
    c = f(x, w, out)
    return {"y": c.y}
""",
    ),
]


# What is wrong at a shape of the task, or with what is stored; several places are changed.
NARROW = '"hg": h * gamma', '"hg": cast(h * gamma, "float8_e4m3")'
AT_SHAPES = [
    ("TileFit", [('"hg": h * gamma', '"hg": h * join(§low(h, 48), high(h, 48), 48)')]),
    ("TileFit", [('"hg": h * gamma', '"hg": h * spread(§group_sum(h, 512), 512)'), ("256", "64")]),
    ("TileFit", [("block_n=256", "block_n=64"), ("u = even(z), odd(z)", "u = §low(z, 96), high(z, 96)")]),
    ("DimSize", [('"hg": h * gamma', '"hg": h * §size("N/3")')]),
    ("DimSize", [('"hg": h * gamma', '"hg": h * spread(§group_sum(h, 5), 5)')]),
    ("DimSize", [('{"w": interleave(w_gate, w_up, "F")}', '{"w": §join(w_gate, w_up, 100, "F")}')]),
    ("OperandDtype", [NARROW, ("b = up_proj", "b = §up_proj")]),
]


def found(text: str, signature: Signature | None) -> list[tuple[str, int, int]]:
    return [(d.rule, d.line, d.column) for d in errors(text, signature)]


def marked(text: str) -> tuple[str, int, int]:
    """A text without its mark, and the mark's line and column."""
    before = text[: text.index("§")]
    return text.replace("§", ""), before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


@pytest.mark.parametrize(("rule", "old", "new"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_broken_rule_in_a_whole_candidate(rule: str, old: str, new: str) -> None:
    text, line, column = marked(changed(old, new))
    assert found(text, SIGNATURE) == [(rule, line, column)]


@pytest.mark.parametrize(("rule", "text"), WHOLE, ids=[f"{i}-{c[0]}" for i, c in enumerate(WHOLE)])
def test_broken_rule_in_a_text_of_its_own(rule: str, text: str) -> None:
    text, line, column = marked(text)
    assert found(text, None) == [(rule, line, column)]


@pytest.mark.parametrize(("rule", "changes"), AT_SHAPES, ids=[f"{i}-{c[0]}" for i, c in enumerate(AT_SHAPES)])
def test_broken_rule_at_a_shape(rule: str, changes: list[tuple[str, str]]) -> None:
    whole = BASE
    for old, new in changes:
        whole = whole.replace(old, new)
    text, line, column = marked(whole)
    assert found(text, SIGNATURE) == [(rule, line, column)]


def test_where_no_part_is_whole_at_every_shape_that_is_said() -> None:
    text = changed('"hg": h * gamma', '"hg": h * size("N/8")')
    with pytest.raises(ProgramError) as refused:
        read(text, SIGNATURE, [{**SHAPES[0], "D": 37}, SHAPES[0]])
    assert 'no part of "N" is whole at every shape of the task, so take all of it' in str(refused.value)


def test_all_that_does_not_fit_is_told_at_once_with_the_sizes_that_trigger_it() -> None:
    """Each cause once, in the order of the text, beside an error of another kind; without shapes only the latter."""
    more = '"hg": h * spread(group_max(h, 48), 48), "more": join(low(h, 512), high(h, 512), 512)'
    text = changed('"hg": h * gamma', more)
    text = text.replace("sigmoid(g)", "sigmod(g)")
    first, second, third = errors(text)
    assert (first.rule, second.rule, third.rule) == ("DimSize", "TileFit", "UnknownWord")
    assert first.message == (
        'group_max: "N/48" is 32/3, no whole number, in the call a with D = 512 (likewise D = 1024); '
        'take a part that is whole at every shape of the task, where "N" is a multiple of 512'
    )
    assert second.message == (
        "low: a group of 512 columns of the product must fit the tile (block_n = 256), in the call a with D = 512 "
        "(likewise D = 1024); no tile has more than 256: leave partials with tile_... and finish them in a @finisher"
    )
    with pytest.raises(ProgramError) as caught:
        read(text, SIGNATURE)
    assert [d.rule for d in caught.value.diagnostics] == ["UnknownWord"]


def test_every_rule_has_a_case() -> None:
    classes = {name for name, c in inspect.getmembers(rules, inspect.isclass) if issubclass(c, rules.Broken)} - {
        "Broken"
    }
    assert classes == {case[0] for case in CASES} | {case[0] for case in [*WHOLE, *AT_SHAPES]}


# What a sound text becomes.


def value(program: Program, unit: str, output: str):  # type: ignore[no-untyped-def]
    return program.units[unit].outputs[output]


def test_the_base_candidate_reads_with_its_signature() -> None:
    program = read(BASE, SIGNATURE)
    assert program.name == "task"
    assert program.docstring == "Scale rows after the second GEMM."
    assert [c.name for c in program.calls] == ["p", "a", "r", "b"]
    assert program.outputs == {"x": Ref(call="a", output="h"), "act": Ref(call="b", output="act")}
    up = program.calls[3]
    assert isinstance(up.unit, Kernel) and up.unit.gemm and up.unit.gemm.b_transposed and not up.unit.gemm.a_transposed
    assert (str(up.unit.rows), str(up.unit.cols), str(up.unit.gemm.inner)) == ("M", "2*N", "K")
    assert {s: str(d) for s, d in up.binding.items()} == {"M": "T", "K": "D", "N": "F"}
    assert up.args["w"] == Ref(call="p", output="w")
    assert up.unit.hints == {"block_m": 128, "block_n": 256, "warps": 8}


def test_values_carry_forms_dims_and_places() -> None:
    program = read(BASE, SIGNATURE)
    ssq, act, rstd = value(program, "out_proj", "ssq"), value(program, "up_proj", "act"), value(program, "rms", "rstd")
    assert (ssq.form, str(ssq.rows), str(ssq.cols), ssq.attrs["axis"]) == (Form.PARTIAL, "M", "N", 1)
    assert (act.form, str(act.rows), str(act.cols), act.kind) == (Form.TILE, "M", "N", Kind.FLOAT)
    assert (rstd.form, str(rstd.rows), rstd.cols) == (Form.TILE, "M", None)
    assert (ssq.line, ssq.column) == (13, 45)
    assert sum(v.word == "gemm" for v in walk(program.units["out_proj"].outputs)) == 1


def test_a_parameter_read_twice_is_one_value() -> None:
    text = """
@kernel
def f(x: Tensor["M", "N"], v: Tensor["N"]):
    return {"y": x * v + v}
@program
def p(x: Tensor["T", "D"], v: Tensor["D"]):
    a = f(x, v)
    return {"y": a.y}
"""
    loads = [v for v in walk(read(text).units["f"].outputs) if v.word == "param"]
    assert sorted(str(v.attrs["name"]) for v in loads) == ["v", "x"]


SMALL = """
SCALE = 2 / pi
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], r: Tensor["M"], s: Scalar, t: Index["M"], d: Size["Q"]):
    {body}
@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], r: Tensor["T"], s: Scalar, t: Index["T"], q: Tensor["E"]):
    a = f(x, w, r, s, t, size("E"))
    return {{"y": a.y}}
"""


@pytest.mark.parametrize(
    "body",
    [
        'z = gemm(x, w)\n    z = z * r\n    z = relu(z)\n    return {"y": z}',
        '"a note"\n    return {"y": gemm(x, w) ** 2 + SCALE}',
        'return {"y": where((r > 0) & ~(s < 1) | (t == -100), gemm(x, w), -inf)}',
        'a, b = gemm(x, w) * r, +r\n    return {"y": a - b}',
        'c, _ = tile_moments(gemm(x, w), "N")\n    return {"y": r * index("N"), "c": c}',
        'z = gemm(x, w)\n    return {"y": z, "q": tile_sum(even(z), "N/2"), "p": pick(z, t)}',
        'return {"y": gemm(x, w) / size("Q") + d + size("K")}',
        'return {"y": cast(gemm(x, w), "float8_e4m3")}',
        'z = gemm(x, w)\n    return {"y": spread(group_sum(z * z, 128), 128) * z}',
        'z = gemm(x, w)\n    return {"y": clamp(fma(z, r, 1.0), -1, 1), "sum": tile_sum(z, "M")}',
    ],
)
def test_small_syntax_that_authors_write(body: str) -> None:
    program = read(SMALL.format(body=body))
    assert program.units["f"].outputs["y"].form is not Form.UNKNOWN


def test_integers_stay_integers_and_conditions_conditions() -> None:
    body = 'i = index("N") * 2 + t\n    return {"y": where(i < 5, gemm(x, w), r) + i}'
    values = {v.word: v.kind for v in walk(read(SMALL.format(body=body)).units["f"].outputs)}
    assert values["index"] is Kind.INT and values["mul"] is Kind.INT and values["lt"] is Kind.BOOL
    assert values["where"] is Kind.FLOAT


def test_no_value_is_inferred_from_size() -> None:
    """Two symbols may bind to one dim of the program, yet never meet inside a unit."""
    text = """
@kernel
def f(x: Tensor["M", "N"], v: Tensor["M"], u: Tensor["N"]):
    return {"y": x * v + u}
@program
def p(x: Tensor["T", "T"], v: Tensor["T"]):
    a = f(x, v, v)
    return {"y": a.y}
"""
    call = read(text).calls[0]
    assert {s: str(d) for s, d in call.binding.items()} == {"M": "T", "N": "T"}
    y = call.unit.outputs["y"]
    assert (str(y.rows), str(y.cols)) == ("M", "N")


def test_symbols_are_solved_through_factors() -> None:
    text = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], v: Tensor["H/2"], s: Tensor["M", "N/H"]):
    return {"y": low(gemm(x, w), "H") * cycle(v, "N/2"), "z": spread(s, "H")}
@program
def p(x: Tensor["T", "D"], w: Tensor["Q*C", "D"], v: Tensor["C/2"], s: Tensor["T", "Q"]):
    a = f(x, w, v, s)
    return {"y": a.y, "z": a.z}
"""
    call = read(text).calls[0]
    assert {s: str(d) for s, d in call.binding.items()} == {"M": "T", "K": "D", "N": "C*Q", "H": "C"}


def test_keywords_numbers_sizes_and_sums_are_arguments() -> None:
    text = """
EPS = 1e-5
@finisher
def total(v: Tensor["M"], up: Scalar, n: Size["Q"]):
    return {"s": up / sum(v) * size("Q")}
@kernel
def f(x: Tensor["M", "N"], s: Scalar, e: Scalar):
    return {"y": x * s + e}
@program
def p(x: Tensor["T", "D"], v: Tensor["T"]):
    t = total(v, n=size("D"), up=-2.5)
    a = f(x, e=EPS, s=t.s)
    return {"y": a.y}
"""
    first, second = read(text).calls
    assert first.args == {"v": Ref(input="v"), "up": Ref(number=-2.5), "n": Ref(size=Dim.parse("D"))}
    assert second.args == {"x": Ref(input="x"), "s": Ref(call="t", output="s"), "e": Ref(number=1e-5)}


def test_dead_outputs_and_calls_are_known() -> None:
    text = changed('return {"x": a.h, "act": b.act}', 'return {"x": a.h}')
    program = read(text)
    assert [c.name for c in program.live_calls()] == ["a"]
    assert program.live_outputs(program.calls[1]) == ("h",)


# Errors as a product.


def test_all_errors_of_a_file_come_at_once_and_in_order() -> None:
    text = (
        changed("sigmoid(g)", "sigmoyd(g)").replace("gemm(y, w) + x", "gemm(y, w) + xx").replace("r.rstd)", "r.rsdt)")
    )
    assert [(d.rule, d.line) for d in errors(text)] == [("UnknownName", 12), ("UnknownWord", 24), ("UnknownOutput", 31)]


def test_two_errors_in_one_expression_are_both_said() -> None:
    assert [d.rule for d in errors(changed("sigmoid(g)", "sigmoyd(g) + expp(u)"))] == ["UnknownWord", "UnknownWord"]


@pytest.mark.parametrize(
    ("old", "new", "repaired"),
    [
        ("sigmoid(g)", "sigmoyd(g)", None),
        ("sigmoid(g)", "torch.sigmoid(g)", None),
        ("sigmoid(g)", "sigmoid(gg)", "sigmoid(g)"),
        ('rstd: Tensor["M"]):', "rstd: Tensor[M]):", None),
        ("@finisher", "@finish", None),
        ('"hg": h * gamma', '"hg": maximun(h, gamma)', '"hg": maximum(h, gamma)'),
        ('"hg": h * gamma', '"hg": max(h, gamma)', '"hg": maximum(h, gamma)'),
        ('tile_sum(h * h, "N")', 'tile_sum(h * h, "2*N")', None),
        ("r.rstd)", "r)", None),
        ("r = rms(a.ssq, eps)", "r = rmss(a.ssq, eps)", None),
        ("def task(y", "def  other (y", None),
        ('{"x": a.h, "act": b.act}', '{"x": a.h, "y": b.act}', None),
        ('w_up: Tensor["F", "D"], eps: Scalar):', 'w_up: Tensor["D", "F"], eps: Scalar):', None),
        (
            "total = total_sum(ssq)",
            "total = total_sum(ssq)\n    total += 1",
            "total = total_sum(ssq)\n    total = total + 1",
        ),
    ],
)
def test_applying_the_edit_repairs_the_text(old: str, new: str, repaired: str | None) -> None:
    broken = changed(old, new)
    (found,) = errors(broken)
    assert found.fix is not None
    lines = broken.split("\n")
    line = lines[found.fix.line - 1]
    lines[found.fix.line - 1] = line[: found.fix.column - 1] + found.fix.text + line[found.fix.end_column - 1 :]
    text = "\n".join(lines)
    assert text == BASE.replace(old, repaired or old)
    read(text, SIGNATURE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("h = gemm(y, w) + x", "h = (gemm(y, w) + x) @ gamma"),  # no product of two parameters
        ('"hg": h * gamma', '"hg": h * tile_sum(h * h, "N")'),  # the partial alone would be no tile
        ('return {"x": a.h, "act": b.act}', 'return {"x": a.h}'),
    ],
)
def test_an_edit_that_would_not_mend_is_not_offered(old: str, new: str) -> None:
    assert [d.fix for d in errors(changed(old, new))] == [None]


def test_columns_count_characters_not_bytes() -> None:
    text = changed("    h = gemm(y, w) + x", '    "größe"; h = gemm(y, w) + xx')
    assert [(d.rule, d.line, d.column) for d in errors(text)] == [("UnknownName", 12, 31)]


def test_messages_say_what_to_do() -> None:
    def message(old: str, new: str) -> str:
        return errors(changed(old, new))[0].message

    assert "did you mean 'sigmoid'" in message("sigmoid(g)", "sigmoyd(g)")
    assert "finisher" in message('"hg": h * gamma', '"hg": h * tile_sum(h * h, "N")')
    assert "operand of the gemm" in message("h = gemm(y, w) + x", "h = gemm(y, w) + y")
    assert '"2*N"' in message('{"act": g * sigmoid(g) * u}', '{"act": g * u, "s": tile_sum(z, "N")}')
    assert "100" in message("block_m=128", "block_m=100")
    assert 'Tensor["F", "D"]' in message(
        'w_up: Tensor["F", "D"], eps: Scalar):', 'w_up: Tensor["D", "F"], eps: Scalar):'
    )


def test_a_signature_is_matched_by_name_not_order() -> None:
    text = changed(
        'def task(y: Tensor["T", "K"], w_o: Tensor["D", "K"],', 'def task(w_o: Tensor["D", "K"], y: Tensor["T", "K"],'
    )
    assert read(text, SIGNATURE).outputs


def test_activations_do_not_enter_preparations_and_weights_do() -> None:
    text = changed("def up_proj", "def other").replace("b = up_proj", "b = other")
    assert read(text, SIGNATURE)
    activations = Signature(
        "task",
        tuple(InputSpec(i.name, i.type, i.dtype, "activation") for i in SIGNATURE.inputs),
        SIGNATURE.outputs,
        "bfloat16",
    )
    assert {d.rule for d in errors(BASE, activations)} == {"PreparationInput"}


def test_only_inputs_marked_in_place_are_accumulated_into() -> None:
    text = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], out: Tensor["M", "N"]):
    return {"y": accumulate(out, gemm(x, w))}
@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], out: Tensor["T", "F"]):
    a = f(x, w, out)
    return {"y": a.y}
"""
    types = {"x": tensor("T", "D"), "w": tensor("F", "D"), "out": tensor("T", "F")}

    def signature(role: str) -> Signature:
        inputs = tuple(InputSpec(n, t, "bfloat16", role if n == "out" else "activation") for n, t in types.items())
        return Signature("p", inputs, (OutputSpec("y", dims("T", "F"), "bfloat16"),), "bfloat16")

    assert [(d.rule, d.line, d.column) for d in errors(text, signature("activation"))] == [("AccumulateUse", 7, 17)]
    assert read(text, signature("in_place"))


# Hostile and merely large texts.


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "-" * 50000 + "1",
        "x = " + "+".join(["1"] * 20000),
        "x = " + "[" * 190 + "]" * 190,
        "x = 9" + "9" * 50000,
        "x = 9**9**9**9**9",
        "x = 1e999999",
        "x = 0x" + "f" * 60000,
        "\0",
        "\ud800",
        "\ufeff" + "x",
        "@kernel\ndef f(x: Tensor['" + "(" * 60 + "']): pass",
        "@kernel\ndef f(x: Tensor['" + "N*" * 30000 + "N']): pass",
        "@kernel\ndef f(x: Tensor['\\0']): pass",
        "@kernel\n" * 2000 + "def f(): pass",
        "def f(" + ",".join(f"a{i}" for i in range(3000)) + "): pass",
        "a" * 60000,
        "match x:\n case _: pass",
        "x = '\\d'",
        "x = 1 is 1",
        "\t x\n  y",
        "f'{x!r:{y}}'",
        "exec('raise SystemExit')",
        "@program\ndef p(x: Tensor['T','D']):\n  a = b.c.d(x)\n  return {**x}",
        "@kernel\ndef f(x: Tensor['M','N']):\n  return {**x}",
        "@kernel\ndef f(x: Tensor['M','N']):\n  (a, (b, c)), *d = x, x\n  x[0] = 1\n  return {'y': a}",
        "@kernel(**{})\ndef f(x: Tensor['M','N']):\n  return {'y': x}",
        "@kernel(block_m=[1])\ndef f(x: Tensor['M','N']):\n  return {'y': x}",
        "@kernel\ndef f(x: Tensor[()]):\n  return {'y': x}",
        "@kernel\ndef f(x: Tensor['M','N']):\n" + "  x = x * 1\n" * 2000 + "  return {'y': x}",
        "@kernel\ndef f(x: Tensor['M','N']):\n  a = x\n" + "  a = a * a\n" * 2000 + "  return {'y': a}",
    ],
    ids=range(31),
)
def test_hostile_text_gives_a_clean_error_fast(text: str) -> None:
    start = time.perf_counter()
    assert errors(text, None)
    assert time.perf_counter() - start < 2.0


# The table.


def test_words_are_unique_and_explained() -> None:
    assert len(LOOKUP) == sum(len(w.places) for w in WORDS)
    for word in WORDS:
        assert word.doc.endswith(".") and word.example and word.signature, word.name
        assert word.arity[0] >= 1


def test_every_place_has_its_words() -> None:
    assert {"gemm", "tile_sum", "rotation", "cast"} <= {w.name for w in words_in(Place.KERNEL)}
    assert {"total_sum", "sum", "fold"} <= {w.name for w in words_in(Place.FINISHER)}
    assert {"interleave", "concat", "join", "transpose", "matvec", "cast"} <= {
        w.name for w in words_in(Place.PREPARATION)
    }


def test_habits_lead_to_words() -> None:
    names = {w.name for w in WORDS} | {"x ** 2"}
    assert set(HABITS.values()) <= names
    assert not set(HABITS) & {w.name for w in WORDS if not w.symbol}


@pytest.mark.parametrize("first", HINTS)
def test_every_hint_beside_every_other_is_read_or_refused_in_words(first: str) -> None:
    text = (
        "@kernel({})\ndef f(x: Tensor['M', 'K'], w: Tensor['N', 'K']):\n    return {{'y': gemm(x, w)}}\n\n"
        "@program\ndef p(x: Tensor['T', 'D'], w: Tensor['F', 'D']):\n    a = f(x, w)\n    return {{'y': a.y}}\n"
    )
    for value in ALLOWED[first]:
        for second in HINTS:
            for other in ALLOWED[second] if second != first else (value,):
                said = f"{first}={value!r}" + (f", {second}={other!r}" if second != first else "")
                try:
                    read(text.format(said))
                except ProgramError as error:
                    assert {d.rule for d in error.diagnostics} == {"ScheduleHint"}, said


@pytest.mark.parametrize(
    ("old", "new", "rule", "said"),
    [
        ("@kernel\n", "@kernel(128)\n", "DecoratorNeeded", "schedule hints by name only"),
        ("@finisher", "@finisher(1)", "DecoratorNeeded", "@finisher takes no arguments"),
        ("out_proj(y, w_o, x, gamma)", "out_proj(*[y, w_o, x, gamma])", "CallArguments", "one by one (y, w, x, gamma)"),
    ],
)
def test_a_repair_is_another_text(old: str, new: str, rule: str, said: str) -> None:
    text = changed(old, new)
    found = next(d for d in errors(text) if d.rule == rule)
    assert said in found.message
    if found.fix:
        line = text.split("\n")[found.fix.line - 1]
        assert line[found.fix.column - 1 : found.fix.end_column - 1] != found.fix.text
        assert line[: found.fix.column - 1] + found.fix.text + line[found.fix.end_column - 1 :] == old.strip()


@pytest.mark.parametrize("product", ["gem(y, w)", "y @ w", "y @ w.T", "torch.matmul(y, w)", "y.mm(w)", "product(y, w)"])
def test_a_product_in_other_words_is_the_only_error(product: str) -> None:
    """Without its gemm a kernel's tile is not known: what does not lie over another one is no mistake."""
    text = changed("h = gemm(y, w) + x", f"g = x * gamma\n    h = {product} + g")
    (found,) = errors(text)
    assert found.rule in ("UnknownWord", "ExpressionForm") and product[:3] in found.message


def test_a_keyword_of_python_is_told_as_one() -> None:
    (found,) = errors(changed('"hg": h * gamma', '"hg": h * gamma, "class": h'))
    assert found.message == "'class' is a keyword of Python and cannot name an output; choose another name"


def test_what_a_program_returns_is_not_told_as_an_argument() -> None:
    (found,) = errors(changed('"x": a.h, "act"', '"x": a.h + x, "act"'))
    assert "a.h + x cannot be returned" in found.message and "argument" not in found.message
    (found,) = errors(changed("rms(a.ssq, eps)", "rms(a.ssq, eps + 1)"))
    assert "eps + 1 cannot be an argument" in found.message

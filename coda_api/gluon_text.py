"""Gluon's dialect, in which Hopper kernels are written: portable text put into it, and the small functions that are its
own; and the library of a generated module, which holds what its text calls of either."""

from __future__ import annotations

import math
import re

from coda_synth.coda_api.spelling import FUNCTIONS, polynomial

# Where Gluon can say it better, because it runs on the device alone: a reciprocal good to one unit in the last place,
# and sine and cosine good to 5e-7 within half a turn, are one instruction each.
GLUON_FUNCTIONS: dict[str, str] = {
    "unpacked": '''
@triton.jit
def unpacked(x):
    """bf16 as fp32: its bits above 16 zeros, one instruction, where a cast takes three for two."""
    return tl.inline_asm_elementwise("mov.b32 $0, {0, $1};", "=f,h", [x], tl.float32, is_pure=True, pack=1)
''',
    "columns_for_rows": '''
@gluon.constexpr_function
def columns_for_rows(layout):
    """Of [.., rows, columns]: in a bit of the lanes' numbers, columns that lie in registers take the place of rows."""
    lanes, registers = list(layout.lane_bases), list(layout.reg_bases)
    lane = max(i for i in range(len(lanes)) if lanes[i][-2])
    register = max((i for i in range(len(registers)) if registers[i][-1]), default=None)
    if register is None:  # these rows are reduced where they lie
        return layout
    lanes[lane], registers[register] = registers[register], lanes[lane]
    return gl.DistributedLinearLayout(registers, lanes, layout.warp_bases, layout.block_bases, layout.shape)
''',
    "sum_in_warps": '''
@triton.jit
def sum_in_warps(x, WARPS: tl.constexpr):
    """[BLOCK_M, n] to [WARPS, n]: each warp adds up its own rows, 16 out of 16 WARPS. Eight lanes hold a column: three
    times half of them leave half of the columns to the others, so that each adds up less and less."""
    x = tl.reshape(x, (x.shape[0] // (16 * WARPS), WARPS, 2, 8, x.shape[1]))
    x = tl.sum(tl.sum(x, 2), 0)
    for _ in tl.static_range(3):
        x = tl.convert_layout(x, columns_for_rows(tl.to_linear_layout(x.type.layout, x.shape)))
        x = tl.sum(tl.reshape(x, (WARPS, 2, x.shape[1] // 2, x.shape[2])), 1)
    return tl.reshape(x, (WARPS, x.shape[2]))
''',
    "spread": '''
@triton.jit
def spread(x, G: tl.constexpr):
    """Each column G times."""
    one: tl.constexpr = x.type.layout.parent
    wide = x[:, :, None] + tl.zeros((x.shape[0], x.shape[1], G), x.dtype, one)
    return tl.reshape(wide, (x.shape[0], x.shape[1] * G))
''',
    "flushed_exp": '''
@triton.jit
def flushed_exp(x):
    """exp(x), or 0 where that is no normal number: the care that tl.exp takes of those costs three instructions."""
    return tl.exp2(x * 1.4426950408889634)
''',
    # What is flushed here is added to 1 at least, the exponential of the maximum itself.
    "merge_logsumexp": FUNCTIONS["merge_logsumexp"].replace("tl.exp(", "flushed_exp("),
    "sigmoid": """
@triton.jit
def sigmoid(x):
    y = 1.0 + flushed_exp(x * -1.0)  # -x would be a subtraction of its own
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], tl.float32, is_pure=True, pack=1)
""",
    "erf": '''
@triton.jit
def erf(x):
    """Good to 9e-8 of itself: x times a polynomial in its square near 0, 1 minus 2 to a polynomial in |x| farther out.
    Both are computed, since to choose between their coefficients, as libdevice does, takes more instructions."""
    u, t = x * x, tl.abs(x)
    near = x + x * (NEAR_POLYNOMIAL)
    far = 1.0 - tl.exp2(t * (FAR_POLYNOMIAL))
    far = tl.inline_asm_elementwise("copysign.f32 $0, $1, $2;", "=f,f,f", [x, far], tl.float32, is_pure=True, pack=1)
    return tl.where(t < 0.927734375, near, far)
''',
    "tanh": """
@triton.jit
def tanh(x):
    u = x * x
    near = x * (1.0 + u * (-0.33333333 + u * (0.13333334 + u * (-0.053968254 + u * 0.021869488))))
    return tl.where(u < 0.0625, near, 2.0 * sigmoid(2.0 * x) - 1.0)
""",
    "rotation": '''
@triton.jit
def rotation(position, f_hi, f_lo):
    """cos and sin of 2 pi position (f_hi + f_lo), frequencies in turns, the range reduced by exact fmas."""
    turns = tl.fma(position, f_lo, tl.fma(position, f_hi, -whole_turns(position, f_hi)))
    angle = turns * 6.283185307179586
    cos = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    sin = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    return cos, sin
''',
}


# Of N. Juffa's erff: minimax fits of (erf(x) - x) / x on |x| < 0.9277, and of log(1 - erf(t)) / t from there on.
# The latter's become those of the logarithm to base 2.
_NEAR = [1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4]
_FAR = [-1.12871751, -6.34846687e-1, -1.06777877e-1, 2.42546219e-2, -3.88396438e-3, 3.83197126e-4, -1.72853470e-5]
GLUON_FUNCTIONS["erf"] = (
    GLUON_FUNCTIONS["erf"]
    .replace("NEAR_POLYNOMIAL", polynomial(_NEAR))
    .replace("FAR_POLYNOMIAL", polynomial([float(f"{c / math.log(2.0):.9g}") for c in _FAR], "t"))
)

_IN_WARPS = GLUON_FUNCTIONS["sum_in_warps"]
for _reduce in ("max", "min"):
    _of = _IN_WARPS.replace("sum_in", f"{_reduce}_in").replace("tl.sum(", f"reduce_{_reduce}(")
    GLUON_FUNCTIONS[f"{_reduce}_in_warps"] = _of.replace("adds up", "reduces")


_CALLS = re.compile(rf"(?<![\w.])({'|'.join(FUNCTIONS | GLUON_FUNCTIONS)})\(")


def gluon(text: str) -> str:
    """Portable text in Gluon's dialect. Library functions end in _g there, because both may stand in one module."""
    text = text.replace("tl.sigmoid(", "sigmoid(").replace("tl.erf(", "erf(").replace("tl.PropagateNan", "PropagateNan")
    text = _CALLS.sub(r"\1_g(", text)
    text = text.replace("AXIS, maximum)", "AXIS, maximum_g)").replace("AXIS, minimum)", "AXIS, minimum_g)")
    text = re.sub(r"\btl\.", "gl.", text.replace("@triton.jit", "@gluon.jit"))
    return text.replace("PropagateNan", "tl.PropagateNan")


def library(text: str, suffix: str = "") -> str:
    """The functions that `text` calls, and those that they call, each after what it needs. suffix "_g": Gluon's."""
    wanted: list[str] = []

    known = FUNCTIONS | GLUON_FUNCTIONS if suffix else FUNCTIONS

    def spelled(name: str) -> str:
        return gluon(known[name]) if suffix else known[name]

    def need(body: str) -> None:
        body = re.sub(r"AXIS, (\w+)\)", r"\1(", body)  # a reduction names the function that it combines with
        called = set(re.findall(rf"(?<![\w.])(\w+){suffix}\(", body))
        for name in known:
            if name not in wanted and name in called:
                need(spelled(name).replace(f"def {name}{suffix}(", ""))
                wanted.append(name)

    need(text)
    return "".join(f"\n{spelled(name)}" for name in wanted)

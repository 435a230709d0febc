"""How each word is written in Triton: templates for elementwise words, and the small functions that generated text may
call. Words over tiles, groups and partials are spelled where their geometry is known, in the emitters."""

from __future__ import annotations

import math

# Binding strength, so that only needed parentheses are written: or/and < comparison < sum < product < unary < atom.
ATOM, UNARY, PRODUCT, SUM, COMPARE, LOGIC = 6, 5, 4, 3, 2, 1

INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "accumulate": ("+", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "and": ("&", LOGIC),
    "or": ("|", LOGIC),
}

# Elementwise words: a call of one function over the arguments, in order.
CALLS: dict[str, str] = {
    "maximum": "maximum",
    "minimum": "minimum",
    "where": "tl.where",
    "clamp": "clamp",
    "fma": "tl.fma",
    "abs": "tl.abs",
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "reciprocal": "reciprocal",
    "sigmoid": "tl.sigmoid",
    "tanh": "tanh",
    "erf": "tl.erf",
    "softplus": "softplus",
    "silu": "silu",
    "gelu": "gelu",
    "ndtr": "ndtr",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "sin": "tl.sin",
    "cos": "tl.cos",
    "floor": "tl.floor",
    "round": "rint",
}

# Words whose value is a float whatever the arguments are: integers are converted first.
FLOAT_WORDS = frozenset(CALLS) - {"maximum", "minimum", "where", "clamp", "abs"}

# The function library of generated modules. Each is emitted only where it is called, after what it calls itself.
FUNCTIONS: dict[str, str] = {
    "tile_order": '''
@triton.jit
def tile_order(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a tile: groups of GROUP_M tile rows run down first, so that neighbours share operands in L2."""
    group = tile // (GROUP_M * tiles_n)
    height = min(tiles_m - group * GROUP_M, GROUP_M)
    inside = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + inside % height, inside // height
''',
    "halves": '''
@triton.jit
def halves(x):
    """The left and the right half of a tile's columns: a renaming of registers, nothing moves."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
''',
    "sum_of_pieces": '''
@triton.jit
def sum_of_pieces(pieces, row, cols, M, N, BLOCK_M: tl.constexpr, SPLIT_K: tl.constexpr):
    """Columns of the product from the pieces of its sum along K, added up in their order, four loads at a time."""
    rows = row + tl.arange(0, BLOCK_M)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    total = tl.zeros(inside.shape, tl.float32)
    for first in tl.range(0, SPLIT_K, 4):
        for piece in tl.static_range(min(SPLIT_K, 4)):
            at = ((first + piece) * M + rows).to(tl.int64)[:, None] * N + cols[None, :]
            total += tl.load(pieces + at, mask=inside, other=0.0)
    return total
''',
    "sum_of_some_pieces": '''
@triton.jit
def sum_of_some_pieces(pieces, row, cols, M, N, count, BLOCK_M: tl.constexpr):
    """As sum_of_pieces, of the first `count`, two loads at a time."""
    rows = row + tl.arange(0, BLOCK_M)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    total = tl.zeros(inside.shape, tl.float32)
    for first in tl.range(0, count, 2):
        for piece in tl.static_range(2):
            at = ((first + piece) * M + rows).to(tl.int64)[:, None] * N + cols[None, :]
            total += tl.load(pieces + at, mask=inside & (first + piece < count), other=0.0)
    return total
''',
    "run_length": '''
@triton.jit
def run_length(tiles, steps, RUNS: tl.constexpr, SPLIT_K: tl.constexpr):
    """Steps along K of each of RUNS equal runs through all tiles, no shorter than leaves SPLIT_K pieces of a tile."""
    return max(tl.cdiv(tiles * steps, RUNS), tl.cdiv(steps, SPLIT_K - 1))
''',
    "pairs": '''
@triton.jit
def pairs(x):
    """Columns 0::2 and 1::2."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
''',
    "interleave": '''
@triton.jit
def interleave(a, b):
    """Columns a0 b0 a1 b1 ..."""
    x = tl.join(a, b)
    return tl.reshape(x, (x.shape[0], x.shape[1] * 2))
''',
    "low_high": '''
@triton.jit
def low_high(x, G: tl.constexpr):
    """The first and the second half of every group of G columns."""
    split = tl.permute(tl.reshape(x, (x.shape[0], x.shape[1] // G, 2, G // 2)), (0, 1, 3, 2))
    low, high = tl.split(split)
    return tl.reshape(low, (x.shape[0], x.shape[1] // 2)), tl.reshape(high, (x.shape[0], x.shape[1] // 2))
''',
    "joined": '''
@triton.jit
def joined(a, b, G: tl.constexpr):
    """low_high undone."""
    both = tl.reshape(tl.join(a, b), (a.shape[0], a.shape[1] * 2 // G, G // 2, 2))
    return tl.reshape(tl.permute(both, (0, 1, 3, 2)), (a.shape[0], a.shape[1] * 2))
''',
    "group_sum": """
@triton.jit
def group_sum(x, G: tl.constexpr):
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // G, G)), 2)
""",
    "group_max": """
@triton.jit
def group_max(x, G: tl.constexpr):
    return reduce_max(tl.reshape(x, (x.shape[0], x.shape[1] // G, G)), 2)
""",
    "group_min": """
@triton.jit
def group_min(x, G: tl.constexpr):
    return reduce_min(tl.reshape(x, (x.shape[0], x.shape[1] // G, G)), 2)
""",
    "spread": '''
@triton.jit
def spread(x, G: tl.constexpr):
    """Each column G times."""
    wide = tl.broadcast_to(x[:, :, None], (x.shape[0], x.shape[1], G))
    return tl.reshape(wide, (x.shape[0], x.shape[1] * G))
''',
    "columns_at": '''
@triton.jit
def columns_at(at, G: tl.constexpr, P: tl.constexpr, n):
    """The columns at places of a tile in which each G of n columns take P places; the other P - G lie past the end."""
    inside = at % P
    return tl.where(inside < G, at // P * G, n) + inside
''',
    "maximum": """
@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "minimum": """
@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "reduce_max": """
@triton.jit
def reduce_max(x, AXIS: tl.constexpr):
    return tl.reduce(x, AXIS, maximum)
""",
    "reduce_min": """
@triton.jit
def reduce_min(x, AXIS: tl.constexpr):
    return tl.reduce(x, AXIS, minimum)
""",
    "clamp": """
@triton.jit
def clamp(x, low, high):
    return minimum(maximum(x, low), high)
""",
    "reciprocal": """
@triton.jit
def reciprocal(x):
    return 1.0 / x
""",
    "rint": '''
@triton.jit
def rint(x):
    """Rounds half to even: adding 1.5 * 2**23 leaves no fraction bits; larger numbers are whole already."""
    return tl.where(tl.abs(x) < 4194304.0, (x + 12582912.0) - 12582912.0, x)
''',
    "relu": """
@triton.jit
def relu(x):
    return maximum(x, 0.0)
""",
    "tanh": '''
@triton.jit
def tanh(x):
    """The odd series near 0, where 1 - 2 / (exp(2x) + 1) would cancel."""
    u = x * x
    near = x * (1.0 + u * (-0.33333333 + u * (0.13333334 + u * (-0.053968254 + u * 0.021869488))))
    return tl.where(u < 0.0625, near, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
''',
    "softplus": """
@triton.jit
def softplus(x):
    e = tl.exp(-tl.abs(x))
    return tl.maximum(x, 0.0) + tl.where(e < 0.01, e * (1.0 - e * (0.5 - e * 0.33333334)), tl.log(1.0 + e))
""",
    "sigmoid": """
@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    "silu": """
@triton.jit
def silu(x):
    return x * tl.sigmoid(x)
""",
    "gelu": '''
@triton.jit
def gelu(x):
    """x Phi(x) as relu(x) - u Phi(-u), u = |x|. Phi(-u) is 2 to a polynomial in u, fitted on [0, 13], where Phi ends:
    good to 2e-5 of itself or to 2e-8, whichever is more. No division; 1 + erf is good to 6e-8 at best."""
    u = tl.minimum(tl.abs(x), 13.0)
    return maximum(x, 0.0) - u * tl.exp2(TAIL_POLYNOMIAL)
''',
    "ndtr": '''
@triton.jit
def ndtr(x):
    """Phi(x). Its tail Phi(-u), u = |x|, is 2 to a polynomial, as in gelu: good to 8e-7 of itself and 2e-9. It has two
    terms more and is a half at 0, since here no factor x makes an error small there."""
    u = minimum(tl.abs(x), 13.0)
    tail = tl.exp2(NDTR_POLYNOMIAL)
    return tl.where(x < 0.0, tail, 1.0 - tail)
''',
    "gelu_tanh": """
@triton.jit
def gelu_tanh(x):
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
""",
    "whole_turns": '''
@triton.jit
def whole_turns(position, frequency):
    """Their product as a whole number: adding 1.5 * 2**23 leaves no fraction bits. To the nearest below 2**22, which
    are 25 million positions; from there on not always, but never so far that sine and cosine would notice."""
    return tl.fma(position, frequency, 12582912.0) - 12582912.0
''',
    "rotation": '''
@triton.jit
def rotation(position, f_hi, f_lo):
    """cos and sin of 2 pi position (f_hi + f_lo), frequencies in turns. The range is reduced by exact fmas, then to a
    quarter turn around 0, where two short polynomials in the square hold to 3e-7; no table, no slow path."""
    turns = tl.fma(position, f_lo, tl.fma(position, f_hi, -whole_turns(position, f_hi)))
    half = rint(turns * 2.0)
    turns = tl.fma(half, -0.5, turns)
    sign = 1.0 - 2.0 * tl.abs(half - 2.0 * rint(half * 0.5))
    u = turns * turns
    cos = COS_POLYNOMIAL
    sin = turns * (SIN_POLYNOMIAL)
    return sign * cos, sign * sin
''',
    "merge_logsumexp": '''
@triton.jit
def merge_logsumexp(top, weight, x, live):
    """Takes the columns of x into a running (maximum, sum of exp(x - maximum)) a row; an empty row keeps -inf."""
    x = tl.where(live, x, float("-inf"))
    new = tl.maximum(top, tl.max(x, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    return new, weight * tl.exp(top - base) + tl.sum(tl.exp(x - base[:, None]), 1)
''',
    "merge_weighted": '''
@triton.jit
def merge_weighted(top, weight, total, x, v, live):
    """As merge_logsumexp, with the running sum of exp(x - maximum) v as well."""
    x = tl.where(live, x, float("-inf"))
    new = tl.maximum(top, tl.max(x, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    kept, e = tl.exp(top - base), tl.exp(x - base[:, None])
    return new, weight * kept + tl.sum(e, 1), total * kept + tl.sum(tl.where(live, e * v, 0.0), 1)
''',
    "merge_moments": '''
@triton.jit
def merge_moments(count, mean, m2, x, live):
    """Takes the columns of x into a running (count, mean, sum of squared deviations) a row, by Chan's rule."""
    n = tl.sum(tl.where(live, 1.0, tl.zeros_like(x)), 1)
    own = tl.sum(tl.where(live, x, 0.0), 1) / tl.maximum(n, 1.0)
    deviation = tl.where(live, x - own[:, None], 0.0)
    total = tl.maximum(count + n, 1.0)
    delta = own - mean
    m2 = m2 + tl.sum(deviation * deviation, 1) + delta * delta * (count * n / total)
    return count + n, mean + delta * (n / total), m2
''',
}


def polynomial(coefficients: list[float], of: str = "u") -> str:
    """Horner's form."""
    text = repr(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"{c!r} + {of} * ({text})"
    return text


def _taylor(first: int, terms: int) -> list[float]:
    """Series of cos (first = 0) or sin / r (first = 1) of 2 pi r in r * r; |r| <= 1/4, so 8 terms reach 1e-9."""
    tau = 2.0 * math.pi
    return [(-1.0) ** i * tau ** (2 * i + first) / math.factorial(2 * i + first) for i in range(terms)]


FUNCTIONS["rotation"] = (
    FUNCTIONS["rotation"]
    .replace("COS_POLYNOMIAL", polynomial(_taylor(0, 8)))
    .replace("SIN_POLYNOMIAL", polynomial(_taylor(1, 7)))
)

# Coefficients of log2 Phi(-u) for u in [0, 13]: least squares, reweighted towards the smallest largest error, which
# counts less where Phi is small. Each term costs a tile's epilogue an instruction an element.
_TAIL = [-1.00002395, -1.15071245, -0.460178613, -0.0519084807, 0.00735740869, -0.000610990061, 2.039643e-05]
FUNCTIONS["gelu"] = FUNCTIONS["gelu"].replace("TAIL_POLYNOMIAL", polynomial(_TAIL))

# The same fit with the first one fixed; an error counts in full where Phi is above 1e-3.
_NDTR = [-1.0, -1.15111773, -0.459100969, -0.0528026843, 0.00747372804, -0.000427083395, -7.48620506e-05]
_NDTR += [1.75410375e-05, -1.12450889e-06]
FUNCTIONS["ndtr"] = FUNCTIONS["ndtr"].replace("NDTR_POLYNOMIAL", polynomial(_NDTR))

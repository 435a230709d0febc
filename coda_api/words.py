"""The closed vocabulary: one entry a word. Reader, reference meaning, lowering and the model's reference key on it.

What a word means in torch is keyed by the same names in `reference` and `preparation`, its Triton spelling in
`lowering`; a test asserts that no word lacks either. This module says what a word is called, where it may stand, what
it takes and gives, and how it is explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    """The kinds of unit, by the name of their decorator."""

    KERNEL = "kernel"
    FINISHER = "finisher"
    PREPARATION = "prepare"


class Group(StrEnum):
    """Headings of the vocabulary, in the order in which it is explained."""

    CONTRACTION = "The contraction"
    OPERATOR = "Operators"
    ELEMENTWISE = "Elementwise"
    COLUMNS = "Pairs, halves and groups of columns"
    POSITION = "Positions and sizes"
    PARTIALS = "Partials (leave the kernel, go to a finisher)"
    STORING = "Storing"
    FINISHING = "Finishing"
    PREPARING = "Preparing weights"


@dataclass(frozen=True, slots=True)
class Word:
    """One word.

    takes: its arguments in order: x a value, d a dimension in quotes, g a group (a number or a dimension in quotes),
    t a dtype in quotes; a trailing "?" marks an optional one. rule: the checker's typing rule. gives: the kind of the
    result: "float", "same" (the arguments' common kind), "int" or "bool". results: how many values it gives.
    symbol: how an operator is written. cost: instructions of an fp32 element in an epilogue on sm_90, and how many of
    them go to the special-function unit, from builds (benchmarks/epilogue.py --words); None where they are one or two.
    """

    name: str
    group: Group
    places: frozenset[Place]
    rule: str
    takes: tuple[str, ...]
    signature: str
    doc: str
    example: str
    gives: str = "float"
    results: int = 1
    symbol: str = ""
    cost: tuple[int, int] | None = None

    @property
    def explained(self) -> str:
        """What it means, and what it costs where that is more than an instruction or two."""
        if self.cost is None:
            return self.doc
        instructions, special = self.cost
        said = f"{instructions} instruction{'s' * (instructions > 1)}" + (f", {special} special" if special else "")
        return f"{self.doc} {said[0].upper()}{said[1:]}."

    @property
    def arity(self) -> tuple[int, int]:
        """The least and the most arguments that it takes."""
        return sum(not t.endswith("?") for t in self.takes), len(self.takes)


KERNEL = frozenset({Place.KERNEL})
FINISHER = frozenset({Place.FINISHER})
PREPARATION = frozenset({Place.PREPARATION})
BOTH = KERNEL | FINISHER
ANY = BOTH | PREPARATION


def _operator(symbol: str, name: str, doc: str, places: frozenset[Place] = BOTH, gives: str = "same") -> Word:
    unary = name in ("neg", "not")
    rule = "logical" if name in ("and", "or", "not") else "elementwise"
    written = f"{symbol}x" if unary else f"x {symbol} y"
    takes = ("x",) if unary else ("x", "x")
    return Word(name, Group.OPERATOR, places, rule, takes, written, doc, f"a = {written}", gives, symbol=symbol)


def _elementwise(
    name: str, doc: str, arguments: str = "x", gives: str = "float", cost: tuple[int, int] | None = None
) -> Word:
    names = arguments.split()
    written = f"{name}({', '.join(names)})"
    takes = ("x",) * len(names)
    rule = "where" if name == "where" else "elementwise"
    return Word(name, Group.ELEMENTWISE, BOTH, rule, takes, written, doc, f"a = {written}", gives, cost=cost)


def _word(
    group: Group,
    places: frozenset[Place],
    rule: str,
    takes: str,
    signature: str,
    doc: str,
    example: str,
    **more: object,
) -> Word:
    name = signature.split("(")[0]
    return Word(name, group, places, rule, tuple(takes.split()), signature, doc, example, **more)  # type: ignore[arg-type]


_COLUMNS, _PARTIALS, _FINISHING, _PREPARING = Group.COLUMNS, Group.PARTIALS, Group.FINISHING, Group.PREPARING

DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
_DTYPES_SAID = f"The dtypes are {', '.join(DTYPES)}."

WORDS: tuple[Word, ...] = (
    _word(
        Group.CONTRACTION, KERNEL, "gemm", "x x", "gemm(a, b): [R,K],[K,C] in any order -> [R,C]",
        "The one contraction of a kernel: two matrix parameters that share exactly one dim; fp32 accumulation.",
        "z = gemm(x, w)",
    ),
    _operator("+", "add", "Sum; vectors broadcast by the names of their dims.", ANY),
    _operator("-", "sub", "Difference.", ANY),
    _operator("*", "mul", "Product.", ANY),
    _operator("/", "div", "Quotient, always a float.", ANY, "float"),
    Word(
        "pow", Group.OPERATOR, ANY, "elementwise", ("x",), "x ** 2, x ** 3", "Square and cube.", "a = x ** 2", "same",
        symbol="**",
    ),
    _operator("-", "neg", "Negation.", ANY),
    _operator("<", "lt", "Less; one comparison at a time.", gives="bool"),
    _operator("<=", "le", "Less or equal.", gives="bool"),
    _operator(">", "gt", "Greater.", gives="bool"),
    _operator(">=", "ge", "Greater or equal.", gives="bool"),
    _operator("==", "eq", "Equal; integers are compared exactly.", gives="bool"),
    _operator("!=", "ne", "Not equal.", gives="bool"),
    _operator("&", "and", "Both, of conditions.", gives="bool"),
    _operator("|", "or", "Either, of conditions.", gives="bool"),
    _operator("~", "not", "Negation of a condition.", gives="bool"),
    _elementwise("maximum", "The larger.", "x y", "same"),
    _elementwise("minimum", "The smaller.", "x y", "same"),
    _elementwise("where", "x where the condition holds, else y.", "condition x y", "same"),
    _elementwise("clamp", "x held between low and high.", "x least most", "same"),
    _elementwise("fma", "x * y + z, rounded once.", "x y z"),
    _elementwise("abs", "Magnitude.", gives="same"),
    _elementwise("exp", "e to the x.", cost=(5, 1)),
    _elementwise("exp2", "2 to the x.", cost=(1, 1)),
    _elementwise("log", "Natural logarithm.", cost=(27, 0)),
    _elementwise("log2", "Logarithm to base 2.", cost=(28, 0)),
    _elementwise("sqrt", "Square root.", cost=(1, 1)),
    _elementwise("rsqrt", "1 / sqrt(x).", cost=(1, 1)),
    _elementwise("reciprocal", "1 / x.", cost=(9, 1)),
    _elementwise("sigmoid", "1 / (1 + exp(-x)).", cost=(4, 2)),
    _elementwise("tanh", "Hyperbolic tangent.", cost=(13, 2)),
    _elementwise("erf", "Error function.", cost=(18, 1)),
    _elementwise("softplus", "log(1 + exp(x)).", cost=(37, 1)),
    _elementwise("silu", "x * sigmoid(x).", cost=(5, 2)),
    _elementwise("gelu", "x * Phi(x), the erf form.", cost=(10, 1)),
    _elementwise("ndtr", "Phi(x), the standard normal distribution: gelu(x) / x.", cost=(12, 1)),
    _elementwise("gelu_tanh", "The tanh form of gelu.", cost=(9, 2)),
    _elementwise("relu", "maximum(x, 0)."),
    _elementwise("sin", "Sine of radians, by a path that spills; for rotary positions use rotation.", cost=(81, 0)),
    _elementwise("cos", "Cosine of radians, by a path that spills; for rotary positions use rotation.", cost=(83, 0)),
    _elementwise("floor", "The whole number at or below x."),
    _elementwise("round", "The nearest whole number, halves to even.", cost=(4, 0)),
    _word(
        _COLUMNS, KERNEL, "halve", "x", "even(x): [R,C] -> [R,C/2]", "Columns 0, 2, 4, ...", "g, u = even(z), odd(z)",
        gives="same"
    ),
    _word(
        _COLUMNS, KERNEL, "halve", "x", "odd(x): [R,C] -> [R,C/2]", "Columns 1, 3, 5, ...", "g, u = even(z), odd(z)",
        gives="same"
    ),
    _word(
        _COLUMNS, KERNEL, "double", "x x", "interleave(a, b): [R,C],[R,C] -> [R,2*C]",
        "a0 b0 a1 b1 ...: even and odd undone.",
        'y = interleave(a * c - b * s, b * c + a * s)', gives="same",
    ),
    _word(
        _COLUMNS, KERNEL, "halve", "x g", "low(x, g): [R,C] -> [R,C/2]",
        "The first half of every aligned group of g columns.",
        'a, b = low(z, "H"), high(z, "H")', gives="same",
    ),
    _word(
        _COLUMNS, KERNEL, "halve", "x g", "high(x, g): [R,C] -> [R,C/2]",
        "The second half of every aligned group of g columns.",
        'a, b = low(z, 128), high(z, 128)', gives="same",
    ),
    _word(
        _COLUMNS, KERNEL, "double", "x x g", "join(a, b, g): [R,C],[R,C] -> [R,2*C]",
        "low and high undone; groups of g result columns.",
        'y = join(a * c - b * s, b * c + a * s, "H")', gives="same",
    ),
    _word(
        _COLUMNS, KERNEL, "group", "x g", "group_sum(x, g): [R,C] -> [R,C/g]",
        "The sum of every aligned group of g columns; may be used at once.",
        'r = rsqrt(group_sum(z * z, "H") / size("H") + eps)',
    ),
    _word(
        _COLUMNS, KERNEL, "group", "x g", "group_max(x, g): [R,C] -> [R,C/g]", "The largest of every group.",
        "m = group_max(abs(z), 128)"
    ),
    _word(
        _COLUMNS, KERNEL, "group", "x g", "group_min(x, g): [R,C] -> [R,C/g]", "The smallest of every group.",
        "m = group_min(z, 128)"
    ),
    _word(
        _COLUMNS, KERNEL, "spread", "x g", "spread(v, g): [R,C/g] -> [R,C]",
        "Every value repeated over its group of g columns.",
        'n = z * spread(r, "H")', gives="same",
    ),
    _word(
        Group.POSITION, KERNEL, "rotation", "x x x", "rotation(pos, f_hi, f_lo): Index[R],[C],[C] -> 2 x [R,C]",
        "cos and sin of 2*pi*pos*(f_hi + f_lo): frequencies in turns, as a sum of two; 0 does not rotate.",
        'c, s = rotation(pos, cycle(f_hi, "N/2"), cycle(f_lo, "N/2"))', results=2, cost=(9, 2),
    ),
    _word(
        Group.POSITION, BOTH, "index", "d", 'index("N") -> integers [N]',
        "The position along a dim, counted over the whole tensor.",
        'onehot = where(index("N") == target, 1.0, 0.0)', gives="int",
    ),
    _word(
        Group.POSITION, ANY, "size", "d", 'size("N") -> number', "The length of a dim.",
        'mean = total_sum(s) / size("N")', gives="int"
    ),
    _word(
        Group.POSITION, KERNEL, "cycle", "x d", 'cycle(v, "N"): [H] -> [N]',
        "v[n mod H]: a per-head vector along the columns.",
        'g = cycle(gamma, "N")', gives="same",
    ),
    _word(
        _PARTIALS, KERNEL, "tile", "x d", 'tile_sum(x, "N"): [R,C] -> Partial[kept, "N"]',
        "The sum along a dim inside this tile.",
        'ssq = tile_sum(h * h, "N")',
    ),
    _word(
        _PARTIALS, KERNEL, "tile", "x d", 'tile_max(x, "N"): [R,C] -> Partial[kept, "N"]',
        "The largest inside this tile.",
        'amax = tile_max(abs(z), "N")',
    ),
    _word(
        _PARTIALS, KERNEL, "tile", "x d", 'tile_min(x, "N"): [R,C] -> Partial[kept, "N"]',
        "The smallest inside this tile.",
        'least = tile_min(z, "N")',
    ),
    _word(
        _PARTIALS, KERNEL, "tile", "x d", 'tile_moments(x, "N"): [R,C] -> 2 x Partial[kept, "N"]',
        "The mean inside this tile and the sum of squared deviations from it; along columns only.",
        'mean, m2 = tile_moments(h, "N")', results=2,
    ),
    _word(
        _PARTIALS, KERNEL, "tile", "x d x?", 'tile_logsumexp(z, "N"[, v]): [R,C] -> Partial[kept, "N"] (with v: two)',
        "log(sum(exp(z))) inside this tile; with v also the softmax-weighted mean of v; along columns only.",
        'lse = tile_logsumexp(z, "N")',
    ),
    _word(
        _PARTIALS, KERNEL, "pick", "x x", "pick(z, t): [R,C], Index[R] -> [R]",
        "z[m, t[m]], 0 where t[m] is out of range; a vector for later units, unusable in its own kernel.",
        "logit = pick(z, target)",
    ),
    _word(
        Group.STORING, BOTH, "cast", "x t", 'cast(x, "dtype")',
        "Rounds where it stands; outermost in a returned value it sets the stored dtype. fp8 saturates. "
        + _DTYPES_SAID,
        'q = cast(z * inv, "float8_e4m3")',
    ),
    _word(
        Group.STORING, KERNEL, "accumulate", "x x", "accumulate(out, x)",
        "out + x in fp32, stored over out: an input that the task marks in-place and that is used nowhere else.",
        "dw = accumulate(dw_in, gemm(x, dy))",
    ),
    _word(
        _FINISHING, FINISHER, "total", "x", "total_sum(p): Partial[R, C] -> [R]", "The sum of a partial's tiles.",
        "s = total_sum(ssq)",
    ),
    _word(
        _FINISHING, FINISHER, "total", "x", "total_max(p): Partial[R, C] -> [R]", "The largest.", "a = total_max(amax)",
    ),
    _word(
        _FINISHING, FINISHER, "total", "x", "total_min(p): Partial[R, C] -> [R]", "The smallest.",
        "a = total_min(least)",
    ),
    _word(
        _FINISHING, FINISHER, "total", "x", "total_logsumexp(p): Partial[R, C] -> [R]", "log(sum(exp(p))).",
        "l = total_logsumexp(lse)",
    ),
    _word(
        _FINISHING, FINISHER, "total_moments", "x x", "total_moments(mean, m2): 2 x Partial[R, C] -> 2 x [R]",
        "Mean and (biased) variance over the whole dim, merged by Chan's rule.", "mu, var = total_moments(mean, m2)",
        results=2,
    ),
    _word(
        _FINISHING, FINISHER, "sum", "x", "sum(v): [R] -> Scalar",
        "The sum of a vector: a device scalar for outputs and later units.",
        "mean = sum(loss) / sum(kept)",
    ),
    _word(
        _FINISHING, FINISHER, "fold", "x d", 'fold(v, "H"): [R] -> [H]',
        "The sum of v over its positions n with the same n mod H.",
        'dg = fold(total_sum(p), "H")',
    ),
    _word(
        _PREPARING, PREPARATION, "arrange", "x x d", 'interleave(a, b, "F"): -> 2*F in the place of F',
        "Rows (or columns) a0 b0 a1 b1 ... along the named dim.", 'w = interleave(w_gate, w_up, "F")',
    ),
    _word(
        _PREPARING, PREPARATION, "arrange", "x x d", 'concat(a, b, "F"): -> 2*F in the place of F',
        "First all of a, then all of b, along the named dim.", 'w = concat(w_k, w_v, "F")',
    ),
    _word(
        _PREPARING, PREPARATION, "arrange", "x x g d", 'join(a, b, g, "F"): -> 2*F in the place of F',
        "Blocks of g/2 of a and of b by turns, along the named dim.", 'w = join(w_a, w_b, 128, "F")',
    ),
    _word(
        _PREPARING, PREPARATION, "transpose", "x", "transpose(w): [A,B] -> [B,A]", "Rows and columns swapped.",
        "w = transpose(w)",
    ),
    _word(
        _PREPARING, PREPARATION, "matvec", "x x", "matvec(w, v): [A,B],[B] -> [A]",
        "The product over the dim that v shares with w, in float64.", "c = matvec(w, beta)",
    ),
    _word(
        _PREPARING, PREPARATION, "cast", "x t", 'cast(v, "dtype")',
        "Rounds inside the float64 arithmetic of a preparation. " + _DTYPES_SAID,
        'hi = cast(turns, "float32")',
    ),
)  # fmt: skip

LOOKUP: dict[tuple[Place, str], Word] = {(place, word.name): word for word in WORDS for place in word.places}
NAMES: frozenset[str] = frozenset(word.name for word in WORDS if not word.symbol)
CONSTANTS: tuple[str, ...] = ("pi", "inf")
DECORATORS: tuple[str, ...] = ("kernel", "finisher", "prepare", "program")
TYPES: tuple[str, ...] = ("Tensor", "Partial", "Index", "Scalar", "Size")
# For each word what authors write for it from habit.
_HABITS = {
    "maximum": "max",
    "minimum": "min",
    "silu": "swish",
    "sigmoid": "logistic",
    "rsqrt": "invsqrt",
    "abs": "absolute fabs",
    "clamp": "clip",
    "where": "select",
    "x ** 2": "pow power",
    "gemm": "matmul dot mm linear",
    "tile_sum": "reduce_sum row_sum",
    "tile_logsumexp": "softmax logsumexp",
    "total_sum": "mean",
    "index": "arange",
    "size": "len",
    "rotation": "rope",
    "spread": "repeat",
    "pick": "gather",
    "cast": "float to",
    "concat": "concatenate cat",
    "interleave": "stack",
    "transpose": "permute",
}
HABITS: dict[str, str] = {habit: word for word, habits in _HABITS.items() for habit in habits.split()}


def words_in(place: Place) -> tuple[Word, ...]:
    """The words that may stand in a kind of unit, in the table's order."""
    return tuple(word for word in WORDS if place in word.places)

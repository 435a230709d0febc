"""Triton text for the expressions of a unit: each value becomes one or more texts, named where they are used twice.

Not here: loads, stores, reductions and geometry, which the kernel and finisher emitters pass in as `leaf`.
"""

from __future__ import annotations

import ast
import keyword
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from coda_synth.coda_api.module_text import MODULE_NAMES
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.program import Form, Kind, Value, walk
from coda_synth.coda_api.spelling import ATOM, CALLS, COMPARE, FLOAT_WORDS, INFIX, LOGIC, PRODUCT, SUM, UNARY

# A text and how strongly it binds. A value in halves mode has one per column segment.
Text = tuple[str, int]
Texts = tuple[Text, ...]

# What kernels' texts call their own, beside what stands in the module around them.
_RESERVED = MODULE_NAMES | frozenset(
    """
    tile tiles_m tiles_n tile_m tile_n row col rows acc k at place turn first start tiles live left right at_m at_n at_k
    owner step steps slot out_slot stage zero accumulator layout half_layout double_layout full empty loaded freed
    slice_step turn_step i BLOCK_M BLOCK_N BLOCK_K GROUP_M SLICE BLOCK TURNS TILES STAGES WARPS WHICH INDEX
    work piece along begin end last length count DEPTH RUNS RUNS_N rows_at cols_at SPLIT_K
    WHOLE_M WHOLE_N WAITS_FIRST RELEASES WAITS_LAST
    torch float min max range dict repr print str
    """.split()
)


class LoweringError(Exception):
    """A program that is right but that this lowering cannot express; the message says what would work."""


class Names:
    """Hands out identifiers, each once: the wanted name, or that name with a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken) | _RESERVED

    def free(self, name: str) -> bool:
        return name not in self._taken

    def new(self, wanted: str) -> str:
        wanted = wanted if wanted.isascii() and wanted.isidentifier() and not keyword.iskeyword(wanted) else "v"
        if wanted.startswith(("zero_", "acc_to_")) or wanted.endswith(
            ("_ring", "_stages")
        ):  # these the emitters make up
            wanted = f"v_{wanted}_v"
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name


def local_names(source: str, unit: str) -> dict[tuple[int, int], str]:
    """What the author called the expression at (line, column): names of single assignments inside one unit."""
    found = {}
    for node in parse_statements(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == unit:
            for statement in node.body:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    found[statement.value.lineno, statement.value.col_offset + 1] = statement.targets[0].id
    return found


def author_names(source: str, unit: str, roots: Mapping[str, Value]) -> dict[int, str]:
    """id(value) -> the author's name for it, or the name under which it is returned."""
    places = local_names(source, unit)
    at: dict[tuple[int, int], Value] = {}
    for value in walk(roots):  # the outermost expression that starts at a place is the last one met
        at[value.line, value.column] = value
    named = {id(value): output for output, value in roots.items()}
    named |= {id(at[place]): name for place, name in places.items() if place in at}
    return named


def uses(roots: Iterable[Value]) -> Counter[int]:
    """How often each value's text would be written."""
    count: Counter[int] = Counter()
    roots = list(roots)
    for value in walk(roots):
        for arg in value.args:
            count[id(arg)] += int(value.attrs["exponent"]) if value.word == "pow" else 1  # type: ignore[call-overload]
    for root in roots:
        count[id(root)] += 1
    return count


def number(value: object) -> str:
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return f'float("{value}")'
    return repr(value)


class Expressions:
    """Writes values as text, giving each that is used more than once (or is long) a name in `lines`.

    leaf(value) spells what has no elementwise meaning (parameters, reductions, rearrangements), or returns None.
    """

    def __init__(
        self,
        names: Names,
        wanted: Mapping[int, str],
        count: Counter[int],
        leaf: Callable[[Value], Texts | None],
        adapt: Callable[[Value, Value, Text], Text] = lambda value, arg, text: text,
    ) -> None:
        self.names, self.wanted, self.count, self.leaf, self.adapt = names, wanted, count, leaf, adapt
        self.lines: list[str] = []
        self._done: dict[int, Texts] = {}

    def define(self, value: Value, texts: Texts) -> None:
        """Makes `texts` the text of a value, for what was computed elsewhere."""
        self._done[id(value)] = texts

    def texts(self, value: Value) -> Texts:
        """The texts of a value, one a segment."""
        if id(value) not in self._done:
            made = self.leaf(value) or self._elementwise(value)
            self._done[id(value)] = self._name(value, made)
        return self._done[id(value)]

    def atom(self, value: Value, segment: int = 0) -> str:
        """One segment's text, in parentheses unless it is an atom."""
        texts = self.texts(value)
        text, strength = texts[segment if len(texts) > 1 else 0]
        return text if strength == ATOM else f"({text})"

    def plain(self, value: Value, segment: int = 0) -> str:
        texts = self.texts(value)
        return texts[segment if len(texts) > 1 else 0][0]

    def assign(self, wanted: str, text: str) -> str:
        name = self.names.new(wanted)
        self.lines.append(f"{name} = {text}")
        return name

    def _name(self, value: Value, texts: Texts) -> Texts:
        simple = all(strength == ATOM and t.replace("_", "").isalnum() for t, strength in texts)
        if value.word == "number" or simple or value.form is Form.SEVERAL:
            return texts
        wanted = self.wanted.get(id(value), "")
        long = max(len(t) for t, _ in texts) > 70
        if self.count[id(value)] < 2 and not wanted and not long:
            return texts
        suffixes = ("",) if len(texts) == 1 else ("_low", "_high")
        return tuple((self.assign((wanted or "v") + s, t), ATOM) for s, (t, _) in zip(suffixes, texts, strict=True))

    def _elementwise(self, value: Value) -> Texts:
        args = [tuple(self.adapt(value, arg, text) for text in self.texts(arg)) for arg in value.args]
        segments = max((len(a) for a in args), default=1)
        return tuple(self._spell(value, [a[i] if len(a) > 1 else a[0] for a in args]) for i in range(segments))

    def _spell(self, value: Value, args: list[Text]) -> Text:
        word = value.word
        if word == "number":
            text = number(value.attrs["value"])
            return text, UNARY if text.startswith("-") else ATOM
        if all(arg.word == "number" for arg in value.args) and word in FOLDED:
            result = _folded(word, [float(arg.attrs["value"]) for arg in value.args])  # type: ignore[arg-type]
            return number(result), ATOM if result >= 0 else UNARY
        if word == "mul" and value.kind is Kind.INT:  # products of positions and lengths outgrow 32 bits
            wide = 0 if value.args[0].word != "number" else 1
            args[wide] = (f"tl.cast({args[wide][0]}, tl.int64)", ATOM)
        if word in INFIX:
            return self._infix(word, args)
        if word == "neg":
            return f"-{_at_least(args[0], UNARY)}", UNARY
        if word == "not":
            return f"{_at_least(args[0], SUM)} == 0", COMPARE  # ~ of a Python bool would be -2, which is true
        if word == "pow":
            return " * ".join([_at_least(args[0], ATOM)] * int(value.attrs["exponent"])), PRODUCT  # type: ignore[call-overload]
        if word in CALLS:
            converted = [
                self._as_float(a, t) if word in FLOAT_WORDS else t[0] for a, t in zip(value.args, args, strict=True)
            ]
            return f"{CALLS[word]}({', '.join(converted)})", ATOM
        raise LoweringError(f"{value.line}:{value.column}: {word} has no spelling in a kernel")

    def _infix(self, word: str, args: list[Text]) -> Text:
        symbol, strength = INFIX[word]
        if strength == LOGIC:  # in Python & and | bind tighter than comparisons, so nothing weaker stands bare
            return f"{_at_least(args[0], UNARY)} {symbol} {_at_least(args[1], UNARY)}", strength
        nested = strength + 1 if strength == COMPARE else strength  # comparisons never chain
        return f"{_at_least(args[0], nested)} {symbol} {_at_least(args[1], strength + 1)}", strength

    @staticmethod
    def _as_float(value: Value, text: Text) -> str:
        if value.kind is Kind.FLOAT or value.word == "number":
            return text[0]
        return f"{_at_least(text, PRODUCT)} * 1.0"


def _at_least(text: Text, strength: int) -> str:
    return text[0] if text[1] >= strength else f"({text[0]})"


def _folded(word: str, args: list[float]) -> float:
    """The value of a word on numbers; NaN where mathematics has none."""
    try:
        return FOLDED[word](*args)
    except (OverflowError, ValueError, ZeroDivisionError):
        return args[0] if word in ("floor", "round") else math.nan


FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
    "neg": lambda a: -a,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "rsqrt": lambda a: a**-0.5 if a > 0 else math.inf if a == 0 else math.nan,
    "exp": lambda a: math.exp(min(a, 700.0)),
    "log": lambda a: math.log(a) if a > 0 else -math.inf if a == 0 else math.nan,
    "exp2": lambda a: 2.0 ** min(a, 1023.0),
    "log2": lambda a: math.log2(a) if a > 0 else -math.inf if a == 0 else math.nan,
    "tanh": math.tanh,
    "erf": math.erf,
    "ndtr": lambda a: 0.5 * math.erfc(-a / math.sqrt(2.0)),
    "sin": math.sin,
    "cos": math.cos,
    "sigmoid": lambda a: 1.0 / (1.0 + math.exp(min(-a, 700.0))),
    "reciprocal": lambda a: 1.0 / a if a else math.copysign(math.inf, a),
    "abs": abs,
    "floor": lambda a: float(math.floor(a)),
    "round": lambda a: float(round(a)),
    "maximum": max,
    "minimum": min,
}

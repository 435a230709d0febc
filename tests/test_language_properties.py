# ruff: noqa: E501
"""Properties of the language over drawn programs: meaning does not depend on tilings; no text crashes the reader."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from coda_synth.coda_api.errors import ProgramError
from coda_synth.coda_api.program import Program, Signature
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.reference import evaluate
from coda_synth.coda_api.words import NAMES
from coda_synth.tasks.catalog import task_names, worked_candidate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.language import randn, signature_of, worst

# Drawn expressions, as text. A wide tile has the product's columns "2*N", a narrow one "N"; groups are of H columns.


VECTORS = st.sampled_from(["r", "c", "s", "r * c", "0.5", 'cycle(h, "2*N")'])
MAPS = st.sampled_from(["tanh", "sigmoid", "sin", "gelu", "abs", "relu", "silu", "erf", "ndtr", "-"])
SUMS = st.sampled_from("+-*")
GROUPED = st.sampled_from(["group_sum", "group_max", "group_min"])
COMPARED = st.sampled_from(["<", "==", ">="])


@st.composite
def wide(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(["z", "t"]))
    a, b = draw(wide(depth - 1)), draw(st.one_of(wide(depth - 1), wide(0)))
    match draw(st.integers(0, 8)):
        case 0 | 1:
            return f"({a} {draw(SUMS)} {b})"
        case 2:
            return f"({a} * {draw(VECTORS)})"
        case 3:
            return f"{draw(MAPS)}({a})"
        case 4:
            return f"interleave({draw(narrow(depth - 1))}, {draw(narrow(depth - 1))})"
        case 5:
            return f'join({draw(narrow(depth - 1))}, {draw(narrow(depth - 1))}, "H")'
        case 6:
            return f'spread({draw(GROUPED)}({a}, "H"), "H")'
        case 7:
            return f"where({a} < r, {b}, c)"
        case _:
            return f'where(index("2*N") {draw(COMPARED)} i, {a}, {b})'


@st.composite
def narrow(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(["even(z)", "odd(t)", 'low(z, "H")', 'high(t, "H")']))
    a, b = draw(narrow(depth - 1)), draw(narrow(depth - 1))
    match draw(st.integers(0, 3)):
        case 0:
            return f"({a} {draw(SUMS)} {b})"
        case 1:
            return f"maximum({a}, {b})"
        case 2:
            return f"{draw(st.sampled_from(['even', 'odd']))}({draw(wide(depth - 1))})"
        case _:
            return f'{draw(st.sampled_from(["low", "high"]))}({draw(wide(depth - 1))}, "H")'


PROGRAM = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["2*N", "K"], t: Tensor["M", "2*N"], r: Tensor["M"], c: Tensor["2*N"], h: Tensor["H"],
      i: Index["M"], s: Scalar):
    z = gemm(x, w)
    a = {a}
    b = {b}
    d = {d}
    mean, m2 = tile_moments(a, "2*N")
    lse, weighted = tile_logsumexp(b, "2*N", a)
    return {{"y": a, "half": d, "sum": tile_sum(a, "2*N"), "max": tile_max(a, "2*N"), "min": tile_min(b, "2*N"),
            "narrow": tile_sum(d, "N"), "down": tile_sum(a, "M"), "peak": tile_max(d, "M"), "mean": mean, "m2": m2,
            "lse": lse, "weighted": weighted, "chosen": pick(a, i)}}

@finisher
def rows(total: Partial["M", "W"], top: Partial["M", "W"], least: Partial["M", "W"], mean: Partial["M", "W"],
         m2: Partial["M", "W"], lse: Partial["M", "W"], weighted: Partial["M", "W"], narrow: Partial["M", "N"], chosen: Tensor["M"]):
    mu, var = total_moments(mean, m2)
    l = total_logsumexp(lse)
    v = total_sum(2 * total - total / 4)
    return {{"sum": v, "top": total_max(top) - total_min(least), "mu": mu, "var": var, "lse": l,
            "weighted": total_sum(exp(lse - l) * weighted), "narrow": total_sum(narrow) + chosen, "all": sum(v) / size("W")}}

@finisher
def columns(down: Partial["N", "M"]):
    return {{"v": total_sum(down)}}

@finisher
def peaks(peak: Partial["N", "M"]):
    return {{"v": total_max(peak)}}

@program
def p(x: Tensor["T", "D"], w: Tensor["2*F", "D"], t: Tensor["T", "2*F"], r: Tensor["T"], c: Tensor["2*F"], h: Tensor["H"],
      i: Index["T"], s: Scalar):
    a = f(x, w, t, r, c, h, i, s)
    b = rows(a.sum, a.max, a.min, a.mean, a.m2, a.lse, a.weighted, a.narrow, a.chosen)
    q = columns(a.down)
    k = peaks(a.peak)
    return {{"y": a.y, "half": a.half, "sum": b.sum, "top": b.top, "mu": b.mu, "var": b.var, "lse": b.lse,
            "weighted": b.weighted, "narrow": b.narrow, "all": b.all, "down": q.v, "peak": k.v}}
"""


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Sizes that coincide and sizes that do not; 2*F holds whole groups of H."""
    group = draw(st.sampled_from([2, 4, 6]))
    columns = draw(st.integers(1, 5)) * (group // 2)
    rows = draw(st.one_of(st.integers(1, 9), st.sampled_from([columns, 2 * columns])))
    inner = draw(st.one_of(st.integers(1, 6), st.sampled_from([rows, columns, 2 * columns])))
    return {"T": rows, "D": inner, "F": columns, "H": group}


tilings = st.tuples(st.integers(1, 12), st.integers(1, 12))


def drawn_inputs(size: dict[str, int]) -> dict[str, Tensor | float]:
    rows, inner, columns, group = size["T"], size["D"], 2 * size["F"], size["H"]
    return {
        "x": randn(rows, inner),
        "w": randn(columns, inner, seed=1),
        "t": randn(rows, columns, seed=2),
        "r": randn(rows, seed=3),
        "c": randn(columns, seed=4),
        "h": randn(group, seed=5),
        "i": torch.arange(rows) * 2 - 1,
        "s": 0.75,
    }


def grouped(x: Tensor, group: int) -> Tensor:
    return x.reshape(x.shape[0], -1, group)


def by_hand(expression: str, inputs: dict[str, Tensor | float], size: dict[str, int]) -> Tensor:
    """The value of a drawn expression, straight from Python and torch."""
    group = size["H"]
    names = {
        **inputs,
        "z": inputs["x"] @ inputs["w"].T,  # type: ignore[union-attr, operator]
        "r": inputs["r"][:, None],  # type: ignore[index]
        "i": inputs["i"][:, None],  # type: ignore[index]
        **{name: getattr(torch, name) for name in ("tanh", "sigmoid", "sin", "abs", "relu", "erf", "maximum")},
        "gelu": F.gelu,
        "silu": F.silu,
        "ndtr": torch.special.ndtr,
        "even": lambda x: x[:, ::2],
        "odd": lambda x: x[:, 1::2],
        "low": lambda x, g: grouped(x, group)[:, :, : group // 2].flatten(1),
        "high": lambda x, g: grouped(x, group)[:, :, group // 2 :].flatten(1),
        "interleave": lambda a, b: torch.stack((a, b), 2).flatten(1),
        "join": lambda a, b, g: torch.cat((grouped(a, group // 2), grouped(b, group // 2)), 2).flatten(1),
        "group_sum": lambda x, g: grouped(x, group).sum(2),
        "group_max": lambda x, g: grouped(x, group).amax(2),
        "group_min": lambda x, g: grouped(x, group).amin(2),
        "spread": lambda x, g: x.repeat_interleave(group, 1),
        "cycle": lambda v, d: v.repeat(2 * size["F"] // group),
        "index": lambda d: torch.arange(2 * size["F"]),
        "where": torch.where,
    }
    shape = (size["T"], 2 * size["F"])
    value: Tensor = eval(expression, {"__builtins__": {}}, names)
    return value.expand(shape) if value.shape[1] == shape[1] else value


def finished_by_hand(a: Tensor, b: Tensor, d: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """What the program returns, with every reduction over whole rows and columns."""
    rows, columns = chosen.shape[0], a.shape[1]
    inside = (chosen >= 0) & (chosen < columns)
    picked = torch.where(inside, a[torch.arange(rows), chosen.clamp(0, columns - 1)], 0.0)
    return {
        "y": a,
        "half": d,
        "sum": 1.75 * a.sum(1),
        "top": a.amax(1) - b.amin(1),
        "mu": a.mean(1),
        "var": a.var(1, unbiased=False),
        "lse": b.logsumexp(1),
        "weighted": (b.softmax(1) * a).sum(1),
        "narrow": d.sum(1) + picked,
        "all": 1.75 * a.sum() / columns,
        "down": a.sum(0),
        "peak": d.amax(0),
    }


def close(actual: Tensor, expected: Tensor, scale: float) -> bool:
    return bool(((actual - expected).abs() <= 1e-11 * max(scale, 1.0)).all())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(a=wide(3), b=wide(2), d=narrow(2), size=sizes(), block=tilings)
def test_a_drawn_program_means_the_same_in_every_tiling(
    a: str, b: str, d: str, size: dict[str, int], block: tuple[int, int]
) -> None:
    program = read(PROGRAM.format(a=a, b=b, d=d))
    inputs = drawn_inputs(size)
    actual = evaluate(program, signature_of(program), inputs, block=block)
    values = [by_hand(text, inputs, size) for text in (a, b, d)]
    scale = max(float(v.abs().max()) for v in values) ** 2 * max(size.values()) ** 2
    for name, expected in finished_by_hand(*values, inputs["i"]).items():  # type: ignore[arg-type]
        assert actual[name].shape == expected.shape, name
        assert close(actual[name], expected, scale), name


@settings(max_examples=30, deadline=None)
@given(size=sizes(), block=tilings, other=tilings, seed=st.integers(0, 1000))
def test_two_units_in_a_row_do_not_depend_on_the_tiling(
    size: dict[str, int], block: tuple[int, int], other: tuple[int, int], seed: int
) -> None:
    program = read(worked_candidate("residual_rmsnorm_swiglu"))
    t, d, f, k = size["T"], size["D"], size["F"], size["H"]
    shapes = {"y": (t, k), "w_o": (d, k), "x": (t, d), "gamma": (d,), "w_gate": (f, d), "w_up": (f, d)}
    inputs: dict[str, Tensor | float] = {name: randn(*shape, seed=seed) for name, shape in shapes.items()}
    inputs["eps"] = 1e-5
    first, second = (evaluate(program, signature_of(program), inputs, block=b) for b in (block, other))
    for name in first:
        assert worst(first[name], second[name]) < 1e-11


# Texts that nobody would write, and that a model might.

CANDIDATES = [worked_candidate(name) for name in task_names()]
TOKENS = [
    *sorted(NAMES),
    *"()[]{}:,.=@+-*/~&|<>\n\t\"'0",
    *[
        "**",
        "==",
        "    ",
        "return",
        "def",
        "lambda",
        "for",
        "if",
        "import",
        "class",
        "async",
        "await",
        "yield",
        "None",
        "inf",
    ],
    *[
        '"M"',
        '"N"',
        '"2*N"',
        '"N/0"',
        '"0"',
        "1e400",
        "-1",
        "2",
        "x",
        "w",
        "z",
        "Tensor",
        "Partial",
        "Scalar",
        "Index",
        "Size",
    ],
    *[
        "@kernel",
        "@finisher",
        "@prepare",
        "@program",
        "\\",
        "é",
        "\x00",
        "#",
        '"""',
        "f'",
        "*x",
        "**x",
        ":=",
        "a.b",
        "x[0]",
    ],
]


def mutated(text: str, seed: int, edits: int) -> str:
    draw = random.Random(seed)
    for _ in range(edits):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 0, 1, 3, 8, 30]))
        source = draw.randrange(len(text) + 1)
        insert = draw.choice([draw.choice(TOKENS), "", text[source : source + draw.choice([1, 5, 40])]])
        text = text[:start] + insert + text[end:]
    return text


def swapped(text: str, seed: int, edits: int) -> str:
    """Stays close to a program: whole words take each other's places."""
    draw = random.Random(seed)
    parts = text.split(" ")
    for _ in range(edits):
        parts[draw.randrange(len(parts))] = draw.choice([draw.choice(parts), draw.choice(TOKENS)])
    return " ".join(parts)


def check_only_program_errors(text: str, signature: Signature | None = None) -> None:
    try:
        assert isinstance(read(text, signature), Program)
    except ProgramError as error:
        lines = text.split("\n")
        for found in error.diagnostics:
            assert found.rule and found.message
            if found.severity == "error":
                assert 1 <= found.line <= len(lines) + 1 and found.column >= 1, found
            if found.fix:
                assert 1 <= found.fix.column <= found.fix.end_column <= len(lines[found.fix.line - 1]) + 1, found


@settings(max_examples=150, deadline=None)
@given(candidate=st.sampled_from(CANDIDATES), seed=st.integers(0, 2**32), edits=st.integers(1, 6), whole=st.booleans())
def test_mutated_candidates_give_only_program_errors(candidate: str, seed: int, edits: int, whole: bool) -> None:
    text = (swapped if whole else mutated)(candidate, seed, edits)
    check_only_program_errors(text, signature_of(read(candidate)))


@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.sampled_from(TOKENS), max_size=40))
def test_token_soup_gives_only_program_errors(tokens: list[str]) -> None:
    check_only_program_errors("".join(tokens))
    check_only_program_errors(
        '@kernel\ndef f(x: Tensor["M", "K"], w: Tensor["N", "K"]):\n    z = '
        + " ".join(tokens)
        + '\n    return {"y": z}\n'
    )


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_any_text_gives_only_program_errors(text: str) -> None:
    check_only_program_errors(text)

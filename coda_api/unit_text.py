"""What an emitter returns for one unit: the text of its function and, as data, what a launch must pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import Names

TRITON_DTYPES = {
    "bfloat16": ("bf16", "tl.bfloat16", 2),
    "float16": ("fp16", "tl.float16", 2),
    "float32": ("fp32", "tl.float32", 4),
    "float8_e4m3fn": ("fp8e4nv", "tl.float8e4nv", 1),
    "float8_e5m2": ("fp8e5", "tl.float8e5", 1),
    "int64": ("i64", "tl.int64", 8),
    "int32": ("i32", "tl.int32", 4),
}


def triton_dtype(dtype: str) -> str:
    """ "tl.bfloat16" for torch's "bfloat16"."""
    return TRITON_DTYPES[dtype][1]


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return TRITON_DTYPES[dtype][2]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that a unit reads or writes: its dims in the unit's symbols, and its dtype."""

    dims: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a unit's parameters and live outputs are in memory, and how its text goes through matrices."""

    params: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    form: str  # "descriptor" or "pointer"
    device_scalars: frozenset[str]  # Scalar parameters that are one-element tensors
    backwards: bool = False  # from the last tile to the first; of a kernel without a product


@dataclass(frozen=True, slots=True)
class UnitParam:
    """One parameter of an emitted function.

    kind: "pointer", "descriptor" (block given), "scalar" (a float), "size" (an int, the length of `dim`), "constexpr"
    (value given), "whole" (constexpr; whether the length of `dim` is a multiple of value), "tiles" (the number of tiles
    of the partial `tensor`), "tile_width" (constexpr; columns of one of its tiles). tensor: the unit's own name of the
    parameter or output that is passed.
    """

    name: str
    kind: Literal["pointer", "descriptor", "scalar", "size", "constexpr", "whole", "tiles", "tile_width"]
    tensor: str = ""
    output: bool = False
    block: tuple[int, ...] = ()
    dim: Dim | None = None
    value: object = None


Grid = Literal["tiles", "runs", "every", "rows", "one"]


@dataclass(frozen=True, slots=True)
class UnitText:
    """An emitted unit. grid: "tiles" (persistent over the product's tiles), "runs" (a program for each run through the
    steps of all tiles), "every" (a program for each tile), "rows" (a program a row block), "one"."""

    name: str
    text: str
    params: tuple[UnitParam, ...]
    grid: Grid
    block_rows: int = 0
    rows: Dim | None = None  # for a grid of rows: the dim that it covers
    gluon: bool = False  # the Hopper backend's dialect
    warps: int = 0  # what the launch asks for; 0: what the schedule says
    step: int = 0  # for a grid of tiles: columns of the product that each computes; 0: what the schedule says
    slice_n: int = 0  # places of the product's tile that its epilogue takes at a time, in a kernel
    pieces: int = 1  # for a grid of tiles: the pieces of K that each tile's work is cut into
    runs: int = 0  # for a grid of runs: how many


class SizeNames:
    """The lengths that a unit's text mentions: writes dims as arithmetic over symbols and remembers which it used."""

    def __init__(self, names: Names, sizes: Mapping[str, int], constant: frozenset[str]) -> None:
        self.names, self.sizes, self.constant = names, sizes, constant
        self.used: dict[str, str] = {}

    def symbol(self, symbol: str) -> str:
        if symbol not in self.used:
            self.used[symbol] = self.names.new(symbol)
        return self.used[symbol]

    def text(self, dim: Dim) -> str:
        """ "2 * N", "N // H": an int expression, in parentheses unless it is one name or number."""
        over = [self.symbol(n) for n, p in dim.powers for _ in range(p)]
        under = [self.symbol(n) for n, p in dim.powers for _ in range(-p)]
        if dim.scale.numerator != 1 or not over:
            over = [str(dim.scale.numerator), *over]
        if dim.scale.denominator != 1:
            under = [*under, str(dim.scale.denominator)]
        text = " * ".join(over) + "".join(f" // {n}" for n in under)
        return text if len(over) + len(under) == 1 else f"({text})"

    def params(self) -> list[UnitParam]:
        ordered = sorted(self.used.items(), key=lambda item: item[0] in self.constant)
        return [
            UnitParam(name, "constexpr", value=self.sizes[symbol])
            if symbol in self.constant
            else UnitParam(name, "size", dim=Dim.symbol(symbol))
            for symbol, name in ordered
        ]


def function(name: str, params: list[str], body: list[str], doc: str = "") -> str:
    """A jitted function, its signature folded to the line length."""
    head = f"def {name}({', '.join(params)}):"
    if len(head) > 118:
        head = "\n".join([f"def {name}(", *(f"    {line}" for line in folded(params)), "):"])
    lines = [f'"""{doc}"""', *body] if doc else body
    return f"@triton.jit\n{head}\n" + "\n".join(f"    {line}" if line else "" for line in lines) + "\n"


def folded(items: list[str], width: int = 112) -> list[str]:
    """A list's items with commas after them, in lines of at most `width` where one fits."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) + 2 > width:
            lines.append("")
        lines[-1] += f"{item}, "
    return [line.rstrip() for line in lines]


def call_text(name: str, args: list[str], indent: str = "    ") -> str:
    """A call, folded to the line length."""
    text = f"{name}({', '.join(args)})"
    lines = [f"{name}(", *(f"{indent}    {line}" for line in folded(args)), f"{indent})"]
    return text if len(text) <= 108 else "\n".join(lines)


def mentions(text: str, name: str) -> bool:
    """The identifier `name` occurs in `text`."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def narrow(text: str, dtype: str) -> str:
    """fp32 text rounded to a dtype; fp8 saturates, and NaN stays NaN."""
    top = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(dtype)
    if top:
        text = f"clamp({text}, {-top}, {top})"
    return f"{text}.to({triton_dtype(dtype)})"

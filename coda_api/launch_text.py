"""The generated `launch`, and each launch as data for builders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import number
from coda_synth.coda_api.generated import KernelArg, Launch
from coda_synth.coda_api.module_text import MODULE_NAMES
from coda_synth.coda_api.overlap import Access, Overlap, overlapped
from coda_synth.coda_api.program import Call, Kernel, Ref
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.storage import accumulated_into
from coda_synth.coda_api.unit_text import TRITON_DTYPES, UnitParam, UnitText, folded, triton_dtype


@dataclass(frozen=True, slots=True)
class UnitCall:
    """One launch to be: the program's call, the emitted unit, and how it is compiled."""

    call: Call
    text: UnitText
    warps: int
    stages: int
    schedule: Schedule | None
    overlap: Overlap = Overlap()


def with_overlap(calls: list[UnitCall], stored: Mapping[Ref, Any]) -> list[UnitCall]:
    """The launches of a call, told where they wait and whether they release the next one."""
    found = overlapped([_access(c, stored) for c in calls])
    return [_overlapping(c, overlap) if c.text.gluon else c for c, overlap in zip(calls, found, strict=True)]


def _overlapping(c: UnitCall, overlap: Overlap) -> UnitCall:
    first, last = overlap.waits == "start", overlap.waits == "end"
    values = {"WAITS_FIRST": first, "RELEASES": overlap.releases, "WAITS_LAST": last}
    params = tuple(replace(p, value=values[p.name]) if p.name in values else p for p in c.text.params)
    return replace(c, text=replace(c.text, params=params), overlap=overlap)


def _access(c: UnitCall, stored: Mapping[Ref, Any]) -> Access:
    """A launch reads and writes what it is given; what is accumulated is an input that it writes too."""
    memory = [p for p in c.text.params if p.kind in ("pointer", "descriptor")]
    added = [o for o, value in c.call.unit.outputs.items() if accumulated_into(value)]
    written = {_tensor(c, p, stored).name for p in memory if p.output}
    written |= {stored[ref].name for o in added if (ref := Ref(call=c.call.name, output=o)) in stored}
    read = {_tensor(c, p, stored).name for p in memory if not p.output}
    return Access(frozenset(read), frozenset(written), c.text.gluon)


def launch_text(
    calls: list[UnitCall], arguments: tuple[str, ...], stored: Mapping[Ref, Any], sizes: Mapping[str, int]
) -> str:
    """The module's `launch`."""
    return _Launcher(stored, arguments, sizes, {c.text.name for c in calls}).text(calls)


class _Launcher:
    """Writes `launch`: sizes from shapes, the launches of an earlier call where one fits, or one after the other."""

    def __init__(
        self, stored: Mapping[Ref, Any], arguments: tuple[str, ...], sizes: Mapping[str, int], functions: set[str]
    ) -> None:
        self.stored, self.arguments, self.sizes = stored, arguments, sizes
        self.taken = MODULE_NAMES | functions | set(arguments)
        self.symbols: dict[str, str] = {}  # by the name here, where its size is read
        self.called: dict[str, str] = {}  # by the symbol, its name here

    def text(self, calls: list[UnitCall]) -> str:
        launches = [line for c in calls for line in self._launch(c)]
        head = f"def launch({', '.join(self.arguments)}):"
        if len(head) > 118:
            head = "def launch(\n    " + ",\n    ".join(self.arguments) + ",\n):"
        doc = '    """Computes every output into the given buffers, which are contiguous and of the declared dtypes."""'
        sizes = [f"    {symbol} = {text}" for symbol, text in self.symbols.items()]
        return "\n".join([head, doc, *sizes, *self._repeated(calls, launches)]) + "\n"

    def _repeated(self, calls: list[UnitCall], launches: list[str]) -> list[str]:
        """The launches of a call, or, where its key is known, what runs them again."""
        scalars = {c.call.args[p.tensor].input for c in calls for p in c.text.params if p.kind == "scalar"}
        values = [f'f"{{{name}!r}}"' if name in scalars else f"{name}.data_ptr()" for name in self.arguments]
        key, parts = self._free("key"), [*self.symbols, *values]
        whole = f"    {key} = ({', '.join(parts)})"
        lines = [f"    {key} = (", *(f"        {line}" for line in folded(parts)), "    )"]
        return [
            *([whole] if len(whole) <= 118 else lines),
            f"    if _repeated({key}):",
            "        return",
            f"    _keep({key}, [",
            *(f"        {line}" for line in launches),
            "    ])",
        ]

    def _free(self, name: str) -> str:
        while name in self.taken or name in self.symbols:
            name += "_"
        return name

    def _launch(self, c: UnitCall) -> list[str]:
        args = [self._argument(c, p) for p in c.text.params]
        grid = self._grid(c)
        given = [c.text.name, grid, *args, f"num_warps={c.warps}", f"num_stages={c.stages}"]
        given += ["launch_pdl=True"] * c.overlap.early
        if len(text := f"_launched({', '.join(given)}),") <= 108:
            return [text]
        return ["_launched(", *(f"    {line}" for line in folded(given, 108)), "),"]

    def _grid(self, c: UnitCall) -> str:
        if c.text.grid in ("one", "runs"):
            return f"({c.text.runs or 1},)"
        unit = c.call.unit
        if c.text.grid == "rows":
            assert c.text.rows is not None
            rows = self._size(c.call.dim(c.text.rows))
            return f"(-(-{rows if rows.isidentifier() else f'({rows})'} // {c.text.block_rows}),)"
        assert isinstance(unit, Kernel) and c.schedule is not None
        rows, cols = self._size(c.call.dim(unit.rows)), self._size(c.call.dim(unit.cols))
        if c.text.grid == "every":
            down, across = (
                f"-(-{n if n.isidentifier() else f'({n})'} // {block})"
                for n, block in ((rows, c.schedule.block_m), (cols, c.text.step or c.schedule.block_n))
            )
            return f"({down} * {across},)"
        device = next(self._tensor(c, p).name for p in c.text.params if p.kind in ("pointer", "descriptor"))
        tiles = f"{device}.device, {rows}, {c.schedule.block_m}, {cols}, {c.text.step or c.schedule.block_n}"
        return f"_programs_for_pieces({tiles}, {c.text.pieces})" if c.text.pieces > 1 else f"_programs({tiles})"

    def _tensor(self, c: UnitCall, param: UnitParam) -> Any:
        return _tensor(c, param, self.stored)

    def _argument(self, c: UnitCall, p: UnitParam) -> str:
        if p.kind == "descriptor" and c.text.gluon:
            tensor = self._tensor(c, p)
            dtype = triton_dtype(tensor.dtype).removeprefix("tl.")
            return f'_described_g({tensor.name}, {list(p.block)}, "{dtype}")'
        if p.kind == "descriptor":
            return f"_described({self._tensor(c, p).name}, {list(p.block)})"
        if p.kind == "pointer":
            return str(self._tensor(c, p).name)
        if p.kind == "size":
            assert p.dim is not None
            return self._size(c.call.dim(p.dim))
        if p.kind == "whole":
            assert p.dim is not None
            return f"{self._size(c.call.dim(p.dim))} % {p.value} == 0"
        if p.kind == "tiles":
            return f"{self._tensor(c, p).name}.shape[0]"
        if p.kind == "tile_width":
            return str(self._tensor(c, p).tile)
        if p.kind == "scalar":
            ref = c.call.args[p.tensor]
            return str(ref.input) if ref.input else self._size(ref.size) if ref.size else number(float(ref.number or 0))
        return repr(p.value)

    def _size(self, dim: Dim) -> str:
        """A length as an expression over the symbols that `launch` has worked out."""
        over = [self._symbol(n) for n, p in dim.powers for _ in range(p)]
        under = [self._symbol(n) for n, p in dim.powers for _ in range(-p)]
        if dim.scale.numerator != 1 or not over:
            over = [str(dim.scale.numerator), *over]
        if dim.scale.denominator != 1:
            under = [*under, str(dim.scale.denominator)]
        return " * ".join(over) + "".join(f" // {n}" for n in under)

    def _symbol(self, symbol: str) -> str:
        if symbol not in self.called:
            source = self._source(symbol)  # first, because it may need other symbols
            name = self.called[symbol] = self._free(f"{symbol}_size" if symbol in self.taken else symbol)
            self.symbols[name] = source
        return self.called[symbol]

    def _source(self, symbol: str) -> str:
        """Where a symbol's size can be read: the shape of the first argument that has it, alone if possible."""
        found = [
            (len(dim.powers), s.name, axis, dim)
            for s in self.stored.values()
            if s.name in self.arguments and s.reduced is None
            for axis, dim in enumerate(s.dims)
            if (symbol, 1) in dim.powers
        ]
        if not found:  # no tensor of this launch has the dim: the text is for one size of it
            return str(self.sizes[symbol])
        _, name, axis, dim = min(found, key=lambda item: (item[0], item[3].scale != 1))
        rest = dim / Dim.symbol(symbol)
        text = f"{name}.shape[{axis}]"
        if rest.scale.denominator != 1:
            text += f" * {rest.scale.denominator}"
        if rest.scale.numerator != 1:
            text += f" // {rest.scale.numerator}"
        for other, power in rest.powers:
            text += f" // {self._symbol(other)}" * power if power > 0 else f" * {self._symbol(other)}" * -power
        return text


def _tensor(c: UnitCall, param: UnitParam, stored: Mapping[Ref, Any]) -> Any:
    return stored[Ref(call=c.call.name, output=param.tensor) if param.output else c.call.args[param.tensor]]


def launch_record(c: UnitCall, stored: Mapping[Ref, Any], sizes: Mapping[str, int], processors: int) -> Launch:
    """The launch as data, specialised as a real one is: sizes that are multiples of 16 say so, 1 is constant."""
    args = tuple(_kernel_arg(c, p, stored, sizes) for p in c.text.params)
    unit = c.call.unit
    if c.text.grid in ("one", "runs"):
        tiles = c.text.runs or 1
    elif c.text.grid == "rows":
        assert c.text.rows is not None
        tiles = -(-c.call.dim(c.text.rows).size(sizes) // c.text.block_rows)
    else:
        assert isinstance(unit, Kernel) and c.schedule is not None
        rows, cols = c.call.dim(unit.rows).size(sizes), c.call.dim(unit.cols).size(sizes)
        tiles = -(-rows // c.schedule.block_m) * -(-cols // (c.text.step or c.schedule.block_n)) * c.text.pieces
    multiplies = any(p.name == "BLOCK_K" for p in c.text.params)  # what mainloops alone have
    programs = min(tiles, processors) if c.text.grid == "tiles" else tiles
    made = (c.call.name, c.text.name, args, c.warps, c.stages, programs, tiles)
    return Launch(*made, c.text.gluon, multiplies, c.overlap)


def _kernel_arg(c: UnitCall, p: UnitParam, stored: Mapping[Ref, Any], sizes: Mapping[str, int]) -> KernelArg:
    if p.kind in ("constexpr", "tile_width"):
        return KernelArg(p.name, "constexpr", p.value if p.kind == "constexpr" else _tensor(c, p, stored).tile)
    if p.kind == "whole":
        assert p.dim is not None and isinstance(p.value, int)
        return KernelArg(p.name, "constexpr", c.call.dim(p.dim).size(sizes) % p.value == 0)
    if p.kind == "scalar":
        return KernelArg(p.name, "fp32")
    if p.kind in ("size", "tiles"):
        dim = c.call.dim(p.dim) if p.dim else _tensor(c, p, stored).dims[0]
        value = dim.size(sizes)
        return KernelArg(p.name, "constexpr", 1) if value == 1 else KernelArg(p.name, "i32", None, value % 16 == 0)
    dtype = TRITON_DTYPES[_tensor(c, p, stored).dtype][0]
    if p.kind == "descriptor":
        return KernelArg(p.name, f"tensordesc<{dtype}[{', '.join(map(str, p.block))}]>")
    return KernelArg(p.name, f"*{dtype}", None, True)

"""Sizes on which a program's tiling shows: so many tiles along every dim of every kernel and a partial one, and no
more.

A kernel's arithmetic does not depend on size, but its tiling does: these are the smallest sizes that reach every edge
of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count

from coda_synth.coda_api.dims import Dim, DimSizeError
from coda_synth.coda_api.program import Call, Kernel, Program, Value, walk
from coda_synth.coda_api.schedule import Schedule

_ROW_BYTES = 16  # what a TMA descriptor wants of a row, or a multiple of it
_LIMIT = 1 << 16


def fit_sizes(
    program: Program, base: Mapping[str, int], schedules: Mapping[str, Schedule], tiles: int, *, aligned: bool
) -> dict[str, int]:
    """`base` with every free symbol at the least size that gives each kernel more than `tiles` whole tiles along rows,
    columns and depth (of each piece, where K is cut); aligned: every row it touches is a multiple of 16 bytes,
    otherwise odd where that is possible.

    Symbols that set the width of a group (a head) keep their size in `base`, since a tile must hold whole groups.
    """
    needs = _needs(program, schedules, tiles)
    dims = _all_dims(program)
    step = _ROW_BYTES // _narrowest(program) if aligned else 1
    sizes = dict(base)
    for symbol in sorted({s for dim, _ in needs for s in dim.symbols} - _group_symbols(program)):
        fits = partial(_fits, symbol, sizes=sizes, needs=needs, dims=dims, step=step)
        least = next(v for v in count(1) if v >= _LIMIT or fits(v))
        odd = (v for v in range(least | 1, 2 * least + 2, 2) if not aligned and fits(v))
        sizes[symbol] = next(odd, least)  # a multiple of a group's width is never odd
    return sizes


def _fits(
    symbol: str, value: int, sizes: Mapping[str, int], needs: list[tuple[Dim, int]], dims: list[Dim], step: int
) -> bool:
    trial = {**sizes, symbol: value}
    touched = [(dim, least) for dim, least in needs if symbol in dim.all_symbols]
    try:
        lengths = [dim.size(trial) for dim in dims if symbol in dim.all_symbols]
        if any(dim.size(trial) <= least for dim, least in touched):
            return False
    except DimSizeError:
        return False
    return all(length % step == 0 for length in lengths)


def _narrowest(program: Program) -> int:
    """Bytes of an element of the narrowest matrix that the program stores: 1 where it makes fp8 codes, else 2."""
    return 1 if any(str(value.attrs.get("dtype", "")).startswith("float8") for _, value in _values(program)) else 2


def _needs(program: Program, schedules: Mapping[str, Schedule], tiles: int) -> list[tuple[Dim, int]]:
    """(a dim of the program, the size that it must exceed), for every live kernel call."""
    needs = []
    for call in program.live_calls():
        if isinstance(call.unit, Kernel):
            schedule = schedules[call.name]
            needs += [
                (call.dim(call.unit.rows), tiles * schedule.block_m),
                (call.dim(call.unit.cols), tiles * schedule.block_n),
            ]
            if call.unit.gemm:
                needs.append((call.dim(call.unit.gemm.inner), tiles * schedule.block_k * schedule.split_k))
    return needs


def _group_symbols(program: Program) -> set[str]:
    """Symbols of the program inside group widths, and in the length of what `cycle` repeats."""
    found: set[str] = set()
    for call, value in _values(program):
        group = value.attrs.get("group")
        if isinstance(group, Dim):
            found |= set(call.dim(group).all_symbols)
        if value.word == "cycle" and value.args[0].cols is not None:
            found |= set(call.dim(value.args[0].cols).all_symbols)
    return found


def _all_dims(program: Program) -> list[Dim]:
    """Every dim that a tensor of the program has, in the program's own symbols."""
    dims = {d for p in program.params for d in p.type.dims}
    for call in program.calls:
        dims |= {call.dim(d) for p in call.unit.params for d in p.type.dims}
        dims |= {call.dim(d) for v in call.unit.outputs.values() for d in (v.rows, v.cols) if d is not None}
    return sorted(dims, key=str)


def _values(program: Program) -> Iterator[tuple[Call, Value]]:
    for call in program.calls:
        for value in walk(call.unit.outputs):
            yield call, value

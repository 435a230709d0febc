"""The hardware counters of a candidate's launches, read from what ncu writes, in words that an author can act on.

A metric that a chip or a release does not have is left out. Needs no torch, and runs nothing; ncu.py does.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_PEAK = r"\.pct_of_peak_sustained_(?:active|elapsed)"
_SHARES = {  # of the peak: of the names that match, the largest counts, as a pipe has several ways to be busy
    "SM": re.compile(r"sm__throughput\.avg" + _PEAK),
    "tensor pipe": re.compile(
        r"sm__(?:pipe_(?:tensor|tc)\w*_cycles_active\w*|inst_executed_pipe_tensor\w*)\.avg" + _PEAK
    ),
    "DRAM": re.compile(r"(?:gpu__dram|dram_)_throughput\.avg" + _PEAK),
    "L2": re.compile(r"lts__throughput\.avg" + _PEAK),
    "L1 and shared memory": re.compile(r"l1tex__throughput\.avg" + _PEAK),
}
_ACTIVE, _FIT = "sm__warps_active.avg.pct_of_peak_sustained_active", "sm__maximum_warps_per_active_cycle_pct"
_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_NO_STALL = ("selected", "not_selected")  # they issue, or could: time of a warp in which nothing is waited for
_WAITS = {  # what a warp waits for, by the name of the reason
    "long_scoreboard": "for data from memory",
    "short_scoreboard": "for shared memory or a special function",
    "mio_throttle": "for room in the queue of shared memory and special functions",
    "lg_throttle": "for room in the queue of loads and stores",
    "tex_throttle": "for room in the texture queue",
    "barrier": "at barriers for other warps of the block",
    "membar": "for memory fences",
    "wait": "for the fixed latency of the instruction before",
    "math_pipe_throttle": "for a busy arithmetic pipe",
    "gmma": "for the tensor cores",
    "no_instruction": "for instructions to be fetched",
    "branch_resolving": "for branches to be resolved",
    "dispatch_stall": "for the dispatcher",
    "drain": "for their last stores",
    "imc_miss": "for constants",
    "sleeping": "asleep",
}
_SECOND = 0.1  # of a warp's time: a second reason that takes less is not told
_CONFLICTS, _ACCESSES = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared", "l1tex__data_pipe_lsu_wavefronts_mem_shared"


@dataclass(frozen=True, slots=True)
class Counted:
    """One launch under ncu: the name of its kernel, and every metric that is a number by its own name and in ncu's
    unit."""

    kernel: str
    metrics: Mapping[str, float]


def counted(text: str) -> list[Counted]:
    """The launches of ncu's `--csv --page raw`, in their order: a row of names, a row of units, a row for each launch.
    What is no such row, as ncu's own words are, is passed over."""
    header: list[str] = []
    found = []
    try:
        for row in csv.reader(line for line in text.splitlines() if not line.startswith("==")):
            if row[:1] == ["ID"] and "Kernel Name" in row:
                header = row
            elif row and len(row) == len(header) and row[0].isdecimal():
                cells = dict(zip(header, row, strict=True))
                metrics = {name: value for name, cell in cells.items() if (value := _number(name, cell)) is not None}
                found.append(Counted(cells["Kernel Name"].partition("(")[0].strip(), metrics))
    except csv.Error:  # a line that no csv has
        pass
    return found


def _number(name: str, cell: str) -> float | None:
    """1234.5 for "1,234.5", under the name of a metric."""
    try:
        value = float(cell.replace(",", "")) if "__" in name else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def counter_lines(found: Sequence[Counted], launches: Sequence[tuple[str, str]]) -> list[str]:
    """One line a launch of which something is known. launches: of the program, each its call and its kernel."""
    alike = [each.kernel for each in found] == [kernel for _, kernel in launches]
    several = {call for call, _ in launches if sum(other == call for other, _ in launches) > 1}
    lines = []
    for number, each in enumerate(found):
        call = launches[number][0] if alike else ""
        name = f"{call} ({each.kernel})" if call in several else call or f"the kernel {each.kernel}"
        if said := "; ".join(_words(each.metrics)):
            lines.append(f"{name}, by hardware counters: {said}")
    return lines


def _words(metrics: Mapping[str, float]) -> Iterator[str]:
    shares = {what: share for what, name in _SHARES.items() if (share := _largest(metrics, name)) is not None}
    if shares:
        yield "of their peaks " + ", ".join(f"{what} {share:.0f}%" for what, share in shares.items())
    if _ACTIVE in metrics:
        fit = f" ({metrics[_FIT]:.0f}% fit)" if _FIT in metrics else ""
        yield f"{metrics[_ACTIVE]:.0f}% of the possible warps are active{fit}"
    if waits := _waits(metrics):
        yield f"warps wait {' and '.join(waits)}"
    yield from _conflicts(metrics)


def _largest(metrics: Mapping[str, float], name: re.Pattern[str]) -> float | None:
    return max((value for metric, value in metrics.items() if name.fullmatch(metric)), default=None)


def _waits(metrics: Mapping[str, float]) -> list[str]:
    """The one or two things that warps wait for longest, with their share of a warp's time."""
    spent = {match[1]: value for metric, value in metrics.items() if (match := _STALLED.fullmatch(metric))}
    whole = sum(spent.values())
    shares = {reason: spent[reason] / whole for reason in spent if reason not in _NO_STALL and spent[reason] > 0}
    first = sorted(shares, key=lambda reason: -shares[reason])[:2]
    told = [reason for i, reason in enumerate(first) if i == 0 or shares[reason] >= _SECOND]
    return [_wait(reason, f"{shares[reason]:.0%}{' of their time' if i == 0 else ''}") for i, reason in enumerate(told)]


def _wait(reason: str, share: str) -> str:
    """In words, and by the name under which the vendor's guide has it."""
    named = reason.replace("_", " ")
    return f"{_WAITS[reason]} ({named}, {share})" if reason in _WAITS else f"for {named} ({share})"


def _conflicts(metrics: Mapping[str, float]) -> Iterator[str]:
    """Accesses to shared memory that were made twice or more since their banks were not free."""
    conflicts, accesses = _total(metrics, _CONFLICTS), _total(metrics, _ACCESSES)
    if conflicts is not None and accesses:
        yield f"{conflicts / accesses:.0%} of its turns at shared memory are bank conflicts"
    elif conflicts is not None:
        yield f"{conflicts:,.0f} bank conflicts"


def _total(metrics: Mapping[str, float], name: str) -> float | None:
    """A count, or where that is missing those of loads and stores."""
    parts = [metrics[key] for key in (f"{name}_op_ld.sum", f"{name}_op_st.sum") if key in metrics]
    return metrics.get(f"{name}.sum", sum(parts) if parts else None)

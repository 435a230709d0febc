"""What the tuner found, as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator

from coda_synth.agent.cli_view import console, sizes_text, table
from coda_synth.agent.tune import KernelResult, Try
from coda_synth.agent.tune_cache import Found, folder
from coda_synth.coda_api.schedule import Schedule
from rich.console import RenderableType
from rich.text import Text

_COLUMNS = ("", "schedule", "modelled", "registers", "spills", "shared", "measured, 95 %")


def show(found: Found, device: str, shape: str, *, measured: bool, cached: bool, err: bool, quiet: bool) -> None:
    """To stderr where the text goes to stdout, and then not at all with --quiet."""
    if err and quiet:
        return
    screen = console(stderr=err)
    for part in _parts(found, device, shape, measured, cached):
        screen.print(part)


def _parts(found: Found, device: str, shape: str, measured: bool, cached: bool) -> Iterator[RenderableType]:
    how = "measured" if measured else "modelled, not measured"
    yield Text(f"{device}, {shape} ({sizes_text(found.sizes)}): times of the whole program, {how}")
    for kernel in found.kernels:
        yield Text("")
        yield table(_COLUMNS, [_row(t, kernel) for t in _ordered(kernel)], kernel.kernel, right=_COLUMNS[2:])
        yield Text(_sentence(kernel, measured))
    yield from (Text(f"- {note}") for note in found.notes)
    if not found.complete:
        yield Text(f"The budget of {found.seconds:g} s was spent before all were tried; --seconds gives more.")
    if cached:
        yield Text(f"From the cache in {folder()}; --fresh tunes anew.")


def _ordered(kernel: KernelResult) -> list[Try]:
    """The fastest first, measured before modelled, what cannot run last."""
    return sorted(kernel.tries, key=lambda t: (bool(t.built.problem), t.sample is None, t.ms))


def _row(tried: Try, kernel: KernelResult) -> tuple[str, ...]:
    marks = [("best", kernel.best), ("model", kernel.pick)]
    mark = ", ".join(name for name, t in marks if t.schedule == tried.schedule)
    built, said = tried.built, schedule_text(tried.schedule)
    said += ", as written" if not tried.round else ""
    if built.problem:
        return mark, f"{said}: {built.problem[:200]}", "-", "-", "-", "-", "-"
    sample = tried.sample
    seen = f"{sample.median_ms:.4g} ms, {sample.low_ms:.4g}-{sample.high_ms:.4g}" if sample else "-"
    figures = (
        f"{built.modelled_ms:.4g} ms",
        f"{built.registers}",
        f"{built.spill_bytes} B",
        f"{built.shared_bytes:,} B",
    )
    return mark, said, *figures, seen


def schedule_text(s: Schedule) -> str:
    """128x256x64, 3 stages, 8 warps, groups of 8, slices of 64, hopper."""
    said = f"{s.block_m}x{s.block_n}x{s.block_k}, {s.stages} stages, {s.warps} warps, groups of {s.group_m}"
    said += f", slices of {s.slice_n}" if s.slice_n else ""
    if s.split_k > 1:
        said += f", K in {s.split_k} pieces" if s.cut == "even" else f", K in a stream, at most {s.split_k} pieces"
    return said + (f", {s.mainloop}" if s.mainloop != "auto" else "")


def _sentence(kernel: KernelResult, measured: bool) -> str:
    kept = "" if kernel.best.round else "; nothing tried is faster than the schedule as written, which stays"
    if not measured:
        return f"modelled, not measured: a machine with a GPU measures it{kept}"
    if kernel.gap is None:
        return f"the model's pick was not measured{kept}"
    return f"the cost model's pick is {100 * kernel.gap:.1f} % from the measured best{kept}"

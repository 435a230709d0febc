"""One evaluation as a report that a person can act on: verdict, findings in their place, checks, resources, times."""

from __future__ import annotations

from collections.abc import Iterator

from coda_synth.agent.cli_view import sizes_text, table
from coda_synth.agent.excerpt import WIDEST, excerpt, lines_of
from coda_synth.coda_api.errors import Diagnostic, Edit
from coda_synth.coda_api.schedule import as_hints
from coda_synth.evaluator.evaluation import Evaluation, Modelled, Timing, Verdict
from rich.console import RenderableType
from rich.text import Text

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def report(evaluation: Evaluation, source: str, name: str) -> Iterator[RenderableType]:
    """The parts of the report, in the order of the stages. name: what the candidate's text is called."""
    yield _headline(evaluation)
    for diagnostic in evaluation.diagnostics:
        yield _finding(diagnostic, lines_of(source), name)
    if evaluation.checks:
        yield _checks(evaluation)
    if evaluation.resources:
        yield _resources(evaluation)
    if evaluation.schedules:
        yield Text("\n".join(f"- schedule of {call}: {as_hints(s)}" for call, s in evaluation.schedules.items()))
    if evaluation.verdict is Verdict.PASSED:
        yield from _times(evaluation)


def _times(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Of what passed; anything else has none that could be used."""
    if evaluation.timings:
        yield _measured(evaluation.timings)
    if evaluation.modelled:
        yield _modelled(evaluation.modelled)
    for line in evaluation.profile:
        yield Text(f"- {line}")


def _headline(evaluation: Evaluation) -> Text:
    passed = evaluation.verdict is Verdict.PASSED
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in evaluation.seconds.items())
    text = Text(f"{evaluation.task}, candidate {evaluation.candidate}: ")
    text.append(evaluation.verdict.value, style="bold green" if passed else "bold red")
    if not passed:
        text.append(f" at the stage {evaluation.stage}")
    return text.append(f"  (seed {evaluation.seed}{'; ' + stages if stages else ''})")


def _finding(diagnostic: Diagnostic, lines: list[str], name: str) -> Text:
    """file:line:column, the message, the line itself with a mark under the place, and the repair if there is one."""
    place = f"{name}:{diagnostic.line}:{diagnostic.column}: " if diagnostic.line else ""
    text = Text(place, style="bold")
    text.append(diagnostic.severity, style=_COLOURS.get(diagnostic.severity, ""))
    text.append(f" {diagnostic.rule}: {diagnostic.message}", style="not bold")
    if 1 <= diagnostic.line <= len(lines):
        text.append(_excerpt(diagnostic, lines[diagnostic.line - 1]), style="not bold")
    if "map of the wrong elements" in diagnostic.message:
        text.append("\n(of a cell's elements are wrong: . none, : some, + most, # all)", style="not bold dim")
    if diagnostic.fix:
        text.append(f"\n  repair: {_repair(diagnostic.fix, lines)}", style="not bold green")
    return text


def _repair(edit: Edit, lines: list[str]) -> str:
    """At 11:27 write '"act"' in place of '"y"'."""
    line = lines[edit.line - 1] if edit.line <= len(lines) else ""
    old, place = line[edit.column - 1 : edit.end_column - 1][:WIDEST], f"at {edit.line}:{edit.column}"
    if not edit.text:
        return f"{place} delete {old!r}"
    return f"{place} write {edit.text!r}" + (f" in place of {old!r}" if old else "")


def _excerpt(diagnostic: Diagnostic, line: str) -> str:
    margin = f"{diagnostic.line:5d} | "
    width = 1
    if diagnostic.fix and diagnostic.fix.line == diagnostic.line and diagnostic.fix.column == diagnostic.column:
        width = max(1, diagnostic.fix.end_column - diagnostic.fix.column)
    line, column, width = excerpt(line, diagnostic.column, width)
    return f"\n{margin}{line}\n{' ' * 5} | {' ' * (column - 1)}{'^' * width}"


def _checks(evaluation: Evaluation) -> RenderableType:
    rows = [
        (
            c.stage,
            c.form,
            sizes_text(c.sizes),
            c.style,
            f"{c.error_ratio:.3f}",
            "ok" if c.passed else c.worst or "too far off",
        )
        for c in evaluation.checks
    ]
    columns = ("stage", "form", "sizes", "inputs", "error / allowed", "")
    return table(columns, rows, title="Checks against float64", right=("error / allowed",))


def _resources(evaluation: Evaluation) -> RenderableType:
    columns = ("call", "kernel", "registers", "spills", "shared memory", "tensor-core instructions")
    rows = [
        (
            r.call,
            r.kernel,
            str(r.registers),
            f"{r.spill_bytes} B",
            f"{r.shared_bytes:,} B",
            str(r.tensor_core_instructions),
        )
        for r in evaluation.resources
    ]
    target = evaluation.environment.get("target", "")
    return table(columns, rows, title=f"Built for {target}" if target else "Built", right=columns[2:])


def _measured(timings: tuple[Timing, ...]) -> RenderableType:
    names = tuple(dict.fromkeys(b.name for t in timings for b in t.baselines))
    columns = ("shape", "time", "95 % interval", "bound", "prepare", *names)
    rows = [
        (
            f"{t.shape} ({sizes_text(t.sizes)})",
            f"{t.median_ms:.3f} ms",
            f"{t.low_ms:.3f}-{t.high_ms:.3f}",
            f"{t.bound_ms:.3f} ms",
            f"{t.prepare_ms:.2f} ms",
            *(_baseline(t, name) for name in names),
        )
        for t in timings
    ]
    return table(columns, rows, title=f"Measured on {timings[0].device}", right=columns[1:])


def _baseline(timing: Timing, name: str) -> str:
    found = next((b for b in timing.baselines if b.name == name), None)
    return f"{found.median_ms:.3f} ms ({found.median_ms / timing.median_ms:.2f}x)" if found else "-"


def _modelled(modelled: tuple[Modelled, ...]) -> RenderableType:
    columns = ("shape", "estimate", "bound", "bare GEMMs", "traffic", "arithmetic")
    rows = [
        (
            f"{m.shape} ({sizes_text(m.sizes)})",
            f"{m.estimate_ms:.3f} ms",
            f"{m.bound_ms:.3f} ms",
            f"{m.bare_gemm_ms:.3f} ms",
            f"{m.bytes / 1e9:.2f} GB",
            f"{m.flops / 1e12:.2f} Tflop",
        )
        for m in modelled
    ]
    title = f"Modelled for {modelled[0].device} (a cost model's estimate, not a measurement)"
    return table(columns, rows, title=title, right=columns[1:])

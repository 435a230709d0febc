"""What became of an attempt, in words for its author: verdict, findings in their lines, figures, what bounds it."""

from __future__ import annotations

from collections.abc import Iterator

from coda_synth.agent.excerpt import excerpt, lines_of
from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.generated import Resources
from coda_synth.coda_api.schedule import Schedule, as_hints, pass_hints
from coda_synth.evaluator.evaluation import Check, Evaluation, Modelled, Timing, Verdict
from coda_synth.runs.ranking import NOTICEABLE
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import headline, time_ms

FINDINGS = 12  # more than that is one mistake many times over


def feedback(attempt: Attempt) -> str:
    """Everything that its author can act on, the program's text apart."""
    evaluation = attempt.evaluation
    if evaluation is None:
        return f"Step {attempt.step}: {_OUTCOMES[attempt.outcome]}{': ' + attempt.note if attempt.note else ''}."
    source = attempt.candidate.source if attempt.candidate else ""
    return "\n".join([f"Step {attempt.step}: {_verdict(evaluation)}", *_details(evaluation, lines_of(source))])


_OUTCOMES = {
    "duplicate": "not judged again",
    "no_program": "there was nothing to judge",
    "truncated": "there was nothing to judge",
    "too_long": "you did not see the prompt",
    "done": "you saw nothing left to win",
    "refused": "you declined; this is ordinary compiler work, so write the program",
    "interrupted": "the judging was broken off by the user",
}


def _verdict(evaluation: Evaluation) -> str:
    if evaluation.verdict is Verdict.PASSED:
        return "PASSED every check."
    return f"{evaluation.verdict} at the stage {evaluation.stage}."


def _details(evaluation: Evaluation, lines: list[str]) -> Iterator[str]:
    for diagnostic in evaluation.diagnostics[:FINDINGS]:
        yield from _finding(diagnostic, lines)
    if len(evaluation.diagnostics) > FINDINGS:
        yield f"... and {len(evaluation.diagnostics) - FINDINGS} more."
    yield from (_check(check) for check in evaluation.checks if not check.passed)
    if evaluation.verdict is Verdict.PASSED:
        worst = max(check.error_ratio for check in evaluation.checks)
        yield f"Its largest error is {worst:.2g} times the allowed one."
    for r in evaluation.resources:
        yield (
            f"Build of {r.call} ({r.kernel}): {r.registers} registers, {r.spill_bytes} B spilled, "
            f"{r.shared_bytes:,} B shared memory{_beside(r, evaluation.schedules.get(r.call))}."
        )
    products = {r.call for r in evaluation.resources if r.tensor_core_instructions}
    passes = {r.call for r in evaluation.resources} - products  # unknown of what did not build
    for call, schedule in evaluation.schedules.items():
        yield f"Schedule of {call}: {pass_hints(schedule) if call in passes else as_hints(schedule)}"
    yield from _figures(evaluation)
    yield from evaluation.profile if evaluation.figures else ()


def _beside(found: Resources, schedule: Schedule | None) -> str:
    """How its shared memory is shared out."""
    if schedule is None or schedule.split_k > 1 or schedule.operand_bytes() > found.shared_bytes:
        return ""
    each = schedule.operand_bytes() // schedule.stages
    rest = found.shared_bytes - schedule.operand_bytes()
    return f" ({schedule.stages} stages of {each:,}, the rest {rest:,})"


def _finding(diagnostic: Diagnostic, lines: list[str]) -> Iterator[str]:
    """The message, and the line that it is about."""
    kind = "" if diagnostic.severity == "error" else f"{diagnostic.severity}: "
    yield f"{kind}{diagnostic}"
    if 1 <= diagnostic.line <= len(lines):
        yield f"    {excerpt(lines[diagnostic.line - 1], diagnostic.column)[0].strip()}"
    if diagnostic.fix:
        fix = diagnostic.fix
        what = f"write {fix.text!r}" if fix.text else "delete them"
        yield f"    repair: line {fix.line}, columns {fix.column} to {fix.end_column - 1}, {what}"


def _check(check: Check) -> str:
    sizes = ", ".join(f"{name} = {size}" for name, size in check.sizes.items())
    return (
        f"Check {check.stage} ({check.form}) at {sizes}, inputs {check.style}: the error is "
        f"{check.error_ratio:.3g} times the allowed one{'; worst: ' + check.worst if check.worst else ''}."
    )


def _figures(evaluation: Evaluation) -> Iterator[str]:
    """Each shape's time, and what of it lies above its GEMMs alone."""
    for figure in evaluation.figures:
        kind = "Measured" if isinstance(figure, Timing) else "Modelled"
        yield (
            f"{kind} {figure.shape} on {figure.device}: {time_ms(figure):.4g} ms{_winnable(figure, evaluation)};"
            f" bound {figure.bound_ms:.4g} ms."
        )


def _winnable(figure: Timing | Modelled, evaluation: Evaluation) -> str:
    name, alone = _alone(figure, evaluation)
    if not alone:
        return ""
    share = 1 - alone / time_ms(figure)
    if share < NOTICEABLE:
        return f"; {name} {alone:.4g} ms, so nothing is left to win"
    kind = "measured" if isinstance(figure, Timing) else "modelled"
    return f"; {name} {alone:.4g} ms, so {share:.1%} of the {kind} time lies above them"


def nothing_to_win(evaluation: Evaluation) -> bool:
    """Whether the shape that ranks takes no longer than its GEMMs alone, as far as can be told."""
    figure = headline(evaluation)
    return figure is not None and _alone(figure, evaluation)[1] > (1 - NOTICEABLE) * time_ms(figure)


def _alone(figure: Timing | Modelled, evaluation: Evaluation) -> tuple[str, float]:
    """The task's GEMMs alone, or its least bytes where these take longer: what is said of them, and milliseconds, 0
    where they are not known."""
    bare = [b.median_ms for b in figure.baselines if b.name == "bare_gemm"] if isinstance(figure, Timing) else []
    if bare:
        return "the bare GEMMs, measured beside it,", bare[0]
    known = next((m for m in evaluation.modelled if m.shape == figure.shape), None)
    if known is None:
        return "", 0.0
    return "its least bytes alone" if known.floor_ms > known.bare_gemm_ms else "its GEMMs alone", known.floor_ms

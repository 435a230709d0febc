"""An evaluation as the text that its author reads: the verdict, what was wrong and where, and what bounds the speed.

Everything here is in the evaluation; nothing is added or judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.evaluator.evaluation import Check, Evaluation, Modelled, Timing, Verdict

_MEANS = {
    Verdict.REJECTED: "the language refuses the program",
    Verdict.BUILD_ERROR: "the program does not build for the target",
    Verdict.RUNTIME_ERROR: "the generated code ran and raised",
    Verdict.INCORRECT: "the results are outside the allowed error",
    Verdict.TIMEOUT: "it did not finish in time",
    Verdict.CRASHED: "its process died",
    Verdict.PASSED: "every check passed",
}


def feedback(evaluation: Evaluation, source: str = "") -> str:
    """What an author needs to repair or to speed up a candidate. source: its text, to show the lines that are meant."""
    lines = [f"{evaluation.verdict} at stage {evaluation.stage}: {_MEANS[evaluation.verdict]}."]
    lines += [text for d in evaluation.diagnostics for text in _diagnostic(d, source.splitlines())]
    if evaluation.verdict is not Verdict.REJECTED:
        lines += [*_checks(evaluation.checks), *_resources(evaluation)]
    if evaluation.verdict is Verdict.PASSED:
        lines += [_timing(t) for t in evaluation.timings] or [_modelled(m) for m in evaluation.modelled]
        lines += [f"- {line}" for line in evaluation.profile]
    return "\n".join(lines)


def _diagnostic(found: Diagnostic, source: list[str]) -> Iterator[str]:
    yield f"{found.severity}: {found}"
    if 0 < found.line <= len(source):
        yield f"    {source[found.line - 1]}"
        yield f"    {' ' * max(0, found.column - 1)}^"
    if found.fix:
        place = f"{found.fix.line}:{found.fix.column}-{found.fix.end_column}"
        yield f"    fix: at {place} write {found.fix.text!r}"


def _checks(checks: tuple[Check, ...]) -> Iterator[str]:
    for stage in dict.fromkeys(c.stage for c in checks):
        of_stage = [c for c in checks if c.stage == stage]
        worst = max(of_stage, key=lambda c: c.error_ratio)
        passed = sum(c.passed for c in of_stage)
        yield (
            f"check {stage}: {passed} of {len(of_stage)} passed; largest error over allowed: {worst.error_ratio:.3g}"
            f" ({worst.form} form, inputs {worst.style!r}, {_sizes(worst)})"
        )


def _sizes(check: Check) -> str:
    return ", ".join(f"{name}={size}" for name, size in check.sizes.items())


def _resources(evaluation: Evaluation) -> Iterator[str]:
    for r in evaluation.resources:
        yield (
            f"build {r.call}: {r.registers} registers, {r.spill_bytes:,} bytes spilled, {r.shared_bytes:,} bytes shared"
            f", {r.tensor_core_instructions} tensor-core instructions"
        )


def _timing(timing: Timing) -> str:
    beside = ", ".join(f"{b.name} {b.median_ms:.4g} ms ({timing.ratio(b.name):.3f}x)" for b in timing.baselines)
    said = f"measured on {timing.device}, {timing.shape}: {timing.median_ms:.4g} ms"
    said += f" (95% between {timing.low_ms:.4g} and {timing.high_ms:.4g}, {timing.repeats} repeats)"
    said += f"; no kernel can beat {timing.bound_ms:.4g} ms"
    said += f"; prepared: {timing.prepare_ms:.3g} ms a weight update" if timing.prepare_ms else ""
    return f"{said}; {beside}" if beside else said


def _modelled(found: Modelled) -> str:
    return (
        f"modelled for {found.device}, not measured, {found.shape}: {found.estimate_ms:.4g} ms in estimate,"
        f" {found.bare_gemm_ms:.4g} ms for the bare GEMMs, {found.bound_ms:.4g} ms at the device's peak"
    )

"""A candidate that passed, as a standalone package: generated kernels, plain functions, a receipt and a test."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from coda_synth.coda_api.lowering import LoweringError, lower
from coda_synth.coda_api.program import Program, Signature
from coda_synth.coda_api.reader import read
from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict
from coda_synth.evaluator.serial import to_data
from coda_synth.evaluator.signature import signature as signature_of
from coda_synth.runs.export_api import Surface, api_text
from coda_synth.runs.export_kernels import Kernels, every_form
from coda_synth.runs.export_reference import draws_text, interpreter_text, reference_text
from coda_synth.runs.receipt import receipt_data
from coda_synth.tasks.spec import TaskSpec

import coda_synth


class ExportError(Exception):
    """Nothing was written; one sentence that says why."""


class NotPassed(ExportError):
    """The candidate did not pass, and only what passed is exported."""


def write(task: TaskSpec, candidate: Candidate, evaluation: Evaluation, out: Path) -> str:
    """Makes the folder `out`, whole or not at all, and returns the package's import name. Raises ExportError."""
    if evaluation.verdict is not Verdict.PASSED:
        raise NotPassed(f"candidate {candidate.id} is {evaluation.verdict}, not PASSED: {evaluation.diagnostics[0]}")
    if evaluation.candidate != candidate.id:
        raise ExportError(f"the evaluation is of candidate {evaluation.candidate}, not of {candidate.id}")
    if written := [i.name for i in task.inputs if i.role == "in_place"]:
        raise ExportError(f"{task.name} adds into its input {written[0]} in place, which an export cannot do yet")
    package = f"coda_{task.name}"
    texts = _texts(package, task, candidate, evaluation)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            scratch.chmod(0o755)
            for name, text in texts.items():
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).write_text(text, encoding="utf-8", newline="\n")
            scratch.rename(out)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from None
    return package


def _texts(package: str, task: TaskSpec, candidate: Candidate, evaluation: Evaluation) -> dict[str, str]:
    """Every file by its path."""
    signature = signature_of(task)
    program = read(candidate.source, signature)
    kernels = _kernels(program, signature, task, candidate, evaluation)
    values = _values(package, task, candidate, evaluation, signature, kernels)
    source = f"src/{package}"
    return {
        "pyproject.toml": _template("export_pyproject.toml", values),
        "README.md": _template("export_readme.md", values),
        "LICENSE": licence_text(),
        f"{source}/__init__.py": api_text(Surface(signature, _sentence(task.summary), kernels), package),
        **({f"{source}/hopper.py": kernels.hopper.source} if kernels.hopper else {}),
        f"{source}/descriptor.py": kernels.descriptor.source,
        f"{source}/pointer.py": kernels.pointer.source,
        f"{source}/checks.py": files("coda_synth.runs").joinpath("export_checks.py").read_text(encoding="utf-8"),
        f"{source}/interpreter.py": interpreter_text(),
        f"{source}/program.coda": candidate.source,
        f"{source}/receipt.json": json.dumps(_receipt(task, candidate, evaluation, kernels), indent=2) + "\n",
        "tests/reference.py": reference_text(task.source),
        "tests/draws.py": draws_text(),
        f"tests/test_{package}.py": _template("export_test.md", values),
    }


def _kernels(
    program: Program, signature: Signature, task: TaskSpec, candidate: Candidate, evaluation: Evaluation
) -> Kernels:
    """With the schedules that were judged, for the headline shape: those that were measured, or else the candidate's
    own, unless the defaults beside them are others today."""
    headline = next(iter(task.time_shapes.values()))
    measured = evaluation.timings[0].schedules if evaluation.timings else {}
    try:
        chosen = measured or candidate.schedules
        now = lower(program, signature, headline, form="hopper", schedules=chosen).effective
        if not measured and evaluation.schedules and evaluation.schedules != now:
            chosen = evaluation.schedules
        return every_form(program, signature, headline, chosen)
    except LoweringError as error:
        raise ExportError(f"the kernels cannot be generated for {dict(headline)}: {error}") from None


def _receipt(task: TaskSpec, candidate: Candidate, evaluation: Evaluation, kernels: Kernels) -> dict[str, Any]:
    """The receipt that `coda-synth regrade` takes, and what of the export it does not hold."""
    return {
        **receipt_data(candidate, evaluation),
        "versions": {name: _version(name) for name in ("torch", "triton", "numpy")},
        "task": task.name,
        "schedules": to_data(kernels.descriptor.schedules),
        "fixed_sizes": dict(kernels.fixed),
    }


def _values(
    package: str, task: TaskSpec, candidate: Candidate, evaluation: Evaluation, signature: Signature, kernels: Kernels
) -> dict[str, str]:
    """What the templates mention."""
    roles = {role: [i for i in signature.inputs if i.role == role] for role in ("activation", "weight", "scalar")}
    headline = next(iter(task.time_shapes.values()))
    rows = task.inputs[0].dims[0]
    tensors = [
        f"- `{i.name}`: {i.type}, {i.dtype}{', a weight' if i.role == 'weight' else ''}" for i in signature.inputs
    ]
    tensors += [f"- returns `{o.name}`: [{', '.join(map(str, o.dims))}], {o.dtype}" for o in signature.outputs]
    own = [i.name for i in roles["activation"]]
    fixed = ", ".join(f"{symbol} = {size}" for symbol, size in kernels.fixed.items())
    worst = max(evaluation.checks, key=lambda check: check.error_ratio)
    return {
        "package": package,
        "distribution": package.replace("_", "-"),
        "function": task.name,
        "summary": _sentence(task.summary).replace('"', "'"),
        "origin": f"Made by coda-synth {coda_synth.__version__}: candidate {candidate.id} by {candidate.author}.",
        "weights": ", ".join(f"{w.name}={w.name}" for w in roles["weight"]),
        "arguments": ", ".join([*own, "weights", *(f"{s.name}={s.name}" for s in roles["scalar"])]),
        "weight_names": ", ".join(f"`{w.name}=`" for w in roles["weight"]),
        "result": ", ".join(o.name for o in signature.outputs),
        "tensors": "\n".join(tensors),
        "dtype": signature.dtype,
        "fixed": f"- Made for {fixed}; other values are refused.\n" if fixed else "",
        "checks": str(len(evaluation.checks)),
        "worst": f"{worst.error_ratio:.2f}",
        "timing": _timing(evaluation),
        "weight_list": repr([w.name for w in roles["weight"]]),
        "output_list": repr([o.name for o in signature.outputs]),
        "dtype_table": repr({i.name: i.dtype for i in signature.inputs if i.role != "scalar"}),
        "small_shapes": repr([{**sizes, **kernels.fixed} for sizes in task.check_shapes[:2]]),
        "large_shapes": repr([{**headline, rows: count} for count in (1024, 1000)]),
    }


def _timing(evaluation: Evaluation) -> str:
    if evaluation.timings:
        timing = evaluation.timings[0]
        ratios = ", ".join(f"{b.name} {b.median_ms:.3f} ms" for b in timing.baselines)
        return f"and the times: {timing.median_ms:.3f} ms on {timing.shape} ({timing.device}); beside it {ratios}"
    return "and the cost model's estimate; nothing was measured, for there was no GPU"


def licence_text() -> str:
    """Our licence: beside the package in a checkout, in its metadata when installed."""
    beside = Path(coda_synth.__file__).resolve().parent.parent / "LICENSE"
    if beside.is_file() and (beside.parent / "pyproject.toml").is_file():
        return beside.read_text(encoding="utf-8")
    from importlib.metadata import distribution

    found = distribution("coda-synth").read_text("licenses/LICENSE")
    if found is None:
        raise ExportError(
            "this installation of coda-synth lacks its LICENSE, which an export must carry; install it again"
        )
    return found


def _template(name: str, values: Mapping[str, str]) -> str:
    text = files("coda_synth.runs").joinpath(name).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _sentence(text: str) -> str:
    """As one line that ends like a sentence and is safe inside a docstring."""
    return " ".join(text.split()).replace('"""', "'''").rstrip(".") + "."


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""

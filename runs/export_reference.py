"""What an exported package takes from here as text, free of this package: the task's own reference and inputs, for its
test, and the repair of Triton's interpreter."""

from __future__ import annotations

import ast
from importlib.resources import files

from coda_synth.coda_api.parsing import parse_statements

_READY = '''def ready() -> None:
    """Repairs the interpreter where TRITON_INTERPRET is set; comes before every kernel."""
    try:
        import triton

        if triton.knobs.runtime.interpret:
            repair_interpreter()
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ImportError("TRITON_INTERPRET is set, and interpreting needs numpy: pip install numpy") from None
'''


def reference_text(task_source: str) -> str:
    """The task's module without its TaskSpec; the rules by which inputs are drawn come from a file beside it."""
    lines = task_source.splitlines()
    kept = [node for node in parse_statements(task_source).body if not _is_task(node)]
    parts = [_import(node) or "\n".join(lines[_start(node) : node.end_lineno]) for node in kept]
    return (
        "\n".join(
            part if part.startswith(("import", "from")) else f"\n\n{part}" for part in parts if part != "-"
        ).strip()
        + "\n"
    )


def _start(node: ast.stmt) -> int:
    """From 0, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)]) - 1


def _is_task(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "TASK" for t in node.targets)


def _import(node: ast.stmt) -> str:
    """Another text for an import of ours: draws lies beside, types are annotations only and never resolved."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("coda_synth"):
        return ""
    return "import draws" if any(alias.name == "draws" for alias in node.names) else "-"


def draws_text() -> str:
    """How inputs are drawn, which knows torch alone."""
    return files("coda_synth.tasks").joinpath("draws.py").read_text(encoding="utf-8")


def interpreter_text() -> str:
    """The repair of Triton's interpreter, cut out of the toolchain so that one text serves both."""
    source = files("coda_synth.coda_api").joinpath("toolchain.py").read_text(encoding="utf-8")
    functions = (node for node in parse_statements(source).body if isinstance(node, ast.FunctionDef))
    found = next(function for function in functions if function.name == "repair_interpreter")
    body = ast.get_source_segment(source, found)
    head = '"""Repairs Triton\'s CPU interpreter, so that it computes what the device would."""\n'
    return f"{head}\nfrom typing import Any\n\n\n{body}\n\n\n{_READY}"

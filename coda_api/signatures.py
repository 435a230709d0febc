"""Checks that a program has its task's name, and takes and returns what the task asks for."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from coda_synth.coda_api import rules
from coda_synth.coda_api.program import Ref, Signature, Type
from coda_synth.coda_api.repairs import up_to
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import nearest
from coda_synth.coda_api.syntax import UnitText


def check_signature(text: UnitText, outputs: Mapping[str, Ref], signature: Signature, report: Report) -> None:
    """Reports where the name, parameters or output names of the program are not the task's."""
    if text.name != signature.name:
        message = f"the program is called {text.name!r}, and its task is {signature.name}: they have one name"
        report.add(rules.ProgramName(text.node, message, _called(text, signature.name)))
    _check_inputs(text, signature, report)
    _check_outputs(text, outputs, [o.name for o in signature.outputs], signature.name, report)


def _check_inputs(text: UnitText, signature: Signature, report: Report) -> None:
    wanted = {i.name: i.type for i in signature.inputs}
    arguments = {a.arg: a for a in text.node.args.args}
    for name, type in wanted.items():
        if name not in text.types:
            message = f"the program lacks the task's input {name}: {type}"
            added = _added(text, name, type, signature)
            report.add(rules.SignatureParameters(added[0] if added else text.node, message, added))
        elif text.types[name] not in (None, type):
            annotation = arguments[name].annotation or text.node
            message = f"{name!r} is {text.types[name]}, and the task's input is {type}"
            report.add(rules.SignatureParameters(annotation, message, (annotation, str(type))))
    for name in text.types:
        if name not in wanted:
            close = nearest(name, [w for w in wanted if w not in text.types])
            hint = f"; did you mean {close!r}?" if close else ""
            report.add(
                rules.SignatureParameters(
                    arguments[name],
                    f"{name!r} is no input of the task {signature.name}{hint}; its inputs are {', '.join(wanted)}",
                    (arguments[name], f"{close}: {wanted[close]}") if close else None,
                )
            )


def _check_outputs(text: UnitText, outputs: Mapping[str, Ref], named: list[str], task: str, report: Report) -> None:
    """Of one wrong name and one that is missing, the wrong one is reported, for that is where the right one belongs."""
    missing = [n for n in named if n not in outputs] if outputs else []
    odd = [n for n in outputs if n not in named]
    returned = next((s for s in text.node.body if isinstance(s, ast.Return)), text.node)
    one = len(missing) == len(odd) == 1
    for name in missing if not one else []:
        report.add(rules.SignatureOutputs(returned, f"the program does not return the task's output {name!r}"))
    for name in odd:
        close = missing[0] if one else nearest(name, missing)
        hint = f"; write {close!r}" if close else ""
        key = _key(returned, name)
        message = f"{name!r} is no output of the task {task}{hint}; its outputs are {', '.join(named)}"
        report.add(rules.SignatureOutputs(key, message, (key, f'"{close}"') if close and key is not returned else None))


def _key(returned: ast.AST, name: str) -> ast.AST:
    """Where an output's name is written."""
    written = returned.value if isinstance(returned, ast.Return) else None
    keys = written.keys if isinstance(written, ast.Dict) else []
    return next((k for k in keys if isinstance(k, ast.Constant) and k.value == name), returned)


def _called(text: UnitText, name: str) -> rules.Repair | None:
    """From `def` to the first parameter, where they share a line."""
    arguments = text.node.args.args
    if not arguments or arguments[0].lineno != text.node.lineno:
        return None
    return up_to(text.node, arguments[0]), f"def {name}("


def _added(text: UnitText, name: str, type: Type, signature: Signature) -> rules.Repair | None:
    """The missing input at the end, unless one that is no input of the task stands in its place."""
    wanted = {i.name for i in signature.inputs}
    arguments = text.node.args.args
    if not arguments or any(a.arg not in wanted for a in arguments):
        return None
    return arguments[-1], f"{ast.unparse(arguments[-1])}, {name}: {type}".replace("'", '"')

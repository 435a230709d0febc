"""Checks that a program takes and returns what its task asks for."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from coda_synth.coda_api import rules
from coda_synth.coda_api.program import Ref, Signature, Type
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import did_you_mean, nearest
from coda_synth.coda_api.syntax import UnitText


def check_signature(text: UnitText, outputs: Mapping[str, Ref], signature: Signature, report: Report) -> None:
    """Reports where parameters or output names of the program are not the task's."""
    wanted = {i.name: i.type for i in signature.inputs}
    arguments = {a.arg: a for a in text.node.args.args}
    for name, type in wanted.items():
        if name not in text.types:
            message = f"the program lacks the task's input {name}: {type}"
            report.add(rules.SignatureParameters(text.node, message, _added(text, name, type, signature)))
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
    named = [o.name for o in signature.outputs]
    returned = next((s for s in text.node.body if isinstance(s, ast.Return)), text.node)
    for name in named:
        if outputs and name not in outputs:
            message = f"the program does not return the task's output {name!r}"
            report.add(rules.SignatureOutputs(returned, message, _renamed(returned, outputs, named)))
    for name in outputs:
        if name not in named:
            report.add(
                rules.SignatureOutputs(
                    returned,
                    f"{name!r} is no output of the task {signature.name}{did_you_mean(name, named)}; its outputs are "
                    f"{', '.join(named)}",
                    _renamed(returned, outputs, named),
                )
            )


def _added(text: UnitText, name: str, type: Type, signature: Signature) -> rules.Repair | None:
    """The missing input at the end, unless one that is no input of the task stands in its place."""
    wanted = {i.name for i in signature.inputs}
    arguments = text.node.args.args
    if not arguments or any(a.arg not in wanted for a in arguments):
        return None
    return arguments[-1], f"{ast.unparse(arguments[-1])}, {name}: {type}".replace("'", '"')


def _renamed(returned: ast.AST, outputs: Mapping[str, Ref], named: list[str]) -> rules.Repair | None:
    """The one output of a wrong name gets the one name that is missing."""
    missing, odd = [n for n in named if n not in outputs], [n for n in outputs if n not in named]
    if len(missing) != 1 or len(odd) != 1 or not isinstance(returned, ast.Return):
        return None
    keys = returned.value.keys if isinstance(returned.value, ast.Dict) else []
    found = next((k for k in keys if isinstance(k, ast.Constant) and k.value == odd[0]), None)
    return (found, f'"{missing[0]}"') if found else None

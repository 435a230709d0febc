"""Checks the @program: its calls, how each binds the dims of its unit, and what it returns."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.binding import (
    Actual,
    Arguments,
    CheckedUnit,
    bind,
    check_together,
    listed,
    results_of,
)
from coda_synth.coda_api.body import assigned, return_items
from coda_synth.coda_api.declarations import check_name, dim_of
from coda_synth.coda_api.program import Call, Ref, Signature, Type, TypeKind
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.rules import Broken, did_you_mean, nearest, shown
from coda_synth.coda_api.syntax import Number, UnitText, number
from coda_synth.coda_api.words import NAMES

_NO_ARGUMENT = 'cannot be an argument; pass an input, an output of an earlier call (a.h), a number or size("D")'
_NO_OUTPUT = "cannot be returned; a program returns outputs of its calls as they are (a.h), so compute it in a unit"


@dataclass(slots=True)
class Wiring:
    """The program while it is read."""

    text: UnitText
    units: Mapping[str, CheckedUnit]
    constants: Mapping[str, Number]
    signature: Signature | None
    report: Report
    broken: Collection[str] = ()  # functions that were left out, with errors of their own
    calls: list[Call] = field(default_factory=list)
    outputs: dict[str, Ref] = field(default_factory=dict)
    nodes: dict[str, ast.Call] = field(default_factory=dict)  # by the name of the call
    results: dict[str, dict[str, Actual] | None] = field(default_factory=dict)

    def read(self) -> None:
        body = self.text.node.body
        for position, statement in enumerate(body):
            try:
                self._statement(statement, last=position == len(body) - 1)
            except Broken as broken:
                self.report.add(broken)
                for name in assigned(statement):
                    self.results.setdefault(name, None)
        if not any(isinstance(s, ast.Return) for s in body):
            self.report.add(
                rules.ReturnForm(
                    self.text.node, 'the program returns nothing; end it with return {"name": call.output}'
                )
            )

    def _statement(self, node: ast.stmt, last: bool) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Return() if last:
                self._return(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self._call(node, name, call)
            case _:
                raise rules.ProgramStatement(
                    node,
                    f"a program holds calls of units, as a = kernel(x, w), and a final return; this is {shown(node)}",
                )

    # -- calls

    def _call(self, node: ast.Assign, name: str, call: ast.Call) -> None:
        fresh = name not in self.results
        if fresh:
            self.results[name] = None  # whatever goes wrong, later lines may refer to it
        if name in self.text.types:
            raise rules.ReservedName(node, f"{name!r} is an input of the program; give the call another name")
        if not fresh:
            raise rules.DuplicateName(
                node, f"{name!r} already names a call; schedules and reports go by that name, so every call has its own"
            )
        check_name(name, node, "a call")
        checked = self._unit(call)
        if checked is None:
            return
        arguments = self._arguments(call, checked)
        self._check_prepared(checked, arguments, call)
        self._check_accumulated(checked, arguments)
        binding = bind(call, checked, arguments, self.report)
        check_together(call, checked, arguments, self.report)
        self.results[name] = results_of(name, checked, binding)
        if checked.unit is not None and binding is not None:
            refs = {param: actual.ref for param, (actual, _) in arguments.items()}
            self.nodes[name] = call
            self.calls.append(Call(name, checked.unit, refs, binding, call.lineno))

    def _unit(self, call: ast.Call) -> CheckedUnit | None:
        name = call.func.id if isinstance(call.func, ast.Name) else shown(call.func)
        if name in self.units:
            return self.units[name]
        if name in self.broken:
            return None
        if name in NAMES:
            raise rules.ProgramStatement(
                call, f"{name} is a word for units; the program only calls units, so do this in a kernel or finisher"
            )
        close = nearest(name, self.units)
        fix = (call.func, close) if close else None
        defined = ", ".join(self.units) or "none"
        raise rules.UnknownUnit(
            call, f"{name!r} is not a unit of this file{did_you_mean(name, self.units)}; its units are: {defined}", fix
        )

    def _arguments(self, call: ast.Call, checked: CheckedUnit) -> Arguments:
        names = list(checked.text.types)
        unit = checked.text.name
        if starred := next((a for a in call.args if isinstance(a, ast.Starred)), None):
            raise rules.CallArguments(
                starred, f"{unit} takes its arguments one by one ({', '.join(names)}), and not {shown(starred)}"
            )
        if len(call.args) > len(names):
            raise rules.CallArguments(
                call,
                f"{unit} takes {len(names)} arguments ({', '.join(names)}), not {len(call.args)}",
                repairs.with_fewer(call, len(names)),
            )
        given: dict[str, ast.expr] = dict(zip(names, call.args, strict=False))
        for word in call.keywords:
            if word.arg not in names:
                close = nearest(str(word.arg), [n for n in names if n not in given])
                raise rules.CallArguments(
                    word,
                    f"{unit} has no parameter {word.arg!r}{did_you_mean(str(word.arg), names)}; it takes "
                    f"{', '.join(names)}",
                    (word, f"{close}={ast.unparse(word.value)}") if close else None,
                )
            if word.arg in given:
                raise rules.CallArguments(word, f"{word.arg!r} is given twice")
            given[word.arg] = word.value
        missing = [name for name in names if name not in given]
        if missing:
            said = f"{unit} takes {', '.join(names)}; {', '.join(missing)} is missing"
            raise rules.CallArguments(call, said, self._completed(call, missing))
        return {name: (self._actual(given[name]), given[name]) for name in names}

    def _completed(self, call: ast.Call, missing: list[str]) -> rules.Repair | None:
        """The call with what it lacks, where the program has an input, or one earlier output, of that very name."""
        found: dict[str, str] = {}
        for name in missing:
            outputs = [f"{c}.{name}" for c, made in self.results.items() if made and name in made]
            known = [name] if name in self.text.types else outputs
            if len(known) != 1:
                return None
            found[name] = known[0]
        return repairs.with_arguments(call, found)

    def _actual(self, node: ast.expr, otherwise: str = _NO_ARGUMENT) -> Actual:
        """An argument, or an output. otherwise: what to say of an expression that can be none."""
        try:
            return self._read_actual(node, otherwise)
        except Broken as broken:
            self.report.add(broken)
            return Actual(Ref())

    def _read_actual(self, node: ast.expr, otherwise: str) -> Actual:
        match node:
            case ast.Name(id=name) if name in self.text.types:
                return Actual(Ref(input=name), self.text.types[name])
            case ast.Attribute(value=ast.Name(id=name), attr=output) if name in self.results:
                return self._output(node, name, output)
            case ast.Name(id=name) if name in self.results:
                raise self._whole_call(node, name)
            case ast.Call(func=ast.Name(id="size"), args=[argument], keywords=[]):
                return self._size(argument)
            case ast.Name(id=name) if name in self.constants:
                return Actual(Ref(number=self.constants[name]), Type(TypeKind.SCALAR))
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return Actual(Ref(number=number(value, node)), Type(TypeKind.SCALAR))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
                value, bool
            ):
                return Actual(Ref(number=number(-value, node)), Type(TypeKind.SCALAR))
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)):
                known = [*self.text.types, *self.results, *self.constants]
                raise rules.UnknownName(
                    node, f"{name!r} is neither an input nor an earlier call{did_you_mean(name, known)}"
                )
        raise rules.ProgramStatement(node, f"{shown(node)} {otherwise}")

    def _whole_call(self, node: ast.Name, name: str) -> Broken:
        outputs = self.results[name]
        listed = ", ".join(f"{name}.{o}" for o in outputs) if outputs else f"{name}.output"
        fix = (node, f"{name}.{next(iter(outputs))}") if outputs and len(outputs) == 1 else None
        return rules.UnknownOutput(node, f"{name!r} is a call; name the output that is meant: {listed}", fix)

    def _output(self, node: ast.Attribute, call: str, output: str) -> Actual:
        outputs = self.results[call]
        if outputs is None:
            return Actual(Ref(call=call, output=output))
        if output not in outputs:
            close = nearest(output, outputs)
            fix = (node, f"{call}.{close}") if close else None
            raise rules.UnknownOutput(
                node,
                f"{call!r} has no output {output!r}{did_you_mean(output, outputs)}; it has "
                f"{', '.join(outputs) or 'none'}",
                fix,
            )
        return outputs[output]

    def _size(self, node: ast.expr) -> Actual:
        dim = dim_of(node)
        missing = sorted(dim.all_symbols - self.text.symbols)
        if missing and None not in self.text.types.values():
            raise rules.UnknownDim(
                node, f'no input of the program has the dim "{missing[0]}"{did_you_mean(missing[0], self.text.symbols)}'
            )
        return Actual(Ref(size=dim), Type(TypeKind.SIZE, (dim,)))

    def _check_prepared(self, checked: CheckedUnit, arguments: Arguments, call: ast.Call) -> None:
        if checked.text.kind != "prepare":
            return
        weights = (
            {i.name for i in self.signature.inputs if i.role == "weight"} if self.signature else set(self.text.types)
        )
        for name, (actual, node) in arguments.items():
            source = actual.ref.input
            tensor = actual.type is not None and actual.type.kind in (TypeKind.TENSOR, TypeKind.INDEX, TypeKind.PARTIAL)
            outside = source is not None and source not in weights
            if (tensor and (outside or (source is None and not actual.prepared))) or (outside and actual.type):
                self.report.add(
                    rules.PreparationInput(
                        node,
                        f"{checked.text.name}.{name}: {shown(node)} is no weight; only weights and prepared weights "
                        "enter a preparation, which runs once, outside the timed path",
                    )
                )

    # -- binding

    def _check_accumulated(self, checked: CheckedUnit, arguments: Arguments) -> None:
        """What a kernel accumulates into is a task input that the task marks in-place, and that nothing else reads."""
        values = (checked.outputs or {}).values()
        for name in [str(v.args[0].attrs["name"]) for v in values if v.word == "accumulate"]:
            actual, node = arguments[name]
            source = actual.ref.input
            marked = {i.name for i in self.signature.inputs if i.role == "in_place"} if self.signature else {source}
            reads = sum(isinstance(n, ast.Name) and n.id == source for s in self.text.node.body for n in ast.walk(s))
            if source is None or source not in marked or reads != 1:
                self.report.add(
                    rules.AccumulateUse(
                        node,
                        f"{checked.text.name}.{name}: {shown(node)} is accumulated into, so it must be an input "
                        "that the task marks in-place and that nothing else uses; or add it as a tile: out + x",
                    )
                )

    # -- outputs

    def _return(self, node: ast.Return) -> None:
        for name, key, item in return_items(node):
            if name in self.outputs:
                raise rules.DuplicateName(key, f"{name!r} is returned twice")
            actual = self._actual(item, _NO_OUTPUT)
            self.outputs[name] = actual.ref
            if self._check_output(item, actual) and self.signature:
                self._check_declared(item, name, actual)

    def _check_output(self, node: ast.expr, actual: Actual) -> bool:
        if actual.type is None:
            return False
        problem = None
        if actual.ref.call is None:
            problem = f"{shown(node)} is not computed; a program returns outputs of its calls"
        elif actual.prepared:
            problem = f"{shown(node)} is a prepared weight; a program returns outputs of kernels and finishers"
        elif actual.type.kind is TypeKind.PARTIAL:
            problem = f"{shown(node)} is a partial, whose shape depends on the tiling; finish it in a @finisher"
        if problem:
            self.report.add(rules.ProgramOutput(node, problem))
        return problem is None

    def _check_declared(self, node: ast.expr, name: str, actual: Actual) -> None:
        assert self.signature and actual.type
        declared = next((o for o in self.signature.outputs if o.name == name), None)
        if declared is None:
            return
        if actual.type.dims != declared.dims:
            self.report.add(
                rules.SignatureOutputs(
                    node,
                    f"the task's output {name!r} has the dims {listed(declared.dims)}, and {shown(node)} has "
                    f"{listed(actual.type.dims)}",
                )
            )
        value = actual.value
        if (
            value is not None
            and value.word == "cast"
            and value.attrs["dtype"] != declared.dtype.replace("e4m3fn", "e4m3")
        ):
            self.report.add(
                rules.SignatureOutputs(
                    node,
                    f"the task stores {name!r} as {declared.dtype}, and {shown(node)} is cast to "
                    f"{value.attrs['dtype']}",
                )
            )

"""Checks the @program: its calls, how each binds the dims of its unit, and what it returns."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coda_synth.coda_api import rules
from coda_synth.coda_api.body import assigned, return_items
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.finishing import Together
from coda_synth.coda_api.program import Call, Form, Ref, Signature, Type, TypeKind, Unit, Value
from coda_synth.coda_api.rules import Broken, Report, did_you_mean, nearest, shown
from coda_synth.coda_api.syntax import Number, UnitText, check_name, dim_of, number
from coda_synth.coda_api.words import NAMES


@dataclass(frozen=True, slots=True)
class CheckedUnit:
    """A unit after reading. unit: None where it is broken; outputs: None where even their names are not known."""

    text: UnitText
    unit: Unit | None
    outputs: Mapping[str, Value] | None
    together: tuple[Together, ...] = ()


@dataclass(frozen=True, slots=True)
class Actual:
    """Something that the program can pass on: where it comes from, its type and, for a partial, its tiling.

    type: None where an error hides it. tiling: the call and the reduced axis (0 rows, 1 columns). value: the unit's
    value behind an output.
    """

    ref: Ref
    type: Type | None = None
    tiling: tuple[str, int] | None = None
    value: Value | None = None
    prepared: bool = False


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
        binding = self._bind(call, checked, arguments)
        self._check_together(call, checked, arguments)
        self.results[name] = self._result(name, checked, binding)
        if checked.unit is not None and binding is not None:
            refs = {param: actual.ref for param, (actual, _) in arguments.items()}
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

    def _arguments(self, call: ast.Call, checked: CheckedUnit) -> dict[str, tuple[Actual, ast.expr]]:
        names = list(checked.text.types)
        unit = checked.text.name
        if len(call.args) > len(names) or any(isinstance(a, ast.Starred) for a in call.args):
            raise rules.CallArguments(
                call, f"{unit} takes {len(names)} arguments ({', '.join(names)}), not {len(call.args)}"
            )
        given: dict[str, ast.expr] = dict(zip(names, call.args, strict=False))
        for word in call.keywords:
            if word.arg not in names:
                raise rules.CallArguments(
                    word,
                    f"{unit} has no parameter {word.arg!r}{did_you_mean(str(word.arg), names)}; it takes {', '.join(names)}",
                )
            if word.arg in given:
                raise rules.CallArguments(word, f"{word.arg!r} is given twice")
            given[word.arg] = word.value
        missing = [name for name in names if name not in given]
        if missing:
            raise rules.CallArguments(call, f"{unit} takes {', '.join(names)}; {', '.join(missing)} is missing")
        return {name: (self._actual(given[name]), given[name]) for name in names}

    def _actual(self, node: ast.expr) -> Actual:
        try:
            return self._read_actual(node)
        except Broken as broken:
            self.report.add(broken)
            return Actual(Ref())

    def _read_actual(self, node: ast.expr) -> Actual:
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
        raise rules.ProgramStatement(
            node,
            f'{shown(node)} cannot be an argument; pass an input, an output of an earlier call (a.h), a number or size("D")',
        )

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
                f"{call!r} has no output {output!r}{did_you_mean(output, outputs)}; it has {', '.join(outputs) or 'none'}",
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

    def _check_prepared(
        self, checked: CheckedUnit, arguments: Mapping[str, tuple[Actual, ast.expr]], call: ast.Call
    ) -> None:
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
                        f"{checked.text.name}.{name}: {shown(node)} is no weight; only weights and prepared weights enter a preparation, "
                        "which runs once, outside the timed path",
                    )
                )

    # -- binding

    def _bind(
        self, call: ast.Call, checked: CheckedUnit, arguments: Mapping[str, tuple[Actual, ast.expr]]
    ) -> dict[str, Dim] | None:
        """The program's dim for every symbol of the unit; None where an error hides it."""
        if checked.unit is None:
            return None  # what is wrong with the unit is said already
        pending: list[tuple[Dim, Dim, str, ast.expr]] = []
        intact = True
        for name, (actual, node) in arguments.items():
            declared = checked.text.types[name]
            if declared is None or actual.type is None:
                intact = False
            elif not self._fits(node, checked, name, declared, actual.type):
                intact = False
            elif declared.dims:
                pending += [(d, a, name, node) for d, a in zip(declared.dims, actual.type.dims, strict=True)]
        binding = _solve([(local, given) for local, given, _, _ in pending])
        free = sorted(checked.text.symbols - binding.keys())
        if intact and free:
            raise rules.CallDim(
                call,
                f'{checked.text.name}: the dim "{free[0]}" follows from no argument; a parameter '
                f'{free[0].lower()}: Size["{free[0]}"] would bring it in',
            )
        for local, given, name, node in pending:
            if local.all_symbols <= binding.keys() and local.substitute(binding) != given:
                intact = False
                self._report_dim(node, checked, name, local, given, binding)
        return binding if intact else None

    def _fits(self, node: ast.expr, checked: CheckedUnit, name: str, declared: Type, given: Type) -> bool:
        problem = _misfit(declared, given, shown(node))
        if problem:
            rule = rules.CallDim if declared.kind is given.kind else rules.CallType
            self.report.add(
                rule(
                    node, f"{checked.text.name}.{name} is declared {declared}, and {shown(node)} is {given}; {problem}"
                )
            )
        return problem is None

    def _report_dim(
        self, node: ast.expr, checked: CheckedUnit, name: str, local: Dim, given: Dim, binding: Mapping[str, Dim]
    ) -> None:
        bound = ", ".join(f'"{s}" = "{binding[s]}"' for s in sorted(local.all_symbols))
        self.report.add(
            rules.CallDim(
                node,
                f'{checked.text.name}.{name}: {shown(node)} has the dim "{given}" where "{local}" is declared, which is '
                f'"{local.substitute(binding)}" here ({bound or "a number"})',
            )
        )

    def _check_together(
        self, call: ast.Call, checked: CheckedUnit, arguments: Mapping[str, tuple[Actual, ast.expr]]
    ) -> None:
        for group in checked.together:
            actuals = [arguments[name][0] for name in sorted(group.names)]
            if any(a.type is None or a.tiling is None for a in actuals):
                continue
            listed = " and ".join(sorted(shown(arguments[name][1]) for name in group.names))
            if len({a.tiling for a in actuals}) > 1:
                self.report.add(
                    rules.MixedTilings(
                        call,
                        f"{checked.text.name} (line {group.line}) combines {listed} tile by tile, but they come from different calls or dims",
                    )
                )
            elif group.moments and not _are_moments(*(arguments[name][0].value for name in group.moments)):
                self.report.add(
                    rules.MixedTilings(
                        call,
                        f"{checked.text.name} (line {group.line}): {listed} are not mean and m2 of one tile_moments, in that order",
                    )
                )

    def _result(self, name: str, checked: CheckedUnit, binding: dict[str, Dim] | None) -> dict[str, Actual] | None:
        if checked.outputs is None:
            return None
        prepared = checked.text.kind == "prepare"
        return {output: _actual_of(name, output, value, binding, prepared) for output, value in checked.outputs.items()}

    # -- outputs

    def _return(self, node: ast.Return) -> None:
        for name, key, item in return_items(node):
            if name in self.outputs:
                raise rules.DuplicateName(key, f"{name!r} is returned twice")
            actual = self._actual(item)
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
                    f"the task's output {name!r} has the dims {_listed(declared.dims)}, and {shown(node)} has {_listed(actual.type.dims)}",
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
                    f"the task stores {name!r} as {declared.dtype}, and {shown(node)} is cast to {value.attrs['dtype']}",
                )
            )


def check_signature(text: UnitText, outputs: Mapping[str, Ref], signature: Signature, report: Report) -> None:
    """Reports where parameters or output names of the program are not the task's."""
    wanted = {i.name: i.type for i in signature.inputs}
    arguments = {a.arg: a for a in text.node.args.args}
    for name, type in wanted.items():
        if name not in text.types:
            report.add(rules.SignatureParameters(text.node, f"the program lacks the task's input {name}: {type}"))
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
                )
            )
    named = [o.name for o in signature.outputs]
    returned = next((s for s in text.node.body if isinstance(s, ast.Return)), text.node)
    for name in named:
        if outputs and name not in outputs:
            report.add(rules.SignatureOutputs(returned, f"the program does not return the task's output {name!r}"))
    for name in outputs:
        if name not in named:
            report.add(
                rules.SignatureOutputs(
                    returned,
                    f"{name!r} is no output of the task {signature.name}{did_you_mean(name, named)}; its outputs are {', '.join(named)}",
                )
            )


def _solve(pairs: list[tuple[Dim, Dim]]) -> dict[str, Dim]:
    """Symbols of the unit from (local, given) pairs, simplest first; each from a pair where it alone is unknown."""
    pairs = sorted(pairs, key=lambda p: (len(p[0].powers), p[0].scale != 1))
    binding: dict[str, Dim] = {}
    progress = True
    while progress:
        progress = False
        for local, given in pairs:
            missing = [(s, p) for s, p in local.powers if s not in binding]
            if len(missing) == 1 and abs(missing[0][1]) == 1:
                symbol, power = missing[0]
                rest = Dim(local.scale, tuple((s, p) for s, p in local.powers if s != symbol)).substitute(binding)
                binding[symbol] = given / rest if power == 1 else rest / given
                progress = True
    return binding


def _misfit(declared: Type, given: Type, text: str) -> str | None:
    """Why an argument of one type cannot be passed for another; None where its kind and rank fit."""
    if declared.kind is given.kind:
        if len(declared.dims) == len(given.dims):
            return None
        return f"{len(declared.dims)} dims are declared and {len(given.dims)} given"
    match declared.kind, given.kind:
        case _, TypeKind.PARTIAL:
            return "a partial goes to a finisher's Partial parameter; finish it there (total_...) and pass the result"
        case TypeKind.PARTIAL, _:
            return "a Partial parameter takes what tile_... returned"
        case TypeKind.SIZE, _:
            return f'pass size("{declared.dims[0]}") of the program\'s dim'
        case TypeKind.SCALAR, TypeKind.SIZE:
            return 'declare the parameter as Size["D"], and read it with size("D")'
        case TypeKind.TENSOR, TypeKind.INDEX:
            return "declare the parameter as Index"
        case TypeKind.INDEX, TypeKind.TENSOR:
            return "an Index parameter takes an integer vector of the task"
    return "the kinds differ"


def _actual_of(call: str, output: str, value: Value, binding: Mapping[str, Dim] | None, prepared: bool) -> Actual:
    ref = Ref(call=call, output=output)
    if binding is None or value.form is Form.UNKNOWN:
        return Actual(ref, prepared=prepared)
    if value.form is Form.SUM:
        return Actual(ref, Type(TypeKind.SCALAR), value=value)
    dims = tuple(d.substitute(binding) for d in (value.rows, value.cols) if d is not None)
    if value.form is Form.PARTIAL:
        axis = value.attrs["axis"]
        return Actual(ref, Type(TypeKind.PARTIAL, dims), (call, axis), value)  # type: ignore[arg-type]
    return Actual(ref, Type(TypeKind.TENSOR, dims), value=value, prepared=prepared)


def _are_moments(mean: Value | None, m2: Value | None) -> bool:
    if mean is None or m2 is None or mean.word != "part" or m2.word != "part":
        return False
    source = mean.args[0]
    return source is m2.args[0] and source.word == "tile_moments" and (mean.attrs["index"], m2.attrs["index"]) == (0, 1)


def _listed(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(f'"{d}"' for d in dims) + "]" if dims else "none (a scalar)"

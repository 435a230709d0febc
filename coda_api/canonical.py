"""One text for all programs that are the same: names, order and spelling taken out, schedules kept apart.

Two programs with one canonical form make the same launches, with the same arithmetic, on the same tensors; whoever has
judged one under a schedule has judged the other under it. The converse is not claimed: programs may differ in form and
agree in every result. What is normalised: names of units, calls, locals, their parameters and symbols; the order of
units, independent calls and outputs; dead code; the order of commutative operands; x > y against y < x; x ** 2 against
x * x; x - y against x + -y.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import Call, Kernel, Preparation, Program, Ref, Value, walk
from coda_synth.coda_api.schedule import Schedule

_COMMUTES = {"add": 2, "mul": 2, "maximum": 2, "minimum": 2, "and": 2, "or": 2, "eq": 2, "ne": 2, "fma": 2}
_TURNED = {"gt": "lt", "ge": "le"}


def canonical(program: Program) -> str:
    """The form, one line a value, each named by the hash of what it is made of."""
    return _Form(program).text()


def schedules(program: Program, overrides: Mapping[str, Schedule] | None = None) -> str:
    """What the form leaves out: the hints of every live kernel call, in the same names. overrides: by call."""
    form, lines = _Form(program), []
    for call in program.live_calls():
        if isinstance(call.unit, Kernel):
            chosen = (overrides or {}).get(call.name)
            hints = repr(chosen) if chosen else ", ".join(f"{n}={v}" for n, v in sorted(call.unit.hints.items()))
            lines.append(f"{form.call(call)}: {hints}")
    return "\n".join(sorted(lines))


def call_names(program: Program) -> dict[str, str]:
    """What the form calls each live call: equal in programs of one form, whatever their authors call them."""
    form = _Form(program)
    return {call.name: form.call(call) for call in program.live_calls()}


def kernel_forms(program: Program) -> frozenset[str]:
    """Each live kernel's arithmetic by itself, whatever it is called with; those left out that store a bare product."""
    calls = [c for c in program.live_calls() if isinstance(c.unit, Kernel)]
    return frozenset(_alone(program, call) for call in calls if not _bare(program, call))


def _bare(program: Program, call: Call) -> bool:
    return all(call.unit.outputs[name].word == "gemm" for name in program.live_outputs(call))


def _alone(program: Program, call: Call) -> str:
    """A kernel's form with its parameters and symbols numbered in the order in which the values use them."""
    values = list(walk([call.unit.outputs[name] for name in program.live_outputs(call)]))
    gemm = call.unit.gemm if isinstance(call.unit, Kernel) else None
    read = [*([gemm.a, gemm.b] if gemm else []), *(str(v.attrs["name"]) for v in values if v.word == "param")]
    types = {p.name: p.type for p in call.unit.params}
    args = {name: Ref(input=f"{number}") for number, name in enumerate(dict.fromkeys(read))}
    used = dict.fromkeys(s for name in args for d in types[name].dims for s in sorted(d.symbols))
    dims = {symbol: Dim.symbol(f"D{number}") for number, symbol in enumerate(used)}
    return _Form(program).call(replace(call, args={**call.args, **args}, binding={**call.binding, **dims}))


@dataclass
class _Form:
    """Names values and calls by the hash of their line; equal lines have one name."""

    program: Program
    lines: dict[str, str] = field(default_factory=dict)  # name -> line, operands first
    calls: dict[str, str] = field(default_factory=dict)  # call -> its name
    made: dict[tuple[str, int], str] = field(default_factory=dict)  # (call, value) -> its name

    def text(self) -> str:
        launches = sorted(self.call(call) for call in self.program.live_calls())
        outputs = sorted(f"return {name} = {self.ref(ref)}" for name, ref in self.program.outputs.items())
        inputs = [f"input {p.name}: {p.type}" for p in self.program.params]
        values = sorted(f"{name} = {line}" for name, line in self.lines.items())
        return "\n".join([*inputs, *values, *(f"launch {name}" for name in launches), *outputs]) + "\n"

    def call(self, call: Call) -> str:
        """A live call by what it launches: unit kind, dims, GEMM, and the live values that it stores."""
        if call.name not in self.calls:
            stored = sorted(self.value(call, call.unit.outputs[name]) for name in self.program.live_outputs(call))
            self.calls[call.name] = self._name(f"{self._head(call)} stores {', '.join(stored)}")
        return self.calls[call.name]

    def _head(self, call: Call) -> str:
        unit = call.unit
        if isinstance(unit, Kernel):
            over = f"kernel {call.dim(unit.rows)} x {call.dim(unit.cols)}"
            return f"{over} {self._gemm(call, unit)}" if unit.gemm else over
        return "prepare" if isinstance(unit, Preparation) else f"finisher {call.dim(unit.dim)}"

    def _gemm(self, call: Call, unit: Kernel) -> str:
        gemm = unit.gemm
        assert gemm
        a, b = (self.ref(call.args[name]) for name in (gemm.a, gemm.b))
        layout = f"{'T' if gemm.a_transposed else 'N'}{'T' if gemm.b_transposed else 'N'}"
        return f"gemm {layout} {a} {b} along {call.dim(gemm.inner)}"

    def ref(self, ref: Ref) -> str:
        if ref.input is not None:
            return f"input:{ref.input}"
        if ref.number is not None:
            return f"number:{float(ref.number)!r}" if isinstance(ref.number, float) else f"number:{ref.number}"
        if ref.size is not None:
            return f"size:{ref.size}"
        call = next(c for c in self.program.calls if c.name == ref.call)
        return f"{self.call(call)}.{self.value(call, call.unit.outputs[str(ref.output)])}"

    def value(self, call: Call, value: Value) -> str:
        key = (call.name, id(value))
        if key not in self.made:
            self.made[key] = self._made(call, value)
        return self.made[key]

    def _made(self, call: Call, value: Value) -> str:
        if value.word == "gemm":
            assert isinstance(call.unit, Kernel)
            return self._name(self._gemm(call, call.unit))
        args = [self.value(call, a) for a in value.args]
        word, attrs = value.word, dict(value.attrs)
        if word == "param":
            return self._name(f"{self.ref(call.args[str(attrs['name'])])}{self._over(call, value)}")
        if word == "sub":
            word, args = "add", [args[0], self._name(f"neg({args[1]}){self._over(call, value.args[1])}")]
        if word == "pow" and attrs.get("exponent") == 2:
            word, args, attrs = "mul", args * 2, {}
        if word in _TURNED:
            word, args = _TURNED[word], args[::-1]
        if word in _COMMUTES:
            free = _COMMUTES[word]
            args = [*sorted(args[:free]), *args[free:]]
        said = "".join(f" {name}={_attr(call, v)}" for name, v in sorted(attrs.items()) if name != "name")
        return self._name(f"{word}({', '.join(args)}){said}{self._over(call, value)}")

    def _over(self, call: Call, value: Value) -> str:
        """Over which of rows and columns a value lies: two symbols of a unit may be one dim of the program."""
        dims = ("" if d is None else str(call.dim(d)) for d in (value.rows, value.cols))
        return f" [{' | '.join(dims)}] {value.kind} {value.form}"

    def _name(self, line: str) -> str:
        name = hashlib.sha256(line.encode()).hexdigest()[:16]
        self.lines[name] = line
        return name


def _attr(call: Call, value: object) -> str:
    return str(call.dim(value)) if isinstance(value, Dim) else str(value)

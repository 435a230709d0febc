"""From what went wrong back to the candidate's own text: which call an output, or a line of generated code, is of."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.program import Call, Program
from coda_synth.evaluator.facts import Place


def output_places(program: Program) -> dict[str, Place]:
    """By output of the program; what a program hands through from an input has no place."""
    calls = {call.name: call for call in program.calls}
    return {
        output: _place(calls[ref.call], ref.output)
        for output, ref in program.outputs.items()
        if ref.call is not None and ref.output is not None
    }


def call_places(program: Program) -> dict[str, Place]:
    """By call that does something: the first value that it returns; and each one's by "call.value"."""
    calls = program.live_calls()
    first = {call.name: _place(call, program.live_outputs(call)[0]) for call in calls}
    return first | {
        f"{call.name}.{value}": _place(call, value) for call in calls for value in program.live_outputs(call)
    }


def _place(call: Call, output: str) -> Place:
    value, unit = call.unit.outputs[output], call.unit
    return Place(call.name, call.line, unit.name, unit.line, value.line, value.column)


def call_of(generated: Generated, function: str) -> str | None:
    """The call whose launch runs a function of the generated module, or a part of it; None for a shared one."""
    kernels = {launch.kernel: launch.call for launch in reversed(generated.launches)}  # the first call wins
    own = [kernel for kernel in kernels if function == kernel or function.startswith(f"{kernel}_")]
    return kernels[max(own, key=len)] if own else None


def raised_in(generated: Generated, filename: str, error: BaseException) -> str | None:
    """The call in whose generated code (a module at `filename`) an exception, or what caused it, came up."""
    found = (call_of(generated, name) for name in _functions(filename, error))
    return next((call for call in found if call), None)


def _functions(filename: str, error: BaseException | None) -> Iterator[str]:
    """Functions of one file under the exception's causes, the innermost first."""
    seen = set()
    chain: list[BaseException] = []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.append(error)
        error = error.__cause__ or error.__context__
    for cause in reversed(chain):
        yield from reversed([name for name in _frames(filename, cause.__traceback__)])


def _frames(filename: str, trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == filename:
            yield code.co_name
        trace = trace.tb_next

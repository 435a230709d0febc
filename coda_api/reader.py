"""Reads a candidate's text into a checked Program. Nothing of the text is ever imported, executed or evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coda_synth.coda_api.arranging import read_preparation
from coda_synth.coda_api.binding import CheckedUnit
from coda_synth.coda_api.epilogue import read_kernel
from coda_synth.coda_api.finishing import read_finisher
from coda_synth.coda_api.program import Program, Signature
from coda_synth.coda_api.report import Report
from coda_synth.coda_api.shape_check import check_dtypes, check_shapes
from coda_synth.coda_api.signatures import check_signature
from coda_synth.coda_api.syntax import File, Number, UnitText, parse
from coda_synth.coda_api.wiring import Wiring


def read(text: str, signature: Signature | None = None, shapes: Sequence[Mapping[str, int]] = ()) -> Program:
    """The program that a text in the candidate language describes.

    With a signature, the program's parameters and outputs must equal it, and only its weights enter preparations. With
    shapes, the sizes of the signature's dims each, the program must have a lowering at all of them.
    Raises ProgramError with every diagnostic of the text, in order.
    """
    report = Report(text)
    file = parse(text, report)
    units = {name: _read_unit(unit, file.constants, report) for name, unit in file.units.items()}
    program = _read_program(text, file, units, signature, shapes, report)
    report.raise_if_any()
    assert program is not None
    return program


def _read_unit(unit: UnitText, constants: Mapping[str, Number], report: Report) -> CheckedUnit:
    if unit.kind == "kernel":
        return CheckedUnit(unit, *read_kernel(unit, constants, report))
    if unit.kind == "finisher":
        return CheckedUnit(unit, *read_finisher(unit, constants, report))
    return CheckedUnit(unit, *read_preparation(unit, constants, report))


def _read_program(
    text: str,
    file: File,
    units: Mapping[str, CheckedUnit],
    signature: Signature | None,
    shapes: Sequence[Mapping[str, int]],
    report: Report,
) -> Program | None:
    if not file.programs:
        return None
    program = file.programs[0]
    wanted = {i.name: i.type for i in signature.inputs} if signature else {}
    trusted = replace(program, types={name: wanted.get(name, type) for name, type in program.types.items()})
    wiring = Wiring(trusted, units, file.constants, signature, report, file.broken)
    wiring.read()
    if signature:
        check_signature(program, wiring.outputs, signature, report)
    sound = {name: checked.unit for name, checked in units.items() if checked.unit is not None}
    made = Program(program.name, program.params, tuple(wiring.calls), wiring.outputs, sound, file.docstring, text)
    clean = report.empty
    check_shapes(made, wiring.nodes, shapes, report, clean)
    if signature and clean:
        check_dtypes(made, wiring.nodes, signature, report)
    return made

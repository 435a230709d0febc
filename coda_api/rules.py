"""The rules of the language as error classes, one a rule, and the words in which they are said.

A rule's docstring states it; the message at a place says what was written, what is allowed, and what to do.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable

_SHOWN = 48
Repair = tuple[ast.AST, str]  # a node, and the text to put in its place


class Broken(Exception):
    """A rule that a candidate breaks at a node. `replace` offers a repair."""

    def __init__(self, node: ast.AST | None, message: str, replace: Repair | None = None) -> None:
        super().__init__(message)
        self.node, self.message, self.replace = node, message, replace


# -- the text


class TextTooLarge(Broken):
    """A candidate is a short text."""


class BrokenSyntax(Broken):
    """A candidate has Python's syntax."""


class TooDeep(Broken):
    """Expressions nest a little, and a unit is a short straight line."""


class TopLevel(Broken):
    """A file holds @prepare, @kernel, @finisher, one @program, and NAME = number."""


class DecoratorNeeded(Broken):
    """A function is exactly one of @kernel, @finisher, @prepare, @program."""


class OneProgram(Broken):
    """A file has one @program."""


class DuplicateName(Broken):
    """A unit, parameter, output or call has a name of its own."""


class ReservedName(Broken):
    """Words, types and constants of the language keep their meaning, and parameters theirs."""


class BadName(Broken):
    """Names are ASCII letters, digits and underscores, and no Python keyword."""


class ConstantValue(Broken):
    """A top-level name is a number."""


class NumberRange(Broken):
    """Numbers fit 32-bit integers and 32-bit floats."""


# -- functions


class ParameterList(Broken):
    """Parameters are plain: no defaults, no *args, no keyword-only ones, each with a type."""


class TypeNeeded(Broken):
    """A type is Tensor["M", "K"], Index["M"], Partial["M", "N"], Scalar or Size["D"], where the unit can take it."""


class DimSyntax(Broken):
    """A dimension is a product of a number and symbols, in quotes."""


class StatementForm(Broken):
    """A unit is straight-line: assignments, and one return at its end."""


class ReturnForm(Broken):
    """A unit returns its outputs by name."""


class ScheduleHint(Broken):
    """Keywords of @kernel are schedule hints that can work."""


# -- expressions


class ExpressionForm(Broken):
    """Expressions are made of names, numbers, operators and words."""


class UnknownName(Broken):
    """A name is defined before it is read."""


class UnknownWord(Broken):
    """The vocabulary is closed."""


class WordPlace(Broken):
    """A word stands only where it has a meaning."""


class WordArguments(Broken):
    """A word takes the arguments of its signature, by position."""


class UnknownDim(Broken):
    """A unit knows the dims of its parameters, and no other."""


class Unpacking(Broken):
    """A word with several values is unpacked into as many names."""


class PowerForm(Broken):
    """Powers are ** 2 and ** 3."""


class OneComparison(Broken):
    """Comparisons are made one at a time."""


class BooleanForm(Broken):
    """Conditions combine with &, | and ~."""


class KindMismatch(Broken):
    """Numbers, integers and conditions are told apart."""


class DimMismatch(Broken):
    """Values combine where their dims have the same names."""


# -- kernels


class OneGemm(Broken):
    """A kernel is one GEMM."""


class GemmOperand(Broken):
    """gemm takes two different matrix parameters, as they lie."""


class Contraction(Broken):
    """The operands of a gemm share exactly one dim."""


class TileDims(Broken):
    """A kernel's rows and columns are each one symbol, perhaps times a number, and not the same one."""


class NotOverTile(Broken):
    """An epilogue sees its own tile only."""


class PartialUse(Broken):
    """What one tile gives to a finisher cannot be used in its own kernel."""


class ReduceDim(Broken):
    """A reduction names the dim of its value along which it works; moments and logsumexp work along columns."""


class GroupSize(Broken):
    """A group is a number of columns, or a dim of known size that is not the tile's own."""


class TileFit(Broken):
    """Groups divide the columns that they lie in, and lie whole in a tile, at every shape of the task."""


class DimSize(Broken):
    """A dim is a whole number at every shape of the task."""


class OperandDtype(Broken):
    """The operands of a gemm have one dtype."""


class VectorStored(Broken):
    """Kernels store tiles, partials and picks."""


class StoredKind(Broken):
    """What is stored is a float."""


class CastDtype(Broken):
    """cast names a floating dtype."""


class AccumulateUse(Broken):
    """accumulate adds into a parameter that is used nowhere else, outermost in a returned value."""


# -- finishers


class FinisherDim(Broken):
    """A finisher works along one dim."""


class PartialNeeded(Broken):
    """total_* finish partials."""


class PartialLeft(Broken):
    """A finisher finishes its partials."""


class MixedTilings(Broken):
    """Partials combine tile by tile if they come from one call and one dim."""


class SumUse(Broken):
    """A sum leaves the finisher before a vector can use it."""


class FinisherOutput(Broken):
    """Finishers return vectors and sums."""


# -- preparations


class PreparationDim(Broken):
    """A rearrangement names one dim of two equally shaped weights."""


class AmbiguousDim(Broken):
    """Nothing is inferred where both dims of a matrix have the name."""


class PreparationInput(Broken):
    """Only weights, and what other preparations made of them, enter a preparation."""


# -- the program


class ProgramStatement(Broken):
    """A program is calls of units, and a return of their outputs."""


class UnknownUnit(Broken):
    """A program calls the units of its file."""


class CallArguments(Broken):
    """A call gives every parameter of the unit one argument."""


class CallType(Broken):
    """An argument is of the kind that the parameter declares."""


class CallDim(Broken):
    """The dims of an argument fit those of the parameter, under one binding of the unit's symbols."""


class UnknownOutput(Broken):
    """A call has the outputs that its unit returns."""


class ProgramOutput(Broken):
    """A program returns finished results of kernels and finishers."""


class ProgramName(Broken):
    """The program has the name of its task."""


class SignatureParameters(Broken):
    """The program takes exactly the task's inputs."""


class SignatureOutputs(Broken):
    """The program returns exactly the task's outputs."""


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option spelt most like `name`, if any is close."""
    known = list(options)
    same = [o for o in known if o.lower() == name.lower()]
    return next(iter(same or difflib.get_close_matches(name[:_SHOWN], known, n=1, cutoff=0.6)), None)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """ "; did you mean 'sigmoid'?", or nothing."""
    return f"; did you mean {close!r}?" if (close := nearest(name, options)) else ""


def shown(node: ast.AST) -> str:
    """A node as text, shortened for a message."""
    text = ast.unparse(node).replace("\n", " ")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

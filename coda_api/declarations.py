"""What a name may be, and the types and dims that parameters declare."""

from __future__ import annotations

import ast
import functools
import keyword
import re

from coda_synth.coda_api import rules
from coda_synth.coda_api.dims import Dim, DimSyntaxError
from coda_synth.coda_api.program import Type, TypeKind
from coda_synth.coda_api.rules import did_you_mean, nearest, shown
from coda_synth.coda_api.words import CONSTANTS, DECORATORS, NAMES, TYPES

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}\Z")
_DIM = re.compile(r"[A-Za-z0-9_*/() ]{1,60}\Z")
_RANK = {TypeKind.TENSOR: (1, 2), TypeKind.PARTIAL: (2, 2), TypeKind.INDEX: (1, 1), TypeKind.SIZE: (1, 1)}
_TAKES = {
    "kernel": (TypeKind.TENSOR, TypeKind.INDEX, TypeKind.SCALAR, TypeKind.SIZE),
    "finisher": (TypeKind.TENSOR, TypeKind.PARTIAL, TypeKind.INDEX, TypeKind.SCALAR, TypeKind.SIZE),
    "prepare": (TypeKind.TENSOR, TypeKind.SCALAR, TypeKind.SIZE),
    "program": (TypeKind.TENSOR, TypeKind.INDEX, TypeKind.SCALAR, TypeKind.SIZE),
}
_NOT_TAKEN = {
    TypeKind.PARTIAL: "partials go to finishers only: finish it with total_sum or the like, and pass the result",
    TypeKind.INDEX: "preparations rearrange weights, which are tensors",
}


def declared_type(arg: ast.arg, kind: str) -> Type:
    forms = 'Tensor["M", "K"], Tensor["N"], Index["M"], Scalar, Size["D"]' + (
        ', Partial["M", "N"]' if kind == "finisher" else ""
    )
    match arg.annotation:
        case None:
            raise rules.TypeNeeded(arg, f"{arg.arg!r} has no type; write one of {forms}")
        case ast.Name(id="Scalar"):
            return Type(TypeKind.SCALAR)
        case ast.Subscript(value=ast.Name(id=name), slice=inside) if name in TYPES and name != "Scalar":
            return _checked_type(arg, kind, TypeKind(name), inside)
        case other:
            name = shown(other.value if isinstance(other, ast.Subscript) else other)
            raise rules.TypeNeeded(
                other,
                f"{shown(other)} is not a type{did_you_mean(name, TYPES)}; write one of {forms}",
                _type_meant(other, name),
            )


def _type_meant(written: ast.expr, name: str) -> rules.Repair | None:
    if isinstance(written, ast.Name) and name in ("float", "int"):
        return written, "Scalar"
    close = nearest(name, TYPES)
    return (written.value if isinstance(written, ast.Subscript) else written, close) if close else None


def _checked_type(arg: ast.arg, unit: str, kind: TypeKind, inside: ast.expr) -> Type:
    items = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    dims = tuple(dim_of(item) for item in items)
    least, most = _RANK[kind]
    if not least <= len(dims) <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}"
        raise rules.TypeNeeded(
            arg, f"{kind.value} has {wanted} dims, not {len(dims)}; leading batch dims are flattened by the task"
        )
    if kind not in _TAKES[unit]:
        raise rules.TypeNeeded(arg, f"{arg.arg!r}: a @{unit} cannot take a {kind.value}: {_NOT_TAKEN[kind]}")
    if unit == "finisher" and kind is TypeKind.TENSOR and len(dims) == 2:
        raise rules.FinisherDim(
            arg, f"{arg.arg!r}: a finisher never sees a matrix, only vectors and partials; use a kernel"
        )
    return Type(kind, dims)


def dim_of(node: ast.expr) -> Dim:
    """The dimension that a quoted text names; raises DimSyntax."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _dim(node.value)
        except DimSyntaxError:
            pass
        raise rules.DimSyntax(
            node,
            f'{shown(node)} is not a dimension; write a product of a number and symbols, as "N", "2*N", "N/2" or "N/H"',
        )
    text = shown(node)
    quoted = f'"{text}"' if _DIM.match(text) else None
    fix = (node, quoted) if quoted else None
    raise rules.DimSyntax(node, f"{text} must be a dimension in quotes" + (f", as {quoted}" if quoted else ""), fix)


@functools.lru_cache(maxsize=1024)
def _dim(text: str) -> Dim:
    if not _DIM.match(text):
        raise DimSyntaxError(text)
    try:
        return Dim.parse(text)
    except (RecursionError, MemoryError, ValueError):
        raise DimSyntaxError(text) from None


def check_name(name: str, node: ast.AST, what: str) -> None:
    """Raises BadName or ReservedName where `name` cannot name a unit, parameter, output, call or constant."""
    if keyword.iskeyword(name):
        raise rules.BadName(node, f"{name!r} is a keyword of Python and cannot name {what}; choose another name")
    if not _NAME.match(name):
        raise rules.BadName(
            node, f"{name[:60]!r} cannot name {what}; use ASCII letters, digits and underscores, a letter first"
        )
    if name in NAMES or name in TYPES or name in CONSTANTS or name in DECORATORS:
        raise rules.ReservedName(node, f"{name!r} belongs to the language and cannot name {what}; choose another name")

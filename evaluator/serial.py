"""One serializer for every frozen dataclass that crosses a process or reaches the disk: to JSON values and back."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from coda_synth.coda_api.dims import Dim


class SerialError(ValueError):
    """The data does not have the shape of the type; the message says where."""


def to_data(value: Any) -> Any:
    """A dataclass (or a container of them) as dicts, lists, strings, numbers, bools and None; a Dim as its text."""
    if isinstance(value, Dim):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_data(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_data(v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise SerialError(f"a {type(value).__name__} cannot be written as data")


def from_data(kind: Any, data: Any, where: str = "value") -> Any:
    """The inverse of to_data for the annotated type `kind`. Unknown keys are ignored: older code reads newer runs."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return data
    if kind is Dim:
        return Dim.parse(_expect(str, data, where))
    if origin in (typing.Union, types.UnionType):
        return _from_union(args, data, where)
    if origin is tuple:
        return _from_tuple(args, data, where)
    if origin is list:
        return [from_data(args[0], v, f"{where}[{i}]") for i, v in enumerate(_expect(list, data, where))]
    if origin is not None and issubclass(origin, Mapping):
        return {k: from_data(args[1], v, f"{where}.{k}") for k, v in _expect(dict, data, where).items()}
    if dataclasses.is_dataclass(kind):
        return _from_dataclass(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return _expect(kind, data, where)


def _expect(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise SerialError(f"{where}: expected {kind.__name__}, found {type(data).__name__}")
    return data


def _from_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in args:
        return None
    failure: Exception | None = None
    for option in args:
        if option is type(None):
            continue
        try:
            return from_data(option, data, where)
        except (SerialError, ValueError, TypeError) as error:
            failure = error
    raise SerialError(f"{where}: {failure}")


def _from_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    items = _expect(list, data, where)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(from_data(args[0], v, f"{where}[{i}]") for i, v in enumerate(items))
    if len(args) != len(items):
        raise SerialError(f"{where}: expected {len(args)} items, found {len(items)}")
    return tuple(from_data(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, items, strict=True)))


def _from_dataclass(kind: Any, data: Any, where: str) -> Any:
    fields = _expect(dict, data, where)
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind) if f.init}
    missing = [
        name
        for name, f in known.items()
        if name not in fields and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SerialError(f"{where}: {kind.__name__} lacks {', '.join(missing)}")
    return kind(**{n: from_data(hints[n], fields[n], f"{where}.{n}") for n in known if n in fields})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)

"""Arguments that benchmarks share: what cannot be meant is refused by the parser, in a line. Needs no torch."""

from __future__ import annotations

import math
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from coda_synth.tasks.catalog import UnknownTask, task, task_names

T = TypeVar("T")


def on_cpu() -> bool:
    """Whether the command line says --device cpu: asked before it is parsed, as triton decides at import."""
    return bool({"cpu", "--device=cpu"} & set(sys.argv[1:]))


def task_name(text: str) -> str:
    if text not in task_names():
        raise ArgumentTypeError(str(UnknownTask(text)))
    return text


def one_of(kind: str, names: Collection[str]) -> Callable[[str], str]:
    """For arguments of which there may be none, where argparse's own choices do not do."""

    def argument(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"there is no {kind} {text!r}; there are {', '.join(map(repr, names))}")
        return text

    return argument


def count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def duration(text: str) -> float:
    """0 stands for as few runs as can be."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return found


def output(text: str) -> Path:
    """A file that can be written; found out before the work whose result it is to hold."""
    path = Path(text)
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        raise ArgumentTypeError(f"{text} is a folder, or in none that exists; name a file in a folder that is there")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written; name a file that can")
    return path


def read_by(read: Callable[[Path], T], what: str) -> Callable[[str], T]:
    """A file, read. what: it is meant to hold, for the one who named another."""

    def argument(text: str) -> T:
        try:
            return read(Path(text))
        except OSError as error:
            raise ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from error
        except Exception as error:  # whatever a file of another kind trips up
            why = str(error).partition("\n")[0]
            raise ArgumentTypeError(f"{text} is not {what}: {type(error).__name__}: {why}") from error

    return argument


def check_shape(parser: ArgumentParser, names: Iterable[str], shape: str) -> None:
    """Ends the program where one of these tasks has no shape of this name."""
    for name in names:
        if shape not in (known := task(name).time_shapes):
            parser.error(f"argument --shape: {name} has no shape {shape!r}; it has {', '.join(known)}")

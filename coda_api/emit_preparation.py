"""A preparation as torch text: rearrangements keep their dtype, arithmetic is done in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.expressions import LoweringError, Names, number
from coda_synth.coda_api.program import Value, walk
from coda_synth.coda_api.spelling import INFIX
from coda_synth.coda_api.storage import torch_name

REARRANGEMENTS = frozenset({"param", "interleave", "concat", "join", "transpose"})


def is_rearrangement(value: Value) -> bool:
    """Only moves elements, so it keeps their dtype."""
    return all(v.word in REARRANGEMENTS for v in walk([value]))


class PreparationEmitter:
    """Writes the outputs of one call as torch expressions over `names`, the texts of its arguments."""

    def __init__(self, names: Mapping[str, str], sizes: Mapping[str, int], count: Counter[int], fresh: Names) -> None:
        self.names, self.sizes, self.count, self.fresh = names, sizes, count, fresh
        self.lines: list[str] = []
        self._done: dict[int, str] = {}

    def text(self, value: Value, dtype: str) -> str:
        """A returned value, contiguous, in its stored torch dtype. `lines` holds the statements that it needs first."""
        if is_rearrangement(value):
            return f"{self._moved(value)}.contiguous()"
        return f"{self._double(value)}.to(torch.{dtype}).contiguous()"

    def _moved(self, value: Value) -> str:
        """A rearrangement of parameters, in their own dtype."""
        if value.word == "param":
            return self.names[str(value.attrs["name"])]
        return self._rearranged(value, [self._moved(arg) for arg in value.args])

    def _rearranged(self, value: Value, args: list[str]) -> str:
        if value.word == "transpose":
            return f"{args[0]}.T"
        axis = value.attrs["axis"]
        assert isinstance(axis, int)
        if value.word == "concat":
            return f"torch.cat(({', '.join(args)}), {axis})"
        if value.word == "interleave":
            return f"torch.stack(({', '.join(args)}), {axis + 1}).flatten({axis}, {axis + 1})"
        group = value.attrs["group"]
        assert isinstance(group, Dim)
        blocks = [f"{a}.unflatten({axis}, (-1, {group.size(self.sizes) // 2}))" for a in args]
        return f"torch.stack(({', '.join(blocks)}), {axis + 1}).flatten({axis}, {axis + 2})"

    def _double(self, value: Value) -> str:
        """A float64 text that binds as an atom; what is used twice is computed once."""
        if id(value) not in self._done:
            text = self._double_text(value)
            if self.count[id(value)] > 1 and value.word not in ("number", "size"):
                name = self.fresh.new("t")
                self.lines.append(f"{name} = {text}")
                text = name
            self._done[id(value)] = text
        return self._done[id(value)]

    def _double_text(self, value: Value) -> str:
        if is_rearrangement(value):
            return f"{self._moved(value)}.double()"
        if value.word == "number":
            return number(value.attrs["value"])
        if value.word == "size":
            dim = value.attrs["dim"]
            assert isinstance(dim, Dim)
            return str(dim.size(self.sizes))
        if value.word == "cast":
            return f"{self._double(value.args[0])}.to(torch.{torch_name(str(value.attrs['dtype']))}).double()"
        if value.word in REARRANGEMENTS:
            return self._rearranged(value, [self._double(arg) for arg in value.args])
        if value.word == "matvec":
            matrix, vector = value.args
            turned = ".T" if value.attrs["axis"] == 0 else ""
            return f"({self._double(matrix)}{turned} @ {self._double(vector)})"
        args = [f"{self._double(arg)}{self._broadcast(arg, value)}" for arg in value.args]
        if value.word == "neg":
            return f"(-{args[0]})"
        if value.word == "pow":
            return f"({args[0]} ** {value.attrs['exponent']})"
        if value.word in INFIX:
            return f"({args[0]} {INFIX[value.word][0]} {args[1]})"
        raise LoweringError(f"{value.line}:{value.column}: {value.word} has no spelling in a preparation")

    @staticmethod
    def _broadcast(arg: Value, result: Value) -> str:
        """A vector over the rows of a matrix stands upright."""
        upright = arg.cols is None and arg.rows is not None and result.cols is not None and arg.rows == result.rows
        return "[:, None]" if upright else ""

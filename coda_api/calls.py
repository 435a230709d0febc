"""Reads calls of words: which word, where it may stand, and its arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.declarations import dim_of
from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.formulas import Formulas, is_unknown, rename, unknown
from coda_synth.coda_api.program import Value
from coda_synth.coda_api.rules import Broken, did_you_mean, nearest, shown
from coda_synth.coda_api.words import DTYPES, HABITS, LOOKUP, NAMES, WORDS, Place, Word


class Calls(Formulas):
    """A unit's expressions with its words. Subclasses say what each word's dims must be."""

    meanings: ClassVar[Mapping[str, Callable[[Any, ast.Call, Word, list[Value], dict[str, Any]], Value]]] = {}

    def call(self, node: ast.Call) -> Value:
        if not isinstance(node.func, ast.Name):
            raise self._attribute_call(node)
        word = LOOKUP.get((self.place, node.func.id))
        if word is None or word.symbol:
            for argument in node.args:
                if not isinstance(argument, ast.Constant):
                    self.value(argument)
            raise self._not_a_word(node, node.func)
        values, attrs = self._arguments(node, word)
        if is_unknown(values):
            return unknown(node)
        if word.rule in ("elementwise", "where"):
            return self.elementwise(node, word, values, attrs)
        return self.meanings[word.rule](self, node, word, values, attrs)

    def _attribute_call(self, node: ast.Call) -> Broken:
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        meant = repairs.method(node, self.place, [*self.names, *self.unit.types])
        if meant:
            return rules.ExpressionForm(node, f"{shown(node.func)} is not a word; write {last}(...)", meant)
        hint = f"; its word here is {HABITS[last]}" if last in HABITS else ""
        return rules.ExpressionForm(
            node, f"{shown(node.func)} is not a word: words are plain names, without modules or methods{hint}"
        )

    def _not_a_word(self, node: ast.Call, func: ast.Name) -> Broken:
        name = func.id
        if name in NAMES:
            places = sorted({f"@{p}" for w in WORDS if w.name == name for p in w.places})
            return rules.WordPlace(
                node,
                f"{name} has no meaning in a @{self.place}; it stands in "
                f"{' and '.join(places)}{_instead(name, self.place)}",
                repairs.elsewhere(node, self.place, self.columns),
            )
        if name in self.unit.types or name in self.names:
            return rules.ExpressionForm(
                node, f"{name!r} is a value and cannot be called; write name * (...) for a product"
            )
        options = [n for p, n in LOOKUP if p is self.place]
        close = HABITS.get(name) or nearest(name, options)
        hint = f"; did you mean {close!r}?" if close else ""
        return rules.UnknownWord(func, f"{name[:60]!r} is not a word of the language{hint}", rename(func, close))

    def _arguments(self, node: ast.Call, word: Word) -> tuple[list[Value], dict[str, Any]]:
        if node.keywords:
            raise rules.WordArguments(
                node,
                f"{word.name} takes its arguments by position: {word.signature}",
                repairs.arguments(node, word, self.columns),
            )
        least, most = word.arity
        if not least <= len(node.args) <= most or any(isinstance(a, ast.Starred) for a in node.args):
            wanted = str(least) if least == most else f"{least} or {most}"
            raise rules.WordArguments(
                node,
                f"{word.name} takes {wanted} arguments, not {len(node.args)}: {word.signature}",
                repairs.arguments(node, word, self.columns),
            )
        values: list[Value] = []
        attrs: dict[str, Any] = {}
        for take, argument in zip(word.takes, node.args, strict=False):
            match take[0]:
                case "x":
                    values.append(self.operand(argument) if word.rule == "gemm" else self.value(argument))
                case "d":
                    attrs["dim"] = self.known_dim(argument)
                case "g":
                    attrs["group"] = self._group(argument)
                case "t":
                    attrs["dtype"] = _dtype(argument)
        return values, attrs

    def operand(self, node: ast.expr) -> Value:
        """An argument of gemm: named, not read as a tile."""
        return Value("operand", line=node.lineno)

    def known_dim(self, node: ast.expr) -> Dim:
        """A dimension in quotes that is made of the unit's symbols."""
        dim = dim_of(node)
        missing = sorted(dim.all_symbols - self.unit.symbols)
        if missing and None not in self.unit.types.values():
            name, close = missing[0], nearest(missing[0], self.unit.symbols) or self._first_dim()
            raise rules.UnknownDim(
                node,
                f'no parameter of {self.unit.name!r} has the dim "{name}"{did_you_mean(name, self.unit.symbols)}; a '
                f'parameter {name.lower()}: Size["{name}"] would bring it in',
                (node, f'"{close}"') if close and dim == Dim.symbol(name) else None,
            )
        return dim

    def _first_dim(self) -> str | None:
        """What a preparation most likely works along: the first dim of its first weight, where that is a symbol."""
        first = next((t.dims[0] for t in self.unit.types.values() if t and t.dims), None)
        likely = self.place is Place.PREPARATION and first is not None and first == Dim.symbol(str(first))
        return str(first) if likely else None

    def _group(self, node: ast.expr) -> Dim:
        if isinstance(node, ast.Name) and isinstance(self.constants.get(node.id), int):
            node = ast.copy_location(ast.Constant(self.constants[node.id]), node)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            if not 1 <= node.value <= 65536:
                raise rules.GroupSize(node, f"a group has between 1 and 65536 columns, not {node.value}")
            return Dim.number(node.value)
        return self.known_dim(node)


def _dtype(node: ast.expr) -> str:
    text = node.value if isinstance(node, ast.Constant) else shown(node).split(".")[-1]
    if isinstance(node, ast.Constant) and text in DTYPES:
        return str(text)
    close = nearest(str(text), DTYPES)
    raise rules.CastDtype(
        node,
        f"{shown(node)} is not a dtype in quotes; the dtypes are {', '.join(DTYPES)}",
        repairs.dtype(node) or ((node, f'"{close}"') if close else None),
    )


def _instead(name: str, place: Place) -> str:
    """What an author who wrote a word of another kind of unit most likely needs."""
    if place is Place.KERNEL and name.startswith("total_"):
        return "; a kernel sees one tile, so return tile_... and finish it in a @finisher"
    if place is Place.KERNEL and name == "sum":
        return '; inside a kernel reduce with tile_sum(x, "N") and finish it in a @finisher'
    if place is Place.FINISHER and name.startswith("tile_"):
        return f"; here write {name.replace('tile_', 'total_')}(partial)"
    if place is Place.FINISHER and name == "gemm":
        return "; a finisher never sees a matrix"
    return ""

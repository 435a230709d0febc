"""Reads the straight line of a unit into values: assignments, unpacking, and the return.

The dims of words are the business of the subclasses, one a kind of unit: `epilogue` for kernels, `finishing` for
finishers, `arranging` for preparations.
"""

from __future__ import annotations

import ast

from coda_synth.coda_api import repairs, rules
from coda_synth.coda_api.calls import Calls
from coda_synth.coda_api.declarations import check_name
from coda_synth.coda_api.formulas import unknown
from coda_synth.coda_api.program import Form, Kind, Value
from coda_synth.coda_api.rules import Broken, shown
from coda_synth.coda_api.words import CONSTANTS, NAMES

_STATEMENTS: dict[type[ast.AST], str] = {
    ast.For: "there are no loops; the kernel's mainloop is the gemm, and words work on whole tiles",
    ast.While: "there are no loops; the kernel's mainloop is the gemm, and words work on whole tiles",
    ast.If: "there are no branches; write where(condition, a, b)",
    ast.Import: "nothing is imported: the words are all there is",
    ast.ImportFrom: "nothing is imported: the words are all there is",
    ast.FunctionDef: "units do not nest; write it at top level",
    ast.AnnAssign: "only parameters have types; write NAME = expression",
    ast.Pass: "a unit does something and returns it",
}


class Body(Calls):
    """One unit while it is read. Subclasses say how parameters are read and what each word's dims must be."""

    # -- for subclasses

    def check_output(self, node: ast.expr, value: Value) -> None:
        """Raises where a value cannot be returned."""
        raise NotImplementedError

    # -- statements

    def read(self) -> dict[str, Value] | None:
        """The unit's outputs; None where its return could not be read. Errors go to the report."""
        outputs: dict[str, Value] | None = None
        for position, statement in enumerate(self.unit.node.body):
            last = position == len(self.unit.node.body) - 1
            if isinstance(statement, ast.Return):
                outputs = self.guard(lambda s=statement, last=last: self._return(s, last), outputs)  # type: ignore[misc]
            else:
                self._guarded_statement(statement)
        if not any(isinstance(s, ast.Return) for s in self.unit.node.body):
            self.report.add(
                rules.ReturnForm(
                    self.unit.node, f'{self.unit.name!r} returns nothing; end it with return {{"name": value}}'
                )
            )
        return outputs

    def _guarded_statement(self, node: ast.stmt) -> None:
        try:
            self._statement(node)
        except Broken as broken:
            self.report.add(broken)
            self.names |= {name: unknown(node) for name in assigned(node) if name not in self.unit.types}

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Assign(targets=[ast.Name() as name], value=value):
                self._bind(name, self.value(value))
            case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names)], value=value):
                self._unpack(node, names, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                plain = f"{name} = {ast.unparse(ast.BinOp(ast.Name(name), node.op, node.value))}"
                raise rules.StatementForm(node, f"write {plain}", (node, plain))
            case ast.Expr():
                self.value(node.value)
                dropped = f"the value of {shown(node)} is dropped; give it a name or return it"
                raise rules.StatementForm(node, dropped, (node, ""))
            case _:
                why = _STATEMENTS.get(type(node), "a unit holds assignments and a final return")
                raise rules.StatementForm(
                    node, f"{type(node).__name__} is not a statement of the language: {why}", _plain(node)
                )

    def _unpack(self, node: ast.Assign, targets: list[ast.expr], source: ast.expr) -> None:
        if isinstance(source, ast.Tuple):
            values = [self.value(item) for item in source.elts]
        else:
            values = self._parts(self.value(source, several=True))
        if values and len(values) != len(targets):
            for target in targets:
                self._bind(target, unknown(node))
            raise rules.Unpacking(node, f"{shown(source)} gives {len(values)} values for {len(targets)} names")
        for target, value in zip(targets, values or [unknown(node)] * len(targets), strict=True):
            self._bind(target, value)

    def _parts(self, value: Value) -> list[Value]:
        """The values of a word with several; none of one that is not known."""
        if value.form is Form.UNKNOWN:
            return []
        if value.form is not Form.SEVERAL:
            return [value]
        count, form = value.attrs["results"], value.attrs["form"]
        assert isinstance(count, int) and isinstance(form, Form)
        return [self._part(value, index, form) for index in range(count)]

    def _part(self, value: Value, index: int, form: Form) -> Value:
        attrs = {**value.attrs, "index": index}
        place = value.line, value.column
        return self.keep(Value("part", (value,), value.rows, value.cols, value.kind, form, attrs, *place))

    def _bind(self, target: ast.expr, value: Value) -> None:
        if not isinstance(target, ast.Name):
            raise rules.StatementForm(target, f"{shown(target)} cannot be assigned; assign to a name")
        name = target.id
        if name in self.unit.types:
            raise rules.ReservedName(target, f"{name!r} is a parameter and keeps its meaning; choose another name")
        if name != "_":
            check_name(name.lstrip("_"), target, "a value")
        self.names[name] = value

    def _return(self, node: ast.Return, last: bool) -> dict[str, Value]:
        if not last:
            raise rules.StatementForm(node, "a unit has one return, at its end")
        outputs: dict[str, Value] = {}
        for name, key, item in return_items(node):
            if name in outputs:
                raise rules.DuplicateName(key, f"{name!r} is returned twice")
            outputs[name] = self.guard(lambda item=item: self._output(item), unknown(item))  # type: ignore[misc]
        return outputs

    def _output(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.form is not Form.UNKNOWN:
            self.check_output(node, value)
            if value.kind is not Kind.FLOAT:
                text = ast.unparse(node)
                meant = f"where({text}, 1.0, 0.0)" if value.kind is Kind.BOOL else f"({text}) * 1.0"
                raise rules.StoredKind(
                    node,
                    f"{shown(node)} is {value.kind.value}, and what is stored is a float; write where(c, 1.0, 0.0) or "
                    "x * 1.0",
                    (node, meant),
                )
        return value

    # -- expressions

    # -- words


def _plain(node: ast.stmt) -> rules.Repair | None:
    """The statement without what the language lacks: a type left out, a statement that does nothing taken away."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return node, f"{ast.unparse(node.target)} = {ast.unparse(node.value)}"
    return (node, "") if isinstance(node, (ast.Pass, ast.Import, ast.ImportFrom, ast.Assert)) else None


def assigned(node: ast.stmt) -> set[str]:
    """Every name that a statement assigns, so that a broken one raises no second error where the name is read."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def return_items(node: ast.Return) -> list[tuple[str, ast.expr, ast.expr]]:
    """(name, key, value) of `return {"name": value, ...}`; raises ReturnForm."""
    form = 'write return {"name": value}'
    if not isinstance(node.value, ast.Dict) or not node.value.keys:
        raise rules.ReturnForm(node, f"a unit returns its outputs by name; {form}", repairs.returned(node))
    items: list[tuple[str, ast.expr, ast.expr]] = []
    for key, item in zip(node.value.keys, node.value.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise rules.ReturnForm(key or item, f"the name of an output is a string; {form}")
        if not key.value.isidentifier():
            raise rules.BadName(
                key, f"{key.value[:60]!r} cannot name an output; use letters, digits and underscores, a letter first"
            )
        check_output_name(key.value, key)
        items.append((key.value, key, item))
    return items


def check_output_name(name: str, node: ast.AST) -> None:
    """Outputs live behind a dot, so they may be called like words ("sum"), yet not like Python keywords."""
    if name not in NAMES and name not in CONSTANTS:
        check_name(name, node, "an output")

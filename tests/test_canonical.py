"""The canonical form: equal for programs that are spelt differently, different for what computes differently."""

from __future__ import annotations

import ast
import random

import pytest
from coda_synth.coda_api.canonical import canonical, schedules
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.words import CONSTANTS, DECORATORS, NAMES, TYPES
from coda_synth.tasks.catalog import task_names, worked_candidate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GOOD = worked_candidate("residual_rmsnorm_swiglu")
KEPT = {*NAMES, *CONSTANTS, *DECORATORS, *TYPES}


class Respell(ast.NodeTransformer):
    """Renames what a program may name as it likes, turns commutative operands round, and respells squares."""

    def __init__(self, tree: ast.Module, seed: int) -> None:
        self.random = random.Random(seed)
        self.program = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and _mark(n) == "program")
        self.names: dict[str, str] = {}
        self.units = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.fixed = KEPT | {self.program.name} | {a.arg for a in self.program.args.args}

    def fresh(self, name: str) -> str:
        return name if name in self.fixed else self.names.setdefault(name, f"n{len(self.names)}_{seedless(name)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        inside = node is self.program
        node.name = self.fresh(node.name)
        if not inside:
            for arg in node.args.args:
                arg.arg = f"p_{arg.arg}"
        self.renaming = {} if inside else {a.arg.removeprefix("p_"): a.arg for a in node.args.args}
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.renaming.get(node.id) or self.fresh(node.id)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, (ast.Add, ast.Mult)) and self.random.random() < 0.5:
            node.left, node.right = node.right, node.left
        return node


def seedless(name: str) -> str:
    return "".join(c for c in name if c.isalnum())[:8]


def _mark(node: ast.FunctionDef) -> str:
    mark = node.decorator_list[0]
    return ast.unparse(mark.func if isinstance(mark, ast.Call) else mark)


def respelt(text: str, seed: int) -> str:
    tree = ast.parse(text)
    tree = Respell(tree, seed).visit(tree)
    units = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    random.Random(seed).shuffle(units)
    return ast.unparse(ast.Module(units, []))


@pytest.mark.parametrize("task", task_names())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_respelling_changes_nothing(task: str, seed: int) -> None:
    text = worked_candidate(task)
    assert canonical(read(respelt(text, seed))) == canonical(read(text))


def test_what_is_the_same() -> None:
    for old, new in (
        ("tile_sum(h * h", "tile_sum(h ** 2"),
        ("gemm(y, w) + x", "x + gemm(y, w)"),
        ('"M"', '"ROWS"'),
    ):
        assert old in GOOD, old
        assert canonical(read(GOOD.replace(old, new))) == canonical(read(GOOD)), new
    assert canonical(read(GOOD + "\nUNUSED = 3\n")) == canonical(read(GOOD))


def test_what_is_not() -> None:
    """One operator, constant or operand changed at a time, wherever the text still reads."""
    seen = {canonical(read(GOOD))}
    changes = [(" + x", " - x"), ("h * gamma", "h"), ("silu(even(z)) * odd(z)", "silu(odd(z)) * even(z)")]
    changes += [("silu", "gelu"), (" + eps", " - eps"), ("interleave", "concat")]
    for old, new in changes:
        assert old in GOOD, old
        form = canonical(read(GOOD.replace(old, new)))
        assert form not in seen, (old, new)
        seen.add(form)


def test_rows_and_columns_of_one_dim_are_told_apart() -> None:
    """Two symbols of a unit may be bound to one dim of the program."""
    text = """
@kernel
def k(x: Tensor["M", "K"], w: Tensor["N", "K"], b: Tensor["{}"]):
    return {{"y": gemm(x, w) + b}}
@program
def p(x: Tensor["D", "D"], w: Tensor["D", "D"], b: Tensor["D"]):
    a = k(x, w, b)
    return {{"y": a.y}}
"""
    assert canonical(read(text.format("M"))) != canonical(read(text.format("N")))


def test_schedules_stand_apart() -> None:
    hinted = GOOD.replace("@kernel\n", "@kernel(block_m=64)\n", 1)
    assert canonical(read(hinted)) == canonical(read(GOOD))
    assert schedules(read(hinted)) != schedules(read(GOOD))
    assert schedules(read(respelt(hinted, 3))) == schedules(read(hinted))


def test_dead_outputs_and_calls_do_not_count() -> None:
    more = GOOD.replace('"hg": h', '"unread": h * 2.0, "hg": h')
    assert more != GOOD
    assert canonical(read(more)) == canonical(read(GOOD))
    stored = more.replace('{"x": a.x', '{"x": a.unread')
    assert canonical(read(stored)) != canonical(read(GOOD))

"""Python text as a tree: silently, and one thread at a time."""

import ast
import contextlib
import threading
import warnings
from collections.abc import Iterator

# CPython before 3.11.8 and 3.12.2 counts the depth of a tree that is being built in one place for all threads: two that
# build at once end in "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
_one_at_a_time = threading.RLock()


def parse_statements(text: str) -> ast.Module:
    """The statements of a text. Raises as `ast.parse` does: SyntaxError, ValueError, RecursionError, MemoryError."""
    with _alone():
        return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """One expression. Raises what `ast.parse` raises."""
    with _alone():
        return ast.parse(text, mode="eval").body


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a candidate's odd escapes: the language has its own errors
        yield

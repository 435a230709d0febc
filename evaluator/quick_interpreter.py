"""Makes triton's CPU interpreter quick on small tiles without changing one bit of what it computes.

Nine tenths of its time on a tile of 16 x 32 go into the wrapping of values: types are built anew for every operation,
and the whole language is patched anew for every call of a function. A process that does nothing but interpret patches
it once, and remembers what a shape or a type comes to.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_Shape = tuple[int, ...]


def quicken() -> tuple[str, ...]:
    """For a process that only interprets; call once, after toolchain.repair_interpreter. Returns the names of what
    this release of triton has written anew, and what therefore stays as it is: slower, and right."""
    left = tuple(f"{o.__name__}.{name}" for o, name, known, made in _REPLACED if not _replace(o, name, known, made))
    stock = interpreter._convert_float

    def convert(data: Any, source: Any, destination: Any, mode: Any) -> Any:
        """A bf16 is the upper half of its fp32: widening moves bits, NaN and subnormal numbers included."""
        if source.name == "bf16" and destination.name == "fp32":
            return (np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << 16).reshape(data.shape)
        return stock(data, source, destination, mode)

    interpreter._convert_float = convert
    return left


def _replace(owner: Any, name: str, known: str, made: Callable[[Any], Any]) -> bool:
    """Puts made(stock) in the place of a function of triton whose text is one of those that it was written for."""
    stock = getattr(owner, name, None)
    if _digest(stock) not in known.split():
        return False
    setattr(owner, name, made(stock))
    return True


def _digest(function: Any) -> str:
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:10]
    except (TypeError, OSError):  # it is not there, or not a function, or has no text
        return "none"


def _patched_for_good(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What the interpreter does to the language before a launch and undoes after it, done once."""
    stock(_with_globals({"tl": tl, "core": core}))
    return lambda fn: interpreter._LangPatchScope()


def _spared(stock: Callable[..., None]) -> Callable[..., None]:
    """Every sum of integers is made twice, to assert that it does not overflow; only with `debug` is that asserted."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    return stock


def _broadcast(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Operands of one shape are as they should be; equal shapes are one object here."""

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else stock(self, lhs, rhs)

    return broadcast_impl_value


def _cast(stock: Callable[..., Any]) -> Callable[..., Any]:
    """What has the type already stays; scalar types are one object each."""

    def cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        return input if input.dtype is dst_ty.scalar else stock(self, input, dst_ty, fp_downcast_rounding)

    return cast


def _with_globals(names: dict[str, Any]) -> Any:
    scope: dict[str, Any] = dict(names)
    exec("def kernel(): pass", scope)
    return scope["kernel"]


def _remembered(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """numpy's name for a scalar, a pointer or a block of either."""
    of_scalar = functools.lru_cache(maxsize=64)(stock)

    def np_dtype(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, core.block_type) else kind
        return np.dtype(np.uint64) if isinstance(scalar, core.pointer_type) else of_scalar(scalar)

    return np_dtype


@functools.lru_cache(maxsize=1024)
def _tensor_shape(shape: _Shape) -> tuple[Any, Any]:
    """A tensor's `shape` and `numel`, as constants of the language."""
    return core.tuple([core.constexpr(length) for length in shape]), core.constexpr(math.prod(shape))


@functools.lru_cache(maxsize=1024)
def _block_shape(shape: _Shape) -> tuple[Any, int, str]:
    """A block type's `shape` and `numel`, and how the shape is written; raises what triton raises for no block."""
    if not shape:
        raise TypeError("0d block_type is forbidden")
    made = core.tuple(list(shape))
    return made, core.validate_block_shape(shape), str(made)


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _tensor_shape(tuple(type.shape) if type.is_block() else ())


def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    plain = shape.value if isinstance(shape, core.constexpr) else shape
    lengths = tuple(s.value if isinstance(s, core.constexpr) else s for s in plain)
    self.element_ty = element_ty
    self.shape, self.numel, written = _block_shape(lengths)
    self.name = f"<{written}, {element_ty}>"


# What is replaced, by what, and the first digits of the SHA-256 of every text that triton 3.6 to 3.9 has there.
_REPLACED: tuple[tuple[Any, str, str, Callable[[Any], Any]], ...] = (
    (interpreter, "_patch_lang", "e5beeba74a", _patched_for_good),
    (core.tensor, "__init__", "d9b043b5c9", lambda stock: _tensor),
    (core.block_type, "__init__", "403f4b016e", lambda stock: _block_type),
    (interpreter, "_get_np_dtype", "8f20d41e32", _remembered),
    (TritonSemantic, "broadcast_impl_value", "9b7949138c 4217098736 90c3a175f6", _broadcast),
    (TritonSemantic, "cast", "193ece285f b69dba3389", _cast),
    (TritonSemantic, "binary_op_sanitize_overflow_impl", "1ad65a1073 bdd7f3e24a", _spared),
)

"""Runs generated Hopper kernels without a GPU: the Gluon that they are written in, over a simulated thread block.

Arithmetic is that of triton's interpreter, in which the portable kernels run as well; copies, products and barriers are
hopper_machine's. For a process that interprets (TRITON_INTERPRET=1), after toolchain.repair_interpreter and quicken.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from coda_synth.coda_api import toolchain
from coda_synth.evaluator.hopper_launches import Launch, Launches, place
from coda_synth.evaluator.hopper_machine import Block
from coda_synth.evaluator.hopper_memory import Barrier, HopperFault, Slot, box, put
from triton.language import core
from triton.runtime import interpreter

_ASM: dict[str, Callable[..., Any]] = {
    "copysign": lambda sign, x: np.copysign(x, sign),
    "rcp.approx": lambda x: np.float32(1) / x,
    "cos.approx": np.cos,
    "sin.approx": np.sin,
    "mov.b32 $0, {0, $1}": lambda x: (x.astype(np.uint32) << 16).view(np.float32),  # bf16, which is held as its bits
}
_running: list[tuple[Block, Launch]] = []  # the block whose kernel is being run, and its launch


def load(source: str, name: str = "generated", seed: int = 0) -> ModuleType:
    """Generated text as a module whose Hopper kernels are simulated; what the hardware leaves open is drawn by seed."""
    core.block_type.layout = _Layout()  # the language asks values for theirs
    launches = Launches()
    module = toolchain.load(source, name, _imports(seed, launches))
    for portable in vars(module).values():
        if isinstance(portable, interpreter.InterpretedFunction):
            portable.run = functools.partial(launches.ordinary, portable.__name__, portable.run)
    return module


def _imports(seed: int, launches: Launches) -> dict[str, Any]:
    """What the generated text imports of Gluon, by module."""
    products = (_warpgroup_mma, _warpgroup_mma_init, _warpgroup_mma_wait)
    hopper: dict[str, Any] = {f.__name__.lstrip("_"): f for f in products}
    hopper |= {"fence_async_shared": _fence_async_shared, "mbarrier": _Barriers, "tma": _Copies}
    jit = functools.partial(_Function, seed=seed, launches=launches)
    overlap = {"gdc_wait": lambda: _launch().wait(), "gdc_launch_dependents": lambda: _launch().release()}
    return {
        "triton.experimental": SimpleNamespace(gluon=SimpleNamespace(jit=jit, constexpr_function=_of_layouts)),
        "triton.language.extra.cuda": SimpleNamespace(**overlap),
        "triton.experimental.gluon": SimpleNamespace(language=_Words()),
        "triton.experimental.gluon.language.nvidia.hopper": SimpleNamespace(**hopper),
        "triton.experimental.gluon.nvidia.hopper": SimpleNamespace(TensorDescriptor=_Described),
    }


def _block() -> Block:
    return _running[0][0]


def _launch() -> Launch:
    return _running[0][1]


# -- functions and launches


class _Function:
    """A @gluon.jit function: called by another one it is a function, and with a grid a kernel."""

    def __init__(self, fn: Callable[..., Any], seed: int, launches: Launches) -> None:
        self.fn, self.__name__, self._seed, self._launches = fn, fn.__name__, seed, launches
        self._parameters = inspect.signature(fn).parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return functools.partial(self._run, grid[0])

    def _run(self, programs: int, *args: Any, launch_pdl: bool = False, **kwargs: Any) -> None:
        """Thread blocks one after the other: nothing that is generated waits for another block."""
        own = {name: _argument(value) for name, value in kwargs.items() if name in self._parameters}
        given = (place(value) for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        launch = self._launches.next(self.__name__, launch_pdl, given)
        for program in range(programs):
            _running[:] = [(Block(program, programs, self._seed), launch)]
            try:
                self.fn(*map(_argument, args), **own)
                launch.end_block()
            except HopperFault as error:
                where = f"{self.__name__}, block {program} of {programs}"
                raise type(error)(f"{where}: {error} (the compiler wrote this kernel: please report it)") from error


def _argument(value: Any) -> Any:
    """A tensor is a pointer in a kernel."""
    return interpreter._implicit_cvt(value) if isinstance(value, torch.Tensor) else value


# -- memory


class _Described:
    """A matrix in global memory, as the copy engine knows it."""

    def __init__(self, base: torch.Tensor, shape: Any, strides: Any, block_shape: Sequence[int], layout: Any) -> None:
        self.dtype, self.block_shape, self.layout = _argument(base).dtype.element_ty, tuple(block_shape), layout
        kind = interpreter._get_np_dtype(self.dtype)
        bits = base.view(getattr(torch, f"int{8 * base.itemsize}")).as_strided(tuple(shape), tuple(strides))
        self.values, self.place = bits.numpy().view(kind), place(base)
        self.stored: set[tuple[int, int]] = set()  # places that a launch has written to


@dataclass(frozen=True)
class _View:
    """One slot of a buffer, as it lies there or turned."""

    values: np.ndarray
    slot: Slot
    dtype: Any

    def permute(self, order: tuple[int, int]) -> _View:
        return _View(self.values.transpose(order), self.slot, self.dtype)

    def load(self, layout: Any = None) -> Any:
        _block().read(self.slot)
        return _tensor(self.values, self.dtype)

    def store(self, value: Any) -> None:
        if value.dtype != self.dtype:
            raise HopperFault(f"{value.dtype} is stored into {self.slot.name}, which holds {self.dtype}")
        _block().write(self.slot)
        self.values[...] = value.handle.data


class _Buffer:
    """Shared memory for several boxes of one shape; `index` gives one."""

    def __init__(self, name: str, dtype: Any, shape: Sequence[int]) -> None:
        self._name, self._dtype = name, dtype
        self._boxes = np.zeros(tuple(shape), interpreter._get_np_dtype(dtype))
        self._slots = [Slot(f"{name}[{i}]") for i in range(shape[0])]
        _block().slots.extend(self._slots)

    def index(self, number: int) -> _View:
        number = _inside(number, self._slots, self._name)
        return _View(self._boxes[number], self._slots[number], self._dtype)


def _inside(number: int, slots: Sequence[Any], name: str) -> int:
    if not 0 <= number < len(slots):
        raise HopperFault(f"{name}[{number}] is asked for, and {name} has {len(slots)} slots")
    return number


class _BarrierBuffer:
    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._barriers = [Barrier(f"{name}[{i}]", ready=False) for i in range(count)]

    def index(self, number: int) -> Barrier:
        return self._barriers[_inside(number, self._barriers, self._name)]


def _tensor(values: np.ndarray, dtype: Any) -> Any:
    handle = interpreter.TensorHandle(np.array(values), dtype)
    return tl.tensor(handle, core.block_type(dtype, list(values.shape)))


def _assigned() -> str:
    """The name that the statement of generated text now running gives to its value."""
    frame = sys._getframe(2)
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).partition("=")[0].strip()


# -- the language


class _Layout:
    """Where a value's elements lie, which is all the same here."""

    @property
    def parent(self) -> _Layout:
        return self


def _of_layouts(function: Callable[..., Any]) -> Callable[..., _Layout]:
    """What generated text computes while it is compiled are layouts."""
    return lambda *layouts: _Layout()


class _Words:
    """triton.experimental.gluon.language: triton.language, with layouts that say nothing here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name)

    def program_id(self, axis: int) -> int:
        return _block().program

    def num_programs(self, axis: int) -> int:
        return _block().programs

    def cdiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def static_range(self, count: int) -> range:
        return range(count)

    def arange(self, start: int, end: int, layout: Any = None) -> Any:
        return tl.arange(start, end)

    def zeros(self, shape: Any, dtype: Any, layout: Any = None) -> Any:
        return tl.zeros(shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any, layout: Any = None) -> Any:
        return tl.full(shape, value, dtype)

    def convert_layout(self, value: Any, layout: Any) -> Any:
        return value

    def load(self, pointer: Any, mask: Any = None, **how: Any) -> Any:
        _touch(pointer, mask, writes=False)
        return tl.load(pointer, mask=mask, **how)

    def store(self, pointer: Any, value: Any, mask: Any = None) -> None:
        _touch(pointer, mask, writes=True)
        tl.store(pointer, value, mask=mask)

    def SliceLayout(self, dim: int, parent: Any) -> _Layout:
        return _Layout()

    def BlockedLayout(self, *facts: Any) -> _Layout:
        return _Layout()

    def SwizzledSharedLayout(self, *facts: Any, **more: Any) -> _Layout:
        return _Layout()

    def to_linear_layout(self, layout: Any, shape: Any) -> _Layout:
        return _Layout()

    def NVMMADistributedLayout(self, **facts: Any) -> _Layout:
        return _Layout()

    @property
    def NVMMASharedLayout(self) -> Any:
        return SimpleNamespace(get_default_for=lambda box, dtype: _Layout())

    def allocate_shared_memory(self, dtype: Any, shape: Sequence[int], layout: Any) -> _Buffer | _BarrierBuffer:
        name = _assigned()
        return _BarrierBuffer(name, shape[0]) if layout is _Barriers else _Buffer(name, dtype, shape)

    def warp_specialize(self, roles: Sequence[tuple[_Function, tuple[Any, ...]]], warps: Any, registers: Any) -> None:
        names = [f.__name__.rpartition("_")[2] for f, _ in roles]
        told = [f"{n} {i}" if names.count(n) > 1 else f"the {n}" for i, n in enumerate(names)]
        _block().run((name, functools.partial(f, *args)) for name, (f, args) in zip(told, roles, strict=True))

    def inline_asm_elementwise(self, asm: str, constraints: str, args: Sequence[Any], *more: Any, **how: Any) -> Any:
        of = next(f for name, f in _ASM.items() if asm.startswith(name))
        with np.errstate(all="ignore"):
            return _tensor(of(*(arg.handle.data for arg in args)), tl.float32)

    def reduce(self, value: Any, axis: int, combine: _Function) -> Any:
        """By halves: what the language reduces with a function of its own does not depend on the order."""
        data = value.handle.data
        while (length := data.shape[axis]) > 1:
            first, second = (_tensor(part, value.dtype) for part in np.split(data, [length // 2], axis))
            data = combine(first, second).handle.data
        return _tensor(data.squeeze(axis), value.dtype)


def _touch(pointer: Any, mask: Any, writes: bool) -> None:
    """Threads access what pointers point to; all of it lies in one tensor."""
    addresses = pointer.handle.data.reshape(-1)
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask.handle.data, pointer.handle.data.shape).reshape(-1)]
    for address in addresses[:1]:
        _launch().at(int(address), writes)


class _Barriers:
    """The module mbarrier; also the layout by which a buffer is known to hold barriers."""

    @staticmethod
    def MBarrierLayout() -> type[_Barriers]:
        return _Barriers

    @staticmethod
    def init(barrier: Barrier, count: int) -> None:
        barrier.count, barrier.missing, barrier.ready = count, count, True

    @staticmethod
    def expect(barrier: Barrier, size: int) -> None:
        _block().expect(barrier, size)

    @staticmethod
    def arrive(barrier: Barrier, count: int = 1) -> None:
        _block().arrive(barrier, count)

    @staticmethod
    def wait(barrier: Barrier, parity: int) -> None:
        _block().wait(barrier, parity)


class _Copies:
    """The module tma."""

    @staticmethod
    def async_copy_global_to_shared(source: _Described, place: Any, barrier: Barrier, into: _View) -> None:
        where = (int(place[0]), int(place[1]))
        _launch().touch(source.place, writes=False)

        def copy() -> None:
            into.values[...] = box(source.values, where, into.values.shape)

        _block().load(into.slot, barrier, into.values.nbytes, copy)

    @staticmethod
    def async_copy_shared_to_global(target: _Described, place: Any, source: _View) -> None:
        where = _unwritten(target, place)
        _block().store(source.slot, source.values.copy, lambda values: put(target.values, where, values))

    @staticmethod
    def async_atomic_add(target: _Described, place: Any, source: _View) -> None:
        where = _unwritten(target, place)

        def add(values: np.ndarray) -> None:
            put(target.values, where, box(target.values, where, values.shape) + values)

        _block().store(source.slot, source.values.copy, add)

    @staticmethod
    def store_wait(pending: int) -> None:
        _block().wait_stores(pending)


def _unwritten(target: _Described, place: Any) -> tuple[int, int]:
    """Where a box of an output goes; raises HopperFault where one went before."""
    where = (int(place[0]), int(place[1]))
    if where in target.stored:
        raise HopperFault(f"the box at {where} of one output is stored twice")
    target.stored.add(where)
    _launch().touch(target.place, writes=True)
    return where


def _fence_async_shared() -> None:
    _block().fence()


# -- products


@dataclass
class _Accumulator:
    """What products that are under way add to: no value until they have been waited for."""

    value: Any


def _warpgroup_mma_init(value: Any) -> _Accumulator:
    return _Accumulator(value)


def _warpgroup_mma(a: _View, b: _View, acc: _Accumulator, *, use_acc: bool = True, is_async: bool = False) -> Any:
    def product() -> None:
        start = acc.value if use_acc else tl.zeros(acc.value.shape, tl.float32)
        acc.value = tl.dot(_tensor(a.values, a.dtype), _tensor(b.values, b.dtype), start)

    _block().multiply((a.slot, b.slot), product)
    return acc


def _warpgroup_mma_wait(pending: int, deps: tuple[_Accumulator]) -> Any:
    _block().wait_products(pending)
    return deps[0] if pending else deps[0].value

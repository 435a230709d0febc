"""What lowering hands on: the text of a module, and its launches and buffers as data. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_synth.coda_api.errors import Diagnostic
from coda_synth.coda_api.overlap import Overlap
from coda_synth.coda_api.schedule import Schedule


@dataclass(frozen=True, slots=True)
class KernelArg:
    """One argument of a kernel: its Triton type ("*bf16", "i32", "tensordesc<bf16[128, 64]>", "constexpr"), for a
    constexpr its value, and whether the launch passes a multiple of 16 (pointers: 16-byte aligned)."""

    name: str
    type: str
    value: object = None
    divisible: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a program, complete enough to compile it without a device."""

    call: str  # the program's call, "b" in `b = up_proj(...)`
    kernel: str  # the function in the module's text
    args: tuple[KernelArg, ...]
    warps: int
    stages: int
    programs: int  # thread blocks launched (a persistent kernel: at most the number of SMs)
    tiles: int  # tiles of work they share; where K is cut, each once for every piece
    gluon: bool = False  # the Hopper backend's kernel: compiled as Gluon, for sm_90 only
    multiplies: bool = False  # it has a mainloop, and so tensor-core instructions
    overlap: Overlap = Overlap()  # with the launches before and after it


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor that the harness allocates, contiguous. outputs: the program outputs it is (usually one or none). call,
    value: whose result it holds, and which."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # a torch dtype's name
    outputs: tuple[str, ...] = ()
    call: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Generated:
    """A lowered program for one set of sizes.

    The module's text defines `prepare(**weights) -> dict[str, Tensor]` and `launch(**tensors) -> None`; `launch` takes
    exactly `arguments`: inputs that are read, prepared tensors, and every buffer, by name.
    form: "hopper", "descriptor" (TMA) or "pointer" (masks), for the program as a whole. in_place: the inputs that a
    launch overwrites, each with the program outputs that it then is. notes: what an author should know of the choice.
    """

    source: str
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    prepare_arguments: tuple[str, ...]
    arguments: tuple[str, ...]
    schedules: Mapping[str, Schedule]  # by call
    form: str
    in_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[Diagnostic, ...] = ()
    effective: Mapping[str, Schedule] = field(default_factory=dict)  # by call: what it left to choose is filled in


@dataclass(frozen=True, slots=True)
class Resources:
    """What an ahead-of-time build of one launch takes. Bytes, except registers (per thread) and instruction counts."""

    call: str
    kernel: str
    registers: int
    spill_bytes: int  # stack per thread: spills and local arrays
    shared_bytes: int
    tensor_core_instructions: int  # wgmma / mma / mfma in the generated code
    seconds: float

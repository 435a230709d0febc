"""Everything of triton: loads generated modules, compiles them ahead of time, and repairs the CPU interpreter.

The only module of the language that imports triton (the Hopper backend will be the second). It never imports torch
while building, so that compile workers stay small; the interpreter's repairs, which need torch, run where torch is.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import io
import linecache
import os
import re
import subprocess
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
from coda_synth.coda_api.errors import machine_fault
from coda_synth.coda_api.generated import Generated, KernelArg, Launch, Resources
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# The numbers of a kernel must not move with a release of triton, so the default of contracting a * b + c is stated.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

_NONE: Mapping[str, Any] = {}
_TENSOR_CORE = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma|v_wmma")


class BuildError(Exception):
    """A generated kernel that does not compile. kernel: its name; the message holds the compiler's own words."""

    def __init__(self, kernel: str, message: str) -> None:
        super().__init__(f"{kernel} does not compile: {message}")
        self.kernel = kernel


def load(source: str, name: str = "generated", imports: Mapping[str, Any] = _NONE) -> types.ModuleType:
    """Executes generated text (ours, never a candidate's) as a module; triton reads it back from linecache.

    imports: what the text is to find under these names of modules instead of what they hold.
    """
    filename = f"<{name}-{hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    lines = [f"{line}\n" for line in source.split("\n")]  # what Python takes for a line, and not what str does
    linecache.cache[filename] = (len(source), None, lines, filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importing(imports)} if imports else builtins
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def _importing(instead: Mapping[str, Any]) -> Callable[..., Any]:
    return lambda name, *how: instead[name] if name in instead else builtins.__import__(name, *how)


def target_of(name: str) -> GPUTarget:
    """ "sm_90" or "gfx942" as triton's target; raises ValueError."""
    if match := re.fullmatch(r"sm_?(\d+)a?", name):
        return GPUTarget("cuda", int(match[1]), 32)
    if re.fullmatch(r"gfx[0-9a-f]+", name):
        return GPUTarget("hip", name, 32 if name.startswith(("gfx10", "gfx11", "gfx12")) else 64)
    raise ValueError(f"{name!r} is not a target; write sm_90, sm_80, gfx942 and the like")


def build(generated: Generated, target: str = "sm_90") -> tuple[Resources, ...]:
    """Compiles every launch for `target` without a device; raises BuildError, and OSError where the machine is at
    fault. One result a launch, in order."""
    try:
        module = load(generated.source)
    except Exception as error:  # no Python, or an import of a name that this release of triton has not
        raise BuildError("the module", str(error)) from error
    gpu = target_of(target)
    return tuple(_build_launch(module, launch, gpu) for launch in generated.launches)


def _build_launch(module: types.ModuleType, launch: Launch, target: GPUTarget) -> Resources:
    start = time.perf_counter()
    compiled = compile_launch(getattr(module, launch.kernel), launch, target)
    registers, stack = _registers(compiled, target)
    text = compiled.asm.get("ptx") or compiled.asm.get("amdgcn") or ""
    return Resources(
        launch.call,
        launch.kernel,
        registers,
        stack,
        compiled.metadata.shared,
        len(_TENSOR_CORE.findall(text)),
        round(time.perf_counter() - start, 3),
    )


def compile_launch(function: Any, launch: Launch, target: GPUTarget) -> Any:
    """The compiled kernel, specialised as a real launch would be. Raises as `build` does."""
    signature = {a.name: a.type for a in launch.args}
    constants: dict[Any, object] = {a.name: a.value for a in launch.args if a.type == "constexpr"}
    attrs = {(i,): _facts(a) for i, a in enumerate(launch.args) if a.type.startswith(("*", "i"))}
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    options |= {"launch_pdl": True} if launch.overlap.early else {}
    source_type: Any = ASTSource
    if launch.gluon:
        source_type, signature = _gluon_source(), {n: _with_layout(t) for n, t in signature.items()}
        constants = {(list(signature).index(n),): v for n, v in constants.items()}
    source = source_type(fn=function, signature=signature, constexprs=constants, attrs=attrs)
    with _captured_stderr() as captured:
        try:
            return triton.compile(source, target=target, options=options)
        except Exception as error:  # triton raises a dozen unrelated types; all mean that this text does not compile
            if fault := machine_fault(error):
                raise fault from None
            raise BuildError(launch.kernel, _said(error, captured.getvalue())) from error


def leave_launcher(compiled: Any) -> None:
    """Leaves the C part of a compiled kernel's launch in triton's cache too; where there is no driver, does nothing."""
    with contextlib.suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _said(error: BaseException, captured: str) -> str:
    """The compiler's words: what it wrote, and the innermost causes, which name the line of an inlined function."""
    causes = [error]
    while (inner := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(inner)
    texts = [captured, *(_last_lines(str(cause), 6) or type(cause).__name__ for cause in reversed(causes[-2:]))]
    return "\n".join(text for text in texts if text.strip())


def _gluon_source() -> Any:
    """Public from triton 3.9 on."""
    from triton.experimental import gluon

    if hasattr(gluon, "GluonASTSource"):
        return gluon.GluonASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _with_layout(kind: str) -> str:
    """A descriptor's type with the layout of its box, which Gluon keeps in the type."""
    match = re.fullmatch(r"tensordesc<(\w+)\[(\d+), (\d+)\]>", kind)
    if not match:
        return kind
    from triton.experimental.gluon import language as gl

    dtypes = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}
    dtypes |= {"fp8e4nv": gl.float8e4nv, "fp8e5": gl.float8e5}
    box = [int(match[2]), int(match[3])]
    layout = gl.NVMMASharedLayout.get_default_for(box, dtypes[match[1]])
    return f"tensordesc<{match[1]}[{match[2]}, {match[3]}],{layout!r}>"


def _facts(arg: KernelArg) -> list[list[Any]]:
    """What triton notes of an address or an integer, an empty list too: equal notes are an equal kernel in its
    cache."""
    return [["tt.divisibility", 16]] if arg.divisible else []


def _last_lines(text: str, count: int = 12) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:])


@contextlib.contextmanager
def _captured_stderr() -> Iterator[io.StringIO]:
    """What compilers write to file descriptor 2, which is where MLIR puts the detail of an error."""
    captured = io.StringIO()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield captured
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            captured.write(file.read().decode(errors="replace"))


def _registers(compiled: Any, target: GPUTarget) -> tuple[int, int]:
    """Registers a thread and stack bytes (spills and local arrays), read from the machine code."""
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        registers, spills = re.search(r"\.vgpr_count:\s+(\d+)", text), re.search(r"\.vgpr_spill_count:\s+(\d+)", text)
        return int(registers[1]) if registers else 0, 4 * int(spills[1]) if spills else 0
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=False)
    if done.returncode:  # it reads what was compiled just now: its room on the disk, not the text, is what it lacks
        raise OSError(errno.EIO, f"cuobjdump fails: {_last_lines(done.stderr, 1) or done.returncode}", file.name)
    found = dict(re.findall(r"\b(REG|STACK):(\d+)", done.stdout))
    return int(found.get("REG", 0)), int(found.get("STACK", 0))


def repair_interpreter() -> None:
    """Makes triton's CPU interpreter compute what the device would; call before the first launch (again does no harm).

    Stock 3.6 multiplies the bit patterns of bf16 in dot, truncates casts to bf16, wraps casts to fp8, rounds fma twice,
    and cannot iterate over a cdiv under numpy 2.4. Sources: triton issues 10945 and 11584, fix 9172.
    """
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    stock_convert, stock_patch = interpreter._convert_float, interpreter._patch_lang_tensor

    def convert(data: Any, source: Any, destination: Any, mode: Any) -> Any:
        if source.name != "fp32" or destination.name not in narrow:
            return stock_convert(data, source, destination, mode)
        dtype = narrow[destination.name]
        values = torch.from_numpy(np.ascontiguousarray(data).view(np.float32).copy())
        if dtype.itemsize == 1:  # the device saturates; NaN stays NaN
            top = torch.finfo(dtype).max
            values = torch.where(values.isnan(), values, values.clamp(-top, top))
        signed, unsigned = (torch.uint8, np.uint8) if dtype.itemsize == 1 else (torch.int16, np.uint16)
        return values.to(dtype).view(signed).numpy().view(unsigned).reshape(data.shape)

    def widened(handle: Any) -> Any:
        if not handle.dtype.is_floating() or handle.dtype.primitive_bitwidth >= 32:
            return handle.data
        if handle.dtype.scalar == tl.float16:
            return handle.data.astype(np.float32)
        return interpreter._convert_float(handle.data, handle.dtype.scalar, tl.float32, None).view(np.float32)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        product = np.matmul(widened(a), widened(b), dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if x.dtype.scalar != tl.float32:
            return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(exact.astype(np.float32), x.dtype.scalar)

    def patch(tensor: Any, scope: Any) -> None:
        stock_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).squeeze()))

    interpreter._convert_float = convert
    interpreter._patch_lang_tensor = patch
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.create_fma = fma

"""What stands around a generated module's kernels and `launch`: its head with what launches share, and `prepare`.

What `launch` calls has names with an underscore in front, which the language refuses, because a program's inputs are
parameters of `launch` under their own names. `MODULE_NAMES` is everything else that an author's names must not hide.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Mapping

from coda_synth.coda_api.gluon_text import GLUON_FUNCTIONS, library
from coda_synth.coda_api.parsing import parse_statements
from coda_synth.coda_api.spelling import FUNCTIONS

_HEAD = '''"""{title}

{note}
"""

import copy
import functools
import inspect

import triton
import triton.language as tl
{imports}
PROCESSORS = {processors}  # persistent programs where no GPU says how many it has
'''

_DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor\n"
_DESCRIBED = '''

def _described(tensor, box):
    """A TMA descriptor of a contiguous matrix: torch calls one row contiguous whatever its stride."""
    return TensorDescriptor(tensor, tensor.shape, [tensor.shape[1], 1], box)
'''
_PROGRAMS = '''

@functools.cache
def _processors(device):
    """Persistent programs that a device runs at once: one for each multiprocessor."""
    import torch  # late, so that kernels can be compiled where torch is not

    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS


def _programs(device, rows, block_m, columns, block_n):
    """The grid of a persistent kernel: at most one program for each tile."""
    return (min(-(-rows // block_m) * -(-columns // block_n), _processors(device)),)
'''
_PIECES = '''

def _programs_for_pieces(device, rows, block_m, columns, block_n, pieces):
    """The grid of a persistent kernel whose work is a piece of a tile's sum."""
    return (min(-(-rows // block_m) * -(-columns // block_n) * pieces, _processors(device)),)
'''
_REPEATS = '''

_REPEATS = {}  # by sizes, scalars and addresses: a call's device, and what launches its kernels on a stream again
_MOST_REPEATS = 1024


class _Address(int):
    """Where a tensor lies, all that a repeated launch keeps of it: its memory may be freed."""

    def data_ptr(self):
        return int(self)


def _kept(argument):
    if hasattr(argument, "base"):  # a descriptor
        argument.base = _Address(argument.base.data_ptr())
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument


def _watched():
    """Whether a hook, a profiler's for one, wants to see launches."""
    before, after = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    return getattr(before, "calls", before) or getattr(after, "calls", after)


def _direct(compiled, grid, arguments):
    """What launches a kernel on a stream: triton's launcher in C, on what triton hands it, descriptors encoded."""
    from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc

    run, stream, handed = copy.copy(compiled.run), object(), []
    anew = run.global_scratch_size or run.profile_scratch_size or getattr(run, "gsan_enabled", False)
    if anew or not isinstance(run, CudaLauncher):
        raise NotImplementedError("memory or checks that triton makes for each launch, or a GPU of another vendor")
    native = inspect.getclosurevars(run.launch).nonlocals["launcher"] if inspect.isfunction(run.launch) else run.launch
    described = compiled.src.signature, compiled.metadata.tensordesc_meta
    run.launch = wrap_handle_tensordesc(lambda *given: handed.extend(given), *described)
    run(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)
    place = handed.index(stream)
    before, after = handed[:place], handed[place + 1 :]
    return lambda stream, _loaded=compiled: native(*before, stream, *after)  # triton unloads what nobody holds


def _launched(kernel, grid, *arguments, **options):
    """Runs a kernel; gives what runs it on a stream again, on the same memory, or None where kernels are interpreted or
    launches watched."""
    compiled = kernel[grid](*arguments, **options)
    if compiled is None or _watched():
        return None
    grid, arguments = (*grid, 1, 1)[:3], [*map(_kept, arguments)]
    try:
        return _direct(compiled, grid, arguments)
    except Exception:  # another release of triton, or another vendor's GPU: the public way is slower and as good
        again = compiled[grid]
        return lambda stream: again(*arguments, stream=stream)


def _keep(key, launches):
    """Remembers a call's launches, for calls with the same sizes, scalars and addresses."""
    if None not in launches:
        if len(_REPEATS) >= _MOST_REPEATS:
            _REPEATS.clear()
        _REPEATS[key] = triton.runtime.driver.active.get_current_device(), launches


def _repeated(key):
    """Launches what an earlier call did, on the current stream; False where none was like this one."""
    kept = _REPEATS.get(key)
    if kept is None or _watched():
        return False
    device, launches = kept
    driver = triton.runtime.driver.active
    if driver.get_current_device() != device:
        return False
    stream = driver.get_current_stream(device)
    for again in launches:
        again(stream)
    return True
'''
_GLUON = '''

@functools.cache
def _layout(dtype, *box):
    """How a box lies in shared memory. dtype: its name in Gluon."""
    return gl.NVMMASharedLayout.get_default_for(box, getattr(gl, dtype))


def _described_g(tensor, box, dtype):
    """A TMA descriptor as Gluon wants it, with the box's layout."""
    return GluonDescriptor(tensor, tensor.shape, [tensor.shape[1], 1], box, _layout(dtype, *box))
'''
_GLUON_IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
"""
_OVERLAP_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
_GLUON_NAMES = """
# Triton 3.8 gave the TMA copies new names, and 3.9 took the old ones away.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
"""
_ADDS = '''

def _tma_add():
    """Adds a box of shared memory to memory, asynchronously as a store: a word of Gluon's from triton 3.8 on."""
    if hasattr(tma, "async_atomic_add"):
        return tma.async_atomic_add
    from triton._C.libtriton.ir import DESCRIPTOR_REDUCE_KIND
    from triton.experimental.gluon.language._core import builtin

    @builtin
    def add(described, place, box, _semantic=None):
        place = _semantic._convert_to_ir_values(place, require_i64=False)
        _semantic.builder.create_async_tma_reduce(DESCRIPTOR_REDUCE_KIND.ADD, described.handle, place, box.handle)

    return add


tma_add = _tma_add()
'''


def _module_names() -> frozenset[str]:
    """What a module with every part defines, imports or takes from Python, read off the texts themselves."""
    head = _HEAD.format(title="", note="", imports=_GLUON_IMPORTS + _OVERLAP_IMPORT + _DESCRIPTOR, processors=0)
    tree = parse_statements("".join((head, _GLUON_NAMES, _ADDS, _PROGRAMS, _PIECES, _DESCRIBED, _GLUON, _REPEATS)))
    found = {"prepare", "launch", *FUNCTIONS, *(f"{name}_g" for name in (*FUNCTIONS, *GLUON_FUNCTIONS))}
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and hasattr(builtins, node.id):
            found.add(node.id)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


MODULE_NAMES = _module_names()


def head_text(
    title: str, program: str, form: str, processors: int, gluon: bool, pieces: bool = False, overlaps: bool = False
) -> str:
    """The module's docstring, imports, and what its launches share."""
    title = _harmless(title.strip())
    how = "pointers and masks" if form == "pointer" else "TMA descriptors"
    head = _HEAD.format(
        title=title,
        note=f"Generated by coda-synth from the program {program}; matrices are reached through {how}.",
        imports=_GLUON_IMPORTS * gluon + _OVERLAP_IMPORT * (gluon and overlaps) + _DESCRIPTOR * (form != "pointer"),
        processors=processors,
    )
    described, names, described_g = _DESCRIBED * (form != "pointer"), _GLUON_NAMES * gluon, _GLUON * gluon
    return head + names + _PROGRAMS + _PIECES * pieces + described + described_g + _REPEATS


def _harmless(title: str) -> str:
    """A text that ends no docstring and no line: what Python or Triton would take for a line break must not be one."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in title)
    return shown.replace("\\", "/").replace('"""', "'''").rstrip('"')


def module_text(head: str, kernels: Iterable[str], prepare: str, launch: str) -> str:
    """The whole module, with the library functions that its kernels call."""
    kernels = "\n\n".join(kernels)
    adds = _ADDS if re.search(r"\btma_add\(", kernels) else ""
    parts = [head, adds, library(kernels), library(kernels, "_g"), kernels, prepare, launch]
    return "\n\n".join(part.strip("\n") + "\n" for part in parts if part.strip())


def prepare_text(arguments: Iterable[str], lines: list[str], prepared: list[str], hidden: Mapping[str, str]) -> str:
    """The module's `prepare`. hidden: parameters called like what it imports, and the names that `lines` have for
    them."""
    head = [f"def prepare({', '.join(arguments)}):", '    """Rearranges the weights, once for each update of them."""']
    if lines:
        head += [*(f"    {name} = {parameter}" for parameter, name in hidden.items()), "    import torch", ""]
    result = ", ".join(f'"{name}": {name}' for name in prepared)
    return "\n".join([*head, *(f"    {line}" for line in lines), f"    return {{{result}}}"]) + "\n"

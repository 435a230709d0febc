"""A task's reference as a graph of ATen operations, as data: made in the reference child, read by the planner.

The types need no torch; `trace_task` imports it, runs the reference on fake tensors and computes nothing.
"""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coda_synth.coda_api.dims import Dim

if TYPE_CHECKING:
    import torch
    from coda_synth.tasks.spec import TaskInput, TaskSpec


class TraceError(Exception):
    """The reference cannot be written as one graph; the message says why."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. args and kwargs hold JSON values, with {"node": name} where another node's result enters.

    place: the reference's own line, "rope.py:12: q = x @ w_q.t()", where it is known.
    """

    name: str
    op: str  # "input", "getitem" (of a node with several results) or an ATen overload, "aten.mm.default"
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    shape: tuple[int, ...]
    dtype: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of the task, with its dims as the language writes them."""

    name: str
    dims: tuple[str, ...]
    dtype: str  # "activation", "float32" or "int64"
    role: str  # "activation", "weight", "scalar" or "output"


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced reference. sizes: of every symbol while tracing, all distinct, so that a size names a dim."""

    task: str
    sizes: Mapping[str, int]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str]  # output name -> node name
    ports: tuple[Port, ...] = ()  # inputs, then outputs, in the task's order


_SCALARS = (77 / 65536, 123 / 65536)  # exact in float32, and no number that a reference would write
_DECOMPOSED = (
    "addcmul addcdiv elu hardsigmoid hardswish leaky_relu lerp log_sigmoid_forward mish native_layer_norm".split()
)
_PLACEMENT = ("device", "pin_memory", "layout", "memory_format")


def trace_task(task: TaskSpec, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of the task's reference at float32; raises TraceError.

    sizes: of every symbol of the task; chosen by `distinct_sizes` where left out. In-place operations are
    functionalised. A scalar input enters as a node, and only where the reference uses it as it is.
    """
    sizes = dict(sizes or distinct_sizes(task))
    scalars = [i.name for i in task.inputs if i.role == "scalar"]
    graph = _trace(task, sizes, _scalar_values(scalars, _SCALARS[0]))
    if scalars:
        other = _trace(task, sizes, _scalar_values(scalars, _SCALARS[1]))
        _refuse_computed_scalars(graph, other, scalars)
    return graph


def distinct_sizes(task: TaskSpec) -> dict[str, int]:
    """Sizes under which every symbol, and so every product of symbols, has a length of its own.

    A symbol that some dim divides gets a power of two; every other symbol a prime of its own.
    """
    dims = [Dim.parse(d) for port in _ports(task) for d in port.dims]
    symbols = sorted({s for d in dims for s in d.all_symbols})
    divided = {s for d in dims if d.scale.denominator > 1 for s in d.symbols}
    under = {s for d in dims for s, power in d.powers if power < 0}
    primes, powers = _primes(), (2**n for n in itertools.count(4, 3))
    sizes = {s: next(powers) if s in divided | under else next(primes) for s in symbols}
    for dim in dims:
        _make_whole(dim, sizes)
    return sizes


def _primes() -> Iterator[int]:
    return (n for n in itertools.count(11, 2) if all(n % d for d in range(3, int(n**0.5) + 1, 2)))


def _make_whole(dim: Dim, sizes: dict[str, int]) -> None:
    """Lengthens the first symbol over the stroke until the dim is a whole number."""
    over = sorted(dim.symbols)
    under = dim.scale.denominator
    for name, power in dim.powers:
        under *= sizes[name] ** -power if power < 0 else 1
    if over and (sizes[over[0]] * dim.scale.numerator) % under:
        sizes[over[0]] *= under


def _scalar_values(names: list[str], base: float) -> dict[str, float]:
    return {name: base * (1 + position) for position, name in enumerate(names)}


def _trace(task: TaskSpec, sizes: Mapping[str, int], scalars: Mapping[str, float]) -> Graph:
    traced = _traced_module(task, sizes, scalars)
    names: dict[Any, str] = {}
    nodes: list[Node] = []
    outputs: dict[str, str] = {}
    inputs = iter(task.inputs)
    for fx_node in traced.graph.nodes:
        if fx_node.op == "placeholder":
            names[fx_node] = next(i.name for i in inputs if i.role != "scalar")
            nodes.append(_node(fx_node, names[fx_node], "input", names, {}))
        elif fx_node.op == "output":
            outputs = {name: names[value] for name, value in fx_node.args[0].items()}
        elif fx_node.op == "get_attr":
            raise TraceError(
                f"the reference of {task.name} holds a constant tensor ({fx_node.target}); make it an input"
            )
        else:
            names[fx_node] = _fresh(fx_node.name, names.values(), scalars)
            nodes.append(_node(fx_node, names[fx_node], _op_name(fx_node.target), names, scalars))
    nodes = [Node(name, "input", (), {}, (), "float32") for name in scalars] + nodes
    missing = [o.name for o in task.outputs if o.name not in outputs]
    if missing:
        raise TraceError(f"the reference of {task.name} does not return {', '.join(missing)}")
    return Graph(task.name, dict(sizes), tuple(nodes), {o.name: outputs[o.name] for o in task.outputs}, _ports(task))


def _traced_module(task: TaskSpec, sizes: Mapping[str, int], scalars: Mapping[str, float]) -> Any:
    """The reference as an fx module over fake tensors; functionalised only where it writes in place."""
    from torch._decomp import get_decompositions
    from torch.func import functionalize

    names = [i.name for i in task.inputs if i.role != "scalar"]
    tensors = [_example(i, sizes) for i in task.inputs if i.role != "scalar"]

    def reference(*values: torch.Tensor) -> Mapping[str, torch.Tensor]:
        with _places():
            return task.reference(**dict(zip(names, values, strict=True)), **scalars)

    table = get_decompositions(_decomposed_ops())
    try:
        module = _make(reference, table, tensors)
        if any(_is_in_place(node.target) for node in module.graph.nodes):
            module = _make(functionalize(reference, remove="mutations"), table, tensors)
    except Exception as error:  # whatever a foreign reference raises is one thing to the caller
        reason = str(error).strip().splitlines() or [""]
        raise TraceError(
            f"the reference of {task.name} cannot be traced: {type(error).__name__}: {reason[0]}"
        ) from error
    module.graph.eliminate_dead_code()
    return module


def _make(function: Callable[..., Any], table: Any, tensors: list[torch.Tensor]) -> Any:
    import torch
    from torch.fx import traceback
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad(), traceback.preserve_node_meta():
        return make_fx(function, table, tracing_mode="fake")(*tensors)


def _places() -> Any:
    """A mode that marks every operation with the reference's own line."""
    import torch
    from torch.fx import traceback
    from torch.overrides import TorchFunctionMode

    library = torch.__file__.rsplit("/", 1)[0]

    class Places(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename.startswith(library):
                frame = frame.f_back
            with traceback.annotate({"place": _place(frame.f_code.co_filename, frame.f_lineno)}):
                return func(*args, **(kwargs or {}))

    return Places()


def _place(path: str, line: int) -> str:
    text = linecache.getline(path, line).strip()
    return f"{path.rsplit('/', 1)[-1]}:{line}: {text}".rstrip(": ")


def _decomposed_ops() -> list[Any]:
    import torch

    return [getattr(torch.ops.aten, name) for name in _DECOMPOSED]


def _is_in_place(target: Any) -> bool:
    return bool(getattr(getattr(target, "_schema", None), "is_mutable", False))


def _example(port: TaskInput, sizes: Mapping[str, int]) -> torch.Tensor:
    import torch

    dtype = torch.int64 if port.dtype == "int64" else torch.float32
    return torch.zeros([Dim.parse(d).size(sizes) for d in port.dims], dtype=dtype)


def _ports(task: TaskSpec) -> tuple[Port, ...]:
    inputs = [Port(i.name, tuple(i.dims), i.dtype, i.role) for i in task.inputs]
    return tuple(inputs + [Port(o.name, tuple(o.dims), o.dtype, "output") for o in task.outputs])


def _fresh(name: str, used: Any, scalars: Mapping[str, float]) -> str:
    taken = {*used, *scalars}
    return next(n for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2))) if n not in taken)


def _op_name(target: Any) -> str:
    return "getitem" if getattr(target, "__name__", "") == "getitem" else str(target)


def _node(fx_node: Any, name: str, op: str, names: Mapping[Any, str], scalars: Mapping[str, float]) -> Node:
    value = fx_node.meta.get("val")
    shape = tuple(int(n) for n in value.shape) if hasattr(value, "shape") else ()
    dtype = str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else "several"
    args = tuple(_plain(a, names, scalars) for a in fx_node.args)
    kwargs = {k: _plain(v, names, scalars) for k, v in fx_node.kwargs.items() if k not in _PLACEMENT}
    if op == "input":
        args, kwargs = (), {}
    return Node(name, op, args, kwargs, shape, dtype, (fx_node.meta.get("custom") or {}).get("place", ""))


def _plain(value: Any, names: Mapping[Any, str], scalars: Mapping[str, float]) -> object:
    """JSON values; a float that is a scalar input's stand-in becomes a reference to that input."""
    if value in names if hasattr(value, "meta") else False:
        return {"node": names[value]}
    if isinstance(value, float):
        return next(({"node": n} for n, v in scalars.items() if v == value), value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v, names, scalars) for v in value]
    return str(value).removeprefix("torch.")


def _refuse_computed_scalars(graph: Graph, other: Graph, scalars: list[str]) -> None:
    """Two traces with other values of the scalars must agree, or a number in them was computed from a scalar."""
    for one, two in itertools.zip_longest(graph.nodes, other.nodes):
        if one is None or two is None or replace(one, place="") != replace(two, place=""):
            where = (one or two).place or (one or two).name
            raise TraceError(
                f"a scalar input ({', '.join(scalars)}) does not enter as it is, at {where}; "
                "let the reference use it in tensor arithmetic only"
            )

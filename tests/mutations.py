"""Wrong results made from a right one: what a judge must not accept. All are exact but for their one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from coda_synth.evaluator.codes import Unrounded
from coda_synth.evaluator.correctness import exact_outputs
from coda_synth.tasks.spec import TaskSpec
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = dict[str, torch.Tensor]
_aten = torch.ops.aten


def wide(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in inputs.items()}


def exact(task: TaskSpec, inputs: Mapping[str, Any]) -> Tensors:
    return exact_outputs(task, inputs)


# ---- faults in the inputs' use -------------------------------------------------------------------------------------


def narrowed(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Every bf16 input in the next lower precision."""
    fp8 = torch.float8_e4m3fn
    return {
        n: v.clamp(-448, 448).to(fp8).to(v.dtype) if isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16 else v
        for n, v in inputs.items()
    }


def without_last_k(inputs: Mapping[str, Any], name: str, columns: int) -> dict[str, Any]:
    """The last columns of the first GEMM's operand never multiplied."""
    cut = inputs[name].clone()
    cut[:, -columns:] = 0
    return {**inputs, name: cut}


# ---- faults in the outputs -----------------------------------------------------------------------------------------


def _matrix(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1, 1) if value.dim() < 2 else value


def _rank_one(value: torch.Tensor) -> torch.Tensor:
    u, s, v = torch.linalg.svd(_matrix(value), full_matrices=False)
    return (s[0] * torch.outer(u[:, 0], v[0])).reshape(value.shape)


def _skip_tile(value: torch.Tensor) -> torch.Tensor:
    result = value.clone()
    result.reshape(-1, 1)[-16:] = 0 if value.dim() < 2 else result.reshape(-1, 1)[-16:]
    if value.dim() == 2:
        result[:16, -16:] = 0
    return result


def _transpose_tile(value: torch.Tensor) -> torch.Tensor:
    result = value.clone()
    side = min(16, *value.shape)
    result[:side, :side] = value[:side, :side].T
    return result


def _stale_row(value: torch.Tensor) -> torch.Tensor:
    result = value.clone()
    result[-1] = 0
    return result


def output_faults(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield "zeros", torch.zeros_like(value)
    yield "constant", torch.full_like(value, float(value.mean()) if value.numel() > 1 else 1.0)
    if value.dim() == 0:
        return
    yield "skipped tile", _skip_tile(value)
    yield "stale last row", _stale_row(value)
    yield "neighbouring row", value.roll(1, 0)
    if value.dim() == 2:
        yield "rank one", _rank_one(value)
        yield "shifted column", value.roll(1, 1)
        yield "transposed tile", _transpose_tile(value)


# ---- faults in the algebra, made from the reference itself ---------------------------------------------------------

_ADDENDS = (_aten.add.Tensor, _aten.sub.Tensor, _aten.add.Scalar)
_FACTORS = (_aten.mul.Tensor, _aten.div.Tensor)
_TO_ONE = (_aten.rsqrt.default, _aten.cos.default)
_TO_ZERO = (_aten.sin.default, _aten.logsumexp.default, _aten.gather.default)
_TO_SELF = tuple(
    getattr(_aten, name).default for name in ("silu", "gelu", "neg", "relu", "abs", "tanh", "sigmoid", "clamp")
)
_SUMS = (_aten.sum.dim_IntList, _aten.mean.dim)


def _faults(func: Any, args: tuple[Any, ...], out: Any) -> dict[str, Callable[[], Any]]:
    """What may go wrong at one operation, each a result of the right shape."""
    if func is _aten.native_layer_norm.default:
        return {f"{func} {k}": v for k, v in _layer_norm_faults(func, *args).items()}
    if not isinstance(out, torch.Tensor) or not out.is_floating_point():
        return {}
    keep = {f"keeps argument {i}": args[i] for i in (0, 1) if len(args) > 1 and isinstance(args[i], torch.Tensor)}
    made: dict[str, Callable[[], Any]] = {}
    if func in _ADDENDS or func in _FACTORS:
        made = {k: (lambda v=v: v.to(out.dtype).expand_as(out).clone()) for k, v in keep.items()}
    elif func is _aten.addmm.default:
        made = {"drops the bias": lambda: args[1] @ args[2]}
    elif func is _aten.mm.default:
        made = {"leaves out the last of the reduction": lambda: args[0][:, :-1] @ args[1][:-1]}
    elif func in _SUMS:
        dim = args[1][0]
        made = {"leaves out the last": lambda: func(args[0].narrow(dim, 0, args[0].shape[dim] - 1), *args[1:])}
    elif func is _aten.amax.default:
        made = {"is the neighbouring row's": lambda: out.roll(1, 0)}
    elif func in _TO_ONE:
        made = {"is one": lambda: torch.ones_like(out), "is the neighbouring row's": lambda: out.roll(1, 0)}
    elif func in _TO_ZERO:
        made = {"is zero": lambda: torch.zeros_like(out), "is the neighbouring row's": lambda: out.roll(1, 0)}
    elif func in _TO_SELF:
        made = {"does nothing": lambda: args[0].clone()}
    elif func is _aten.where.self:
        made = {"ignores the condition": lambda: args[1].clone()}
    elif func is _aten.cat.default and args[0][0] is not args[0][1]:
        made = {"joins in the wrong order": lambda: torch.cat(tuple(reversed(args[0])), *args[1:])}
    return {f"{func} {k}": v for k, v in made.items()}


def _layer_norm_faults(
    func: Any, x: torch.Tensor, shape: list[int], weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> dict[str, Callable[[], Any]]:
    mean = x.mean(-1, keepdim=True)
    return {
        "leaves out its weight": lambda: func(x, shape, None, bias, eps),
        "leaves out its bias": lambda: func(x, shape, weight, None, eps),
        "leaves out its epsilon": lambda: func(x, shape, weight, bias, 0.0),
        "takes the neighbouring row's mean": lambda: (
            func(x, shape, weight, bias, eps)[0] + (mean - mean.roll(1, 0)) * weight,
            *func(x, shape, weight, bias, eps)[1:],
        ),
    }


class Fault(TorchDispatchMode):
    """Runs a reference with the `chosen`th possible fault in place, and lists every one that it came across."""

    def __init__(self, chosen: int = -1) -> None:
        super().__init__()
        self.chosen = chosen
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for name, make in _faults(func, args, out).items():
            self.names.append(f"operation fault {len(self.names)}: {name}")
            if len(self.names) - 1 == self.chosen:
                out = make()
        return out


def algebra_faults(task: TaskSpec, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    with torch.no_grad(), Unrounded(), Fault() as mode:
        task.reference(**wide(inputs))
    return tuple(mode.names)


def with_algebra_fault(task: TaskSpec, inputs: Mapping[str, Any], chosen: int) -> Tensors:
    with torch.no_grad(), Unrounded(), Fault(chosen):
        return task.reference(**wide(inputs))

"""What a wrong program may have got wrong: the reference with one fault in it, whose results are the program's own.

Runs the reference again, in float64, with one operation at a time done wrongly, as authors do it, and compares.
Nothing here knows an operator. A suspect is a hint for the author, never a verdict.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from coda_synth.tasks.spec import TaskSpec
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = Mapping[str, torch.Tensor]
Inputs = Mapping[str, Any]
Way = tuple[str, Callable[[], Any]]
_CLOSE = 1e-5  # of the largest element
_SECONDS = 3.0  # of this processor's work at trying faults, whoever else is at work; a large reference has many
_aten = torch.ops.aten


def suspect(task: TaskSpec, inputs: Inputs, outputs: Tensors) -> str:
    """One clause, as "it is what the reference gives if ...", or "" where no single fault explains all outputs.

    inputs: float64, on the device of the outputs.
    """
    wanted = {name: value.double() for name, value in outputs.items()}
    deadline = time.process_time() + _SECONDS
    with torch.no_grad():
        for said, made in _faulty(task, inputs):
            if time.process_time() > deadline:
                break
            if made is not None and _same(made, wanted):
                return f"it is what the reference gives if {said}"
    return ""


def _faulty(task: TaskSpec, inputs: Inputs) -> Iterator[tuple[str, Tensors | None]]:
    """The reference with each fault in turn."""
    counting = _Fault(task, -1)
    with counting:
        _run(task, inputs)
    for chosen in range(counting.seen):
        mode = _Fault(task, chosen)
        with mode:
            yield mode, _run(task, inputs)  # type: ignore[misc]
    for one, other in itertools.combinations([n for n, v in inputs.items() if isinstance(v, torch.Tensor)], 2):
        if inputs[one].shape == inputs[other].shape and inputs[one].dtype == inputs[other].dtype:
            swapped = {**inputs, one: inputs[other], other: inputs[one]}
            yield f"{one} and {other} are exchanged", _run(task, swapped)


def _run(task: TaskSpec, inputs: Inputs) -> Tensors | None:
    own = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}  # it may write into them
    try:
        return task.reference(**own)
    except Exception:  # a fault may well break the reference; then it is not what happened
        return None


def _same(made: Tensors, wanted: Tensors) -> bool:
    """Whether all outputs are a fault's. What is not finite must be the same there, and alone it proves nothing: any
    fault may end in infinity."""
    alike = all(
        name in made and made[name].shape == value.shape and _close(made[name].double(), value)
        for name, value in wanted.items()
    )
    return alike and any(bool(value.isfinite().any()) for value in wanted.values())


def _close(made: torch.Tensor, value: torch.Tensor) -> bool:
    finite = value.isfinite()
    largest = float(torch.where(finite, value, 0.0).abs().max().clamp_min(1e-30))
    near = torch.where(finite, (made - value).abs() <= _CLOSE * largest, made == value)
    return bool((near | (made.isnan() & value.isnan())).all())


class _Fault(TorchDispatchMode):
    """Runs with the `chosen`th possible fault in place, counts all of them, and says what the chosen one is."""

    def __init__(self, task: TaskSpec, chosen: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.chosen, self.seen, self.said = chosen, 0, ""
        self._file = task.reference.__code__.co_filename
        self._made: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # sums, and what they were made of

    def __str__(self) -> str:
        return self.said

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            for said, make in (*_ways(func, args, out), *self._earlier(func, args, kwargs)):
                if self.seen == self.chosen:
                    self.said = f"{said}, in `{self._place()}`"
                    out = make()
                self.seen += 1
        if func is _aten.add.Tensor:
            self._made[id(out)] = (out, args)
        return out

    def _earlier(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[Way]:
        """A sum not yet made: the operation takes one of its addends."""
        for arg in args:
            if isinstance(arg, torch.Tensor) and id(arg) in self._made:
                for addend in self._made[id(arg)][1]:
                    if isinstance(addend, torch.Tensor) and addend.shape == arg.shape:
                        other = tuple(addend if a is arg else a for a in args)
                        again = functools.partial(func, *other, **(kwargs or {}))
                        yield f"{_name(func)} sees a value before an addition", again

    def _place(self) -> str:
        """The expression of the reference that is at work: a line may hold two multiplications."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        name = frame.f_code.co_filename
        positions = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
        first, last, start, end = next(positions, (None, None, None, None))
        line = linecache.getline(name, frame.f_lineno)
        if first is None or first != last or start is None or end is None:
            return line.strip()  # an expression of several lines is told by the one at work
        return linecache.getline(name, first).encode()[start:end].decode(errors="replace").strip()


def _name(func: Any) -> str:
    return str(func).split(".")[1]


def _ways(func: Any, args: tuple[Any, ...], out: torch.Tensor) -> list[Way]:
    """In which ways an operation is got wrong; each with a result of the right shape."""
    name = _name(func)
    if name in ("add", "sub", "mul", "div") and len(args) > 1:
        return _binary(name, args, out)
    if name in _MAPS:
        others = [(f"{name} is left out", lambda: args[0].clone())]
        return others + [
            (f"{other} stands for {name}", lambda f=f: f(args[0])) for other, f in _MAPS.items() if other != name
        ]
    if name in ("mean", "sum") and len(args) > 1:
        dims = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        count = math.prod(args[0].shape[d] for d in dims)
        factor = count if name == "mean" else 1 / count
        return [(f"a {'sum' if name == 'mean' else 'mean'} stands for the {name}", lambda: out * factor)]
    if name == "pow":
        return [
            ("magnitudes stand for squares", lambda: args[0].abs()),
            ("the power is left out", lambda: args[0].clone()),
        ]
    if name == "logsumexp":
        keep = len(args) > 2 and bool(args[2])
        return [("a maximum stands for the logsumexp", lambda: args[0].amax(args[1], keep))]
    if name in ("cos", "sin"):
        flat = ("is one", lambda: torch.ones_like(out)) if name == "cos" else ("is zero", lambda: torch.zeros_like(out))
        return [(f"{name} has the other sign", lambda: -out), (f"{name} {flat[0]}", flat[1])]
    if name == "addmm":
        return [("the bias is left out", lambda: args[1] @ args[2])]
    if name == "where":
        return [("the condition is ignored", lambda: args[1].expand_as(out).clone())]
    if name == "neg":
        return [("a sign is left out", lambda: args[0].clone())]
    return []


def _like(kept: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return kept.to(out.dtype).expand_as(out).clone()


def _binary(name: str, args: tuple[Any, ...], out: torch.Tensor) -> list[Way]:
    one, two = args[:2]
    ways: list[Way] = []
    for kept, left in ((one, "second"), (two, "first")):
        if isinstance(kept, torch.Tensor):
            what = "addend" if name in ("add", "sub") else "factor"
            ways.append((f"the {left} {what} is left out", functools.partial(_like, kept, out)))
    if name in ("add", "sub"):
        ways.append(("the second addend has the other sign", lambda: one - two if name == "add" else one + two))
        ways.append(("the first addend has the other sign", lambda: two - one if name == "add" else -one - two))
    else:
        again: Callable[[], Any] = (lambda: out * two) if name == "mul" else (lambda: out / two)
        ways.append(("the second factor is applied twice", again))
        ways.append(("the first factor is applied twice", lambda: out * one))
        for factor, said in ((2 * math.pi, "2 pi"), (0.5 / math.pi, "1 / (2 pi)"), (2.0, "2"), (0.5, "1 / 2")):
            ways.append((f"a product is {said} times too large", functools.partial(torch.mul, out, factor)))
    return ways


_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
}

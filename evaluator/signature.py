"""From a task to its signature: what a candidate's program must take and give, in the language's own types."""

from __future__ import annotations

from coda_synth.coda_api.dims import Dim
from coda_synth.coda_api.program import InputSpec, OutputSpec, Signature, Type, TypeKind
from coda_synth.tasks.spec import TaskInput, TaskSpec


def signature(task: TaskSpec, dtype: str = "bfloat16") -> Signature:
    """The task's signature at one activation dtype; raises ValueError for a dtype that the task does not declare."""
    if dtype not in task.dtypes:
        raise ValueError(f"{task.name} is not defined for {dtype}; its dtypes are {', '.join(task.dtypes)}")
    inputs = tuple(InputSpec(i.name, _type(i), _dtype(i.dtype, dtype), i.role) for i in task.inputs)
    outputs = tuple(OutputSpec(o.name, _dims(o.dims), _dtype(o.dtype, dtype)) for o in task.outputs)
    return Signature(task.name, inputs, outputs, dtype)


def _type(entry: TaskInput) -> Type:
    if entry.role == "scalar":
        return Type(TypeKind.SCALAR)
    return Type(TypeKind.INDEX if entry.dtype == "int64" else TypeKind.TENSOR, _dims(entry.dims))


def _dims(texts: tuple[str, ...]) -> tuple[Dim, ...]:
    return tuple(map(Dim.parse, texts))


def _dtype(declared: str, activation: str) -> str:
    return activation if declared == "activation" else declared

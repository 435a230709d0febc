"""The dtype in which each value between units is stored: one answer for reference meaning, lowering and cost model."""

from __future__ import annotations

from coda_synth.coda_api.program import Call, Form, Kernel, Preparation, Program, Ref, Signature, Value, walk

_REARRANGING = frozenset({"param", "interleave", "concat", "join", "transpose"})
TORCH_DTYPES = {"float8_e4m3": "float8_e4m3fn"}


def torch_name(dtype: str) -> str:
    """The name in torch of a dtype as the language writes it."""
    return TORCH_DTYPES.get(dtype, dtype)


def stored_dtype(program: Program, signature: Signature, call: Call, output: str) -> str:
    """The torch name of the dtype that holds an output of a call.

    What is accumulated has that of the input that it overwrites; a task output the dtype that the task declares; what
    is cast outermost the cast's; a tile the activation dtype; vectors, picks, sums and partials float32. A prepared
    weight that was only rearranged keeps its dtype; else matrices have the activation dtype and vectors float32.
    """
    value = call.unit.outputs[output]
    if param := accumulated_into(value):
        return ref_dtype(program, signature, call.args[param])
    declared = _declared(program, signature, call, output)
    if declared:
        return declared
    if isinstance(call.unit, Preparation):
        return _prepared(program, signature, call, value)
    if value.word == "cast":
        return torch_name(str(value.attrs["dtype"]))
    tile = isinstance(call.unit, Kernel) and value.form is Form.TILE
    return signature.dtype if tile else "float32"


def accumulated_into(value: Value) -> str | None:
    """The parameter that an output overwrites with itself plus something, or None."""
    return str(value.args[0].attrs["name"]) if value.word == "accumulate" else None


def _declared(program: Program, signature: Signature, call: Call, output: str) -> str | None:
    for spec in signature.outputs:
        ref = program.outputs.get(spec.name)
        if ref and (ref.call, ref.output) == (call.name, output):
            return torch_name(spec.dtype)
    return None


def _prepared(program: Program, signature: Signature, call: Call, value: Value) -> str:
    values = list(walk([value]))
    if not all(v.word in _REARRANGING for v in values):
        return signature.dtype if value.cols is not None else "float32"
    name = next(str(v.attrs["name"]) for v in values if v.word == "param")
    return ref_dtype(program, signature, call.args[name])


def ref_dtype(program: Program, signature: Signature, ref: Ref) -> str:
    """The torch name of the dtype of a tensor that an argument refers to: an input, or an output of a call."""
    if ref.input:
        return torch_name(next(i.dtype for i in signature.inputs if i.name == ref.input))
    call = next(c for c in program.calls if c.name == ref.call)
    return stored_dtype(program, signature, call, str(ref.output))

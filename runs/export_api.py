"""The torch-facing module of an exported package, as text: checks, prepares, allocates, picks a form, launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coda_synth.coda_api.generated import Generated
from coda_synth.coda_api.program import InputSpec, OutputSpec, Signature
from coda_synth.runs.export_kernels import Axis, Kernels
from coda_synth.runs.export_sizes import dim_text, shape_text, solved


@dataclass(frozen=True, slots=True)
class Surface:
    """What the module is made from."""

    signature: Signature
    summary: str
    kernels: Kernels

    @property
    def generated(self) -> Generated:
        """Either form: they differ in their text alone."""
        return self.kernels.descriptor

    def inputs(self, *roles: str) -> list[InputSpec]:
        return [spec for spec in self.signature.inputs if spec.role in roles]


def api_text(surface: Surface, package: str) -> str:
    """The whole module."""
    parts = [_head(surface, package), _weights(), _prepare(surface)]
    if len(surface.signature.outputs) > 1:
        parts.append(_outputs_type(surface))
    parts.append(_forward(surface))
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def result_type(signature: Signature) -> str:
    """The type that the call returns: a tensor, or a named tuple of them."""
    return "torch.Tensor" if len(signature.outputs) == 1 else "Outputs"


def _head(surface: Surface, package: str) -> str:
    warns = "import warnings\n" if surface.kernels.hopper else ""
    module = "from types import ModuleType\n" if surface.kernels.hopper else ""
    several = "from typing import NamedTuple\n" if len(surface.signature.outputs) > 1 else ""
    return f'''"""{surface.summary}

Generated Triton kernels behind plain functions, forward only. Call `prepare` once for each set of weights.
"""

from __future__ import annotations

{warns}from dataclasses import dataclass
{module}{several}
import torch

from {package}.interpreter import ready

ready()  # before the kernels are imported, which is when triton decides whether they are interpreted

from {package} import descriptor, pointer  # noqa: E402
from {package}.checks import (  # noqa: E402
    aligned, fixed, forward_only, on_device, on_hopper, shape, tensor, together,
)
{_choice(surface, package)}'''


def _choice(surface: Surface, package: str) -> str:
    """How a call picks its kernels. Gluon, which the Hopper ones need, is imported only where they can run."""
    if surface.kernels.hopper is None:
        return ""
    return f'''

def _described(first: torch.Tensor) -> ModuleType:
    """The kernels for aligned matrices: warp-specialised ones on Hopper, where triton has what they need."""
    if not on_hopper(first):
        return descriptor
    try:
        from {package} import hopper
    except (ImportError, AttributeError) as error:  # Gluon's names still move between releases of triton
        warnings.warn(f"this triton lacks what the Hopper kernels need, others run instead: {{error}}", stacklevel=3)
        return descriptor
    return hopper
'''


def _weights() -> str:
    return '''@dataclass(frozen=True)
class Weights:
    """Weights as the kernels read them. Made by `prepare`; make new ones whenever a weight changes."""

    tensors: dict[str, torch.Tensor]
    sizes: dict[str, int]
'''


def _prepare(surface: Surface) -> str:
    weights = surface.inputs("weight")
    symbols = _new(weights, ())
    lines = [*_checked(weights, ()), *_fixed(surface, symbols)]
    entries = [f'"{w.name}": {w.name}' for w in weights if w.name in surface.generated.arguments]
    if surface.generated.prepare_arguments:
        entries.append(f"**descriptor.prepare({_keywords(surface.generated.prepare_arguments)})")
    sizes = ", ".join(f'"{s}": {s}' for s in symbols)
    lines += ["return Weights(", f"    tensors={{{', '.join(entries)}}},", f"    sizes={{{sizes}}},", ")"]
    doc = ["Rearranges the weights, once for each update of them.", "", *map(_described, weights)]
    params = ["*", *(f"{w.name}: torch.Tensor" for w in weights)]
    return "@torch.no_grad()\n" + _function("prepare", params, "Weights", doc, lines)


def _outputs_type(surface: Surface) -> str:
    fields = "\n".join(f"    {o.name}: torch.Tensor  # {_output_text(o)}" for o in surface.signature.outputs)
    return f'class Outputs(NamedTuple):\n    """What one call returns."""\n\n{fields}\n'


def _forward(surface: Surface) -> str:
    activations, weights, scalars = (surface.inputs(role) for role in ("activation", "weight", "scalar"))
    symbols = _new(weights, ())
    params = [f"{a.name}: torch.Tensor" for a in activations] + ["weights: Weights | None = None", "*"]
    params += [f"{s.name}: float" for s in scalars] + [f"{w.name}: torch.Tensor | None = None" for w in weights]
    lines = ["if weights is None:", f"    weights = prepare({_keywords([w.name for w in weights])})"]
    sizes = ", ".join(f'weights.sizes["{s}"]' for s in symbols)
    lines += [f"{', '.join(symbols)} = {sizes}"] if symbols else []
    lines += [*_checked(activations, symbols), *_fixed(surface, _new(activations, symbols))]
    names = ", ".join(a.name for a in activations)
    lines += [
        f"together({names}, *weights.tensors.values())",
        f"forward_only({names})",
        "",
        *_launch(surface, activations[0].name),
    ]
    doc = [
        f"{surface.summary}",
        "",
        "Give the `weights` that `prepare` made, or the weights themselves, which are then prepared in every call.",
        "",
        *map(_described, activations),
        f"Returns {', '.join(map(_output_text, surface.signature.outputs))}.",
    ]
    return _function(surface.signature.name, params, result_type(surface.signature), doc, lines)


def _launch(surface: Surface, first: str) -> list[str]:
    """Allocation, choice of the form, launch and return."""
    generated = surface.generated
    own = {spec.name for spec in surface.inputs("activation", "scalar")} | {b.name for b in generated.buffers}
    texts = {n: n if n in own else f'weights.tensors["{n}"]' for n in generated.arguments}
    lines = [
        f"{b.name} = {first}.new_empty({_buffer_shape(surface.kernels.shapes[b.name])}, dtype=torch.{b.dtype})"
        for b in generated.buffers
    ]
    matrices = ", ".join(text for name, text in texts.items() if name not in _no_matrices(surface) and name in own)
    best = f"_described({first})" if surface.kernels.hopper else "descriptor"
    lines += ["", f"kernels = {best} if aligned({matrices}, *weights.tensors.values()) else pointer"]
    lines += [f"with on_device({first}):", "    kernels.launch("]
    lines += [f"        {name}={text}," for name, text in texts.items()]
    return [*lines, "    )", f"return {_returned(surface)}"]


def _no_matrices(surface: Surface) -> set[str]:
    """Arguments that no descriptor reaches: scalars, vectors and partials."""
    inputs = {i.name for i in surface.signature.inputs if len(i.type.dims) != 2}
    return inputs | {
        b.name for b in surface.generated.buffers if len(b.shape) != 2 or surface.kernels.shapes[b.name][0].tile
    }


def _buffer_shape(axes: tuple[Axis, ...]) -> str:
    inside = ", ".join(map(str, axes))
    return f"({inside},)" if len(axes) == 1 else f"({inside})"


def _returned(surface: Surface) -> str:
    holders = {output: b.name for b in surface.generated.buffers for output in b.outputs}
    names = [holders[o.name] for o in surface.signature.outputs]
    return names[0] if len(names) == 1 else f"Outputs({', '.join(names)})"


def _checked(inputs: Sequence[InputSpec], known: Sequence[str]) -> list[str]:
    """Type and rank first, then sizes from shapes, then every shape against the sizes."""
    lines = [f'{i.name} = tensor("{i.name}", {i.name}, {len(i.type.dims)}, torch.{i.dtype})' for i in inputs]
    lines += [f"{s} = {text}" for s, text in solved([(i.name, i.type.dims) for i in inputs], known)]
    return lines + [f'shape("{i.name}", {i.name}, {shape_text(i.type.dims)})' for i in inputs]


def _new(inputs: Sequence[InputSpec], known: Sequence[str]) -> list[str]:
    return [s for s, _ in solved([(i.name, i.type.dims) for i in inputs], known)]


def _fixed(surface: Surface, symbols: Sequence[str]) -> list[str]:
    return [f'fixed("{s}", {s}, {surface.kernels.fixed[s]})' for s in symbols if s in surface.kernels.fixed]


def _keywords(names: Sequence[str]) -> str:
    return ", ".join(f"{n}={n}" for n in names)


def _described(spec: InputSpec) -> str:
    return f"{spec.name}: [{', '.join(map(dim_text, spec.type.dims))}], {spec.dtype}."


def _output_text(spec: OutputSpec) -> str:
    shape = f"[{', '.join(map(dim_text, spec.dims))}]" if spec.dims else "one number"
    return f"{spec.name} {shape}, {spec.dtype}"


def _function(name: str, params: Sequence[str], result: str, doc: Sequence[str], lines: Sequence[str]) -> str:
    head = f"def {name}({', '.join(params)}) -> {result}:"
    if len(head) > 110:
        head = f"def {name}(\n" + "".join(f"    {p},\n" for p in params) + f") -> {result}:"
    text = [f'"""{doc[0]}', *doc[1:], '"""', *lines]
    return head + "\n" + "".join(f"    {line}\n" if line else "\n" for line in text)

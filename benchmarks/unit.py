"""A whole Llama layer, forward and forward + backward: ours, eager, torch.compile, max-autotune, Liger, and the bound.

    python benchmarks/unit.py [8b] [1b] [--seconds 20] [--no-autotune] [--json FILE]
    python benchmarks/unit.py --device cpu --tiny

The layers are layer.py's. bound: the bare GEMMs and attention alone, what remains when everything else is free, timed
in the same race; what is printed is the bound over each time. A layer runs between others of its kind, for as long as a
model trains: so every lap repeats one until a tenth of a second has passed, for a card at its power limit to settle at
the clock that it has then. Before anything is timed, outputs and gradients are checked against eager's. On a GPU also
the most memory that a forward and backward takes; unit_memory.py says what stays between the two.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import duration, on_cpu, one_of, output

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
import torch.nn.functional as F
from coda_synth.evaluator.race import Clock, Lap

from benchmarks import gap
from benchmarks.contest import clock_of, lasting, machine, one_line
from benchmarks.layer import (
    SHAPES,
    TINY,
    Given,
    Layer,
    Ours,
    Shape,
    Weights,
    drawn,
    eager_layer,
    in_halves,
    liger_layer,
)
from benchmarks.peers import found
from benchmarks.unit_memory import allocated

AGREE = 3e-2  # relative norm of a difference from eager's, both in bf16
Tensor = torch.Tensor
Runs = dict[str, Callable[[], object]]


def forward_runs(layers: Mapping[str, Layer], ours: Ours, given: Given, weights: Weights) -> Runs:
    """Without gradients."""
    leaves = (given.q, given.k, given.v, given.x, *weights.tensors())
    qkv = ours.packed(given.q.detach(), given.k.detach(), given.v.detach())

    def run(layer: Layer) -> object:
        with torch.no_grad():
            return layer(*leaves)

    return {"ours": lambda: ours.forward(qkv, given.x.detach()), **{n: _of(run, f) for n, f in layers.items()}}


def whole_runs(layers: Mapping[str, Layer], ours: Ours, given: Given, weights: Weights) -> Runs:
    """Forward and backward: every run gives the gradients of q, k, v, x and the weights."""
    leaves = (given.q, given.k, given.v, given.x, *weights.tensors())
    qkv = ours.packed(given.q.detach(), given.k.detach(), given.v.detach())
    dqkv = ours.packed(given.dq, given.dk, given.dv)

    def run(layer: Layer) -> object:
        return torch.autograd.grad(layer(*leaves), leaves, (given.dx, given.dq, given.dk, given.dv))

    def own() -> object:
        return ours.backward(*ours.kept(qkv, given.x.detach()), dqkv, given.dx)

    return {"ours": own, **{n: _of(run, f) for n, f in layers.items()}}


def _of(run: Callable[[Layer], object], layer: Layer) -> Callable[[], object]:
    return lambda: run(layer)


def bound_runs(shape: Shape, device: str) -> Runs:
    """The GEMMs and attention of a layer with nothing else: forward, and forward and backward."""
    sizes, operands = shape.sizes, []

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=device, dtype=torch.bfloat16)

    for n, k in ((sizes["D"], sizes["A"]), (2 * shape.f, shape.d), (shape.d, shape.f), (shape.columns, shape.d)):
        operands.append((normal(shape.tokens, k), normal(n, k), normal(shape.tokens, n)))
    q, key, v = (
        normal(shape.batch, heads, shape.length, shape.head).requires_grad_()
        for heads in (shape.heads, shape.kv, shape.kv)
    )
    out = F.scaled_dot_product_attention(q, key, v, is_causal=True, enable_gqa=True)
    gradient = torch.randn_like(out)

    def forward() -> object:
        with torch.no_grad():
            attended = F.scaled_dot_product_attention(q, key, v, is_causal=True, enable_gqa=True)
        return attended, [a @ w.t() for a, w, _ in operands]

    def whole() -> object:
        backward = [(g @ w, g.t() @ a) for a, w, g in operands]
        return forward(), backward, torch.autograd.grad(out, (q, key, v), gradient, retain_graph=True)

    return {"bound forward": forward, "bound whole": whole}


def disagreement(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest relative norm of a difference; raises ValueError where it is above AGREE."""
    worst = max(float((a.float() - e.float()).norm() / e.float().norm()) for a, e in zip(actual, expected, strict=True))
    if not worst <= AGREE:
        raise ValueError(f"outputs or gradients differ from eager's by {worst:.1e} of their norm")
    return worst


def results(layer: Layer, given: Given, weights: Weights) -> tuple[Tensor, ...]:
    """Outputs and gradients of an autograd layer."""
    leaves = (given.q, given.k, given.v, given.x, *weights.tensors())
    outputs = layer(*leaves)
    gradients = torch.autograd.grad(outputs, leaves, (given.dx, given.dq, given.dk, given.dv))
    return (*(o.detach() for o in outputs), *gradients)


def own_results(ours: Ours, given: Given) -> tuple[Tensor, ...]:
    """The same of ours, in eager's order."""
    qkv = ours.packed(given.q.detach(), given.k.detach(), given.v.detach())
    saved, graph = ours.kept(qkv, given.x.detach())
    q, k, v = ours.views(saved["qkv"])
    gradients = ours.backward(saved, graph, ours.packed(given.dq, given.dk, given.dv), given.dx)
    return (saved["x2"], in_halves(q, -1), in_halves(k, -1), v, *ours.gradients(gradients))


def contestants(shape: Shape, given: Given, weights: Weights, options: argparse.Namespace) -> dict[str, Layer]:
    """Every layer of autograd's that runs here and agrees with eager; says which do not."""
    eager = eager_layer(shape, options.device)
    makers: dict[str, Callable[[], Layer]] = {"eager": lambda: eager}
    if options.device == "cuda":
        torch._dynamo.reset()
        makers["compile"] = lambda: torch.compile(eager, dynamic=False)
        if options.autotune:
            makers["max_autotune"] = lambda: torch.compile(eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    if not options.versions["liger"].startswith("no "):
        makers["liger"] = lambda: liger_layer(shape, options.device)
    expected, layers = results(eager, given, weights), {}
    for name, maker in makers.items():
        try:
            layer = maker()
            disagreement(results(layer, given, weights), expected)
            layers[name] = layer
        except Exception as error:  # a peer that does not run, or not rightly, is left out
            print(f"    {name} is left out: {one_line(error)}", flush=True)
    return layers


def measured(name: str, shape: Shape, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """One shape: checked, timed, its memory measured."""
    weights, given = drawn(shape, options.device)
    ours = Ours(weights, shape, options.device, options.tiny)
    differs = disagreement(own_results(ours, given), results(eager_layer(shape, options.device), given, weights))
    layers = contestants(shape, given, weights, options)
    forward, whole = (made(layers, ours, given, weights) for made in (forward_runs, whole_runs))
    runs = {**{f"{n} forward": r for n, r in forward.items()}, **{f"{n} whole": r for n, r in whole.items()}}
    laps = {n: Lap(run) for n, run in {**runs, **bound_runs(shape, options.device)}.items()}
    rounds = lasting(laps, options.seconds, clock)
    del runs, laps
    peaks = {n: allocated(run)[1] / shape.tokens for n, run in whole.items()} if options.device == "cuda" else {}
    return {"layer": name, "shape": vars(shape), "differs": differs, "rounds": rounds, "peak_bytes_a_token": peaks}


def lines(row: Mapping[str, Any]) -> list[str]:
    """The table of one shape: bound over each time, with its interval."""
    rounds = row["rounds"]
    ahead, whole = rounds["bound forward"], rounds["bound whole"]
    said = [
        f"{row['layer']}: bound forward {gap.figure(ahead).value:.3f} ms, whole {gap.figure(whole).value:.3f} ms; "
        f"ours differs from eager by {row['differs']:.1e}"
    ]
    for name in [n.removesuffix(" whole") for n in rounds if n.endswith(" whole") and n != "bound whole"]:
        texts = []
        for kind, least in (("forward", ahead), ("whole", whole)):
            found_, ms = gap.ratio(least, rounds[f"{name} {kind}"]), gap.figure(rounds[f"{name} {kind}"]).value
            texts.append(f"{kind} {ms:9.3f} ms {found_.value:6.3f} [{found_.low:.3f}, {found_.high:.3f}]")
        peak = row["peak_bytes_a_token"].get(name)
        said.append(f"  {name:13s}" + "  ".join(texts) + (f"  peak {peak:,.0f} bytes a token" if peak else ""))
    if "max_autotune whole" in rounds:
        closed = gap.share(rounds["max_autotune whole"], rounds["ours whole"], whole)
        said.append(f"  of the gap to max-autotune closed: {_figure(closed)}")
    return said


def _figure(closed: gap.Figure | None) -> str:
    return f"{closed.value:.2f} [{closed.low:.2f}, {closed.high:.2f}]" if closed else "no gap to speak of"


def main() -> int:
    options = _options()
    shapes = TINY if options.tiny else {name: SHAPES[name] for name in options.layers or SHAPES}
    clock, rows = clock_of(options.device), []
    print(f"{machine(options.device)}; bound over time; {clock.name}")
    print(f"peers: {', '.join(f'{name} {version}' for name, version in options.versions.items())}")
    for name, shape in shapes.items():
        rows.append(measured(name, shape, options, clock))
        print("\n".join(lines(rows[-1])), flush=True)
    if options.json:
        head = {"machine": machine(options.device), "peers": options.versions}
        options.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a whole Llama layer against its peers and its bound")
    parser.add_argument("layers", nargs="*", type=one_of("layer", SHAPES), help=f"{', '.join(SHAPES)}; all by default")
    parser.add_argument("--seconds", type=duration, help="of racing for each layer")
    parser.add_argument("--no-autotune", dest="autotune", action="store_false", help="spare max-autotune's compiling")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small layer; on a CPU always")
    parser.add_argument("--json", type=output)
    options = parser.parse_args()
    options.tiny = options.tiny or options.device == "cpu"
    options.seconds = options.seconds if options.seconds is not None else 0.0 if options.tiny else 20.0
    options.versions = found()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device; --device cpu --tiny shows that it runs")
    return options


if __name__ == "__main__":
    sys.exit(main())

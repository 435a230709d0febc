"""Finalists under compute-sanitizer on small shapes, and run again and again, and as a CUDA graph, with the same bits.

    python benchmarks/sanitize.py [TASK | TASK=FILE.coda ...] [--repeats 1000] [--tools memcheck,racecheck,synccheck]
    python benchmarks/sanitize.py [TASK | TASK=FILE.coda ...] --shape llama3-8b [--tokens 512] --tools ""
    python benchmarks/sanitize.py --device cpu --tiny

A finalist is a task's worked candidate, or that of a file; --shape repeats it at a task's real shape. The tools work
side by side, each on a process of its own that runs every finalist once, torch's own caching of memory off, so that
every buffer's end is seen. A hazard of racecheck's that the machine code shows to be ordered, as hazards.py says, is
counted and is no failure. Where compute-sanitizer is not installed, or cannot run, that is said and the rest is done.
On a CPU there are only repeats, few of them, in the interpreter. Exits 1 where something was found, bits differ, or a
tool did not reach a finalist.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import check_shape, count, on_cpu, task_name

if on_cpu():
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.coda_api.generated import Generated
from coda_synth.evaluator.execution import Bound, bind, how_runs_differ, rerun
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.timing import captured, output_bits
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import TaskSpec

from benchmarks import hazards
from benchmarks.contest import clock_of, lowered, machine, one_line, tiny_sizes

TOOLS = ("memcheck", "racecheck", "synccheck")
_SMALL = {"T": 384, "HQ": 4, "HK": 2, "H": 64, "V": 1024}
_SMALL_ELSE = 512  # several tiles along every dim, and nothing that a tool takes minutes for
_FOUND = 86  # the exit code that a tool is told to use where it finds something
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")
_NEXT = "finalist "  # a line of the process that a tool watches: what follows belongs to this one
_REPLAYS = 3
_EVERY = ("--print-limit", "100000")  # of 100 by default, which explained hazards alone could fill
_SHOWN = 24  # lines of what one tool found in one finalist


def small_sizes(spec: TaskSpec) -> dict[str, int]:
    """Aligned, so that the form with descriptors runs."""
    return {symbol: _SMALL.get(symbol, _SMALL_ELSE) for symbol in next(iter(spec.time_shapes.values()))}


def real_sizes(spec: TaskSpec, shape: str, tokens: int | None) -> dict[str, int]:
    sizes = dict(spec.time_shapes[shape])
    return {**sizes, "T": tokens} if tokens and "T" in sizes else sizes


def finalist(name: str, device: str, shape: str = "", tokens: int | None = None) -> Bound:
    """A finalist by its name on the command line, ready to run."""
    chosen = task(name.partition("=")[0])
    small: Mapping[str, int] = small_sizes(chosen) if device == "cuda" else tiny_sizes(chosen)
    sizes = real_sizes(chosen, shape, tokens) if shape else small
    inputs = make_inputs(chosen, signature(chosen), Case("device", sizes, 1, "normal", "auto"), device)
    return bind(generated(name, sizes, device), inputs, device)


def generated(name: str, sizes: Mapping[str, int], device: str) -> Generated:
    spec, _, path = name.partition("=")
    text = Path(path).read_text(encoding="utf-8") if path else worked_candidate(spec)
    return lowered(task(spec), sizes, device, device == "cpu", text)


def differing(bound: Bound, repeats: int) -> tuple[int, list[str]]:
    """In which repeat the outputs' bits first differ from the first run's, and where; (repeats, []) if in none. Every
    run starts from poisoned buffers and inputs as they were."""
    first = rerun(bound)
    for number in range(2, repeats + 1):
        bits = rerun(bound)
        if unlike := [name for name, bit in bits.items() if bit != first[name]]:
            return number, unlike
    return repeats, []


def differing_as_graph(bound: Bound) -> list[str]:
    """The outputs whose bits are others where the launches are replayed as one CUDA graph."""
    first, replay = rerun(bound), captured(bound.launch)
    for _ in range(_REPLAYS):
        bound.reset()
        replay()
        torch.cuda.synchronize()
        if unlike := [name for name, bits in output_bits(bound).items() if bits != first[name]]:
            return unlike
    return []


def sanitized(names: Sequence[str], tool: str) -> tuple[dict[str, list[str]], str]:
    """What a tool says of each finalist that it reached, and its summary or why there is none."""
    own = [sys.executable, str(Path(__file__).resolve()), *names, "--once"]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(_FOUND), *_EVERY, *own]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return reports(done.stdout), (_SUMMARY.findall(done.stdout) or [f"no summary, exit code {done.returncode}"])[-1]


def reports(said: str) -> dict[str, list[str]]:
    """The lines of a tool by the finalist that ran when it wrote them."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in said.splitlines():
        if line.startswith(_NEXT):
            name = line.removeprefix(_NEXT)
            found[name] = []
        elif name and line.startswith("=========") and not _SUMMARY.search(line):
            found[name].append(line)
    return found


def repeated(name: str, options: argparse.Namespace) -> str:
    """What is wrong with a finalist's repeats, or ""."""
    try:
        bound = finalist(name, options.device, options.shape, options.tokens)
        number, unlike = differing(bound, options.repeats)
        if unlike:
            return f"other bits in {', '.join(unlike)} in run {number}; {how_runs_differ(bound, unlike)}"
        unlike = differing_as_graph(bound) if options.device == "cuda" else []
        return f"other bits in {', '.join(unlike)} as a CUDA graph" if unlike else ""
    except Exception as error:  # one finalist must not end the others
        return one_line(error)


def main() -> int:
    options = _options()
    names = options.finalists
    clock_of(options.device)
    if options.once:
        for name in names:
            print(f"{_NEXT}{name}", flush=True)
            finalist(name, "cuda").launch()
            torch.cuda.synchronize()
        return 0
    graph = f", {_REPLAYS} replays of a CUDA graph" if options.device == "cuda" else ""
    print(f"{machine(options.device)}; {options.repeats} repeats{graph}; tools on small shapes")
    wrong = {name: repeated(name, options) for name in names}
    tools = _tools(options)
    with ThreadPoolExecutor(max(1, len(tools))) as pool:
        told = dict(zip(tools, pool.map(lambda tool: sanitized(names, tool), tools), strict=True))
    failed = 0
    for name in names:
        found = {tool: judged(name, tool, said) for tool, (said, _) in told.items()}
        failed += bool(wrong[name] or any(lines for lines, _ in found.values()))
        verdicts = [wrong[name] or "the same bits", *(f"{tool} {verdict(*said)}" for tool, said in found.items())]
        print(f"{name}: {'; '.join(verdicts)}", flush=True)
        for line in itertools.chain(*(_shown(lines) for lines, _ in found.values())):
            print(f"    {line}")
    for tool, (_, summary) in told.items():
        print(f"{tool}: {summary}")
    print(f"{failed} of {len(names)} failed")
    return int(failed > 0)


def judged(name: str, tool: str, said: Mapping[str, list[str]]) -> tuple[list[str], int]:
    """What a tool found in a finalist and is not explained, and how many of racecheck's hazards are."""
    if name not in said:
        return ["it was not reached"], 0
    if tool != "racecheck" or not said[name]:
        return said[name], 0
    return hazards.unexplained(said[name], generated(name, small_sizes(task(name.partition("=")[0])), "cuda"))


def verdict(lines: Sequence[str], explained: int) -> str:
    ordered = f" ({explained} hazard{'s' * (explained > 1)} of triton's partition words, ordered by barrier 1)"
    return f"{'FAILED' if lines else 'passed'}{ordered if explained else ''}"


def _shown(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"and {more} lines more"] if more > 0 else lines


def _tools(options: argparse.Namespace) -> list[str]:
    if options.device == "cpu":
        print("compute-sanitizer looks at GPUs: on a CPU only bits are compared")
        return []
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed (it comes with the CUDA toolkit): only the bits are compared")
        return []
    return [tool for tool in options.tools.split(",") if tool]


def _finalist(text: str) -> str:
    name, _, path = text.partition("=")
    if path and not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{text}: there is no file {path}")
    return f"{task_name(name)}={path}" if path else task_name(name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="finalists under compute-sanitizer, and their repeats")
    parser.add_argument(
        "finalists", nargs="*", type=_finalist, metavar="TASK[=FILE]", help="every worked candidate by default"
    )
    parser.add_argument("--repeats", type=count, help="1,000, on a CPU 5")
    parser.add_argument("--shape", default="", help="of the task's own, for the repeats; small ones by default")
    parser.add_argument("--tokens", type=count, help="in place of the shape's own")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--once", action="store_true", help="run each finalist once: what tools watch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="on a CPU always")
    options = parser.parse_args()
    options.finalists = options.finalists or (
        ("linear_bias", "residual_rmsnorm") if options.device == "cpu" else task_names()
    )
    if options.shape:
        check_shape(parser, [name.partition("=")[0] for name in options.finalists], options.shape)
    if options.once and options.device == "cpu":
        parser.error("argument --once: tools watch a GPU; leave it out, or --device cpu")
    options.repeats = options.repeats or (1000 if options.device == "cuda" else 5)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this needs a CUDA device; --device cpu --tiny makes the repeats in the interpreter")
    return options


if __name__ == "__main__":
    sys.exit(main())

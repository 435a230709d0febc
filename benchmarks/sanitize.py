"""Finalists under compute-sanitizer on small shapes, and run again and again with the same bits.

    python benchmarks/sanitize.py [TASK | TASK=FILE.coda ...] [--repeats 1000] [--tools memcheck,racecheck,synccheck]
    python benchmarks/sanitize.py --device cpu --tiny

A finalist is a task's worked candidate, or that of a file. Each tool runs it in a process of its own, compiled
beforehand, torch's own caching of memory off, so that every buffer's end is seen. Where compute-sanitizer is not
installed, or cannot run, that is said and only the repeats are made. On a CPU there are only repeats, few of them, in
the interpreter. Exits 1 where something was found or bits differ.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if "cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides at import

import torch
from coda_synth.evaluator.execution import Bound, bind, rerun
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import make_inputs
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import TaskSpec

from benchmarks.contest import clock_of, lowered, machine, one_line, tiny_sizes

TOOLS = ("memcheck", "racecheck", "synccheck")
_SMALL = {"T": 384, "HQ": 4, "HK": 2, "H": 64, "V": 1024}
_SMALL_ELSE = 512  # several tiles along every dim, and nothing that a tool takes minutes for
_FOUND = 86  # the exit code that a tool is told to use where it finds something
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")


def small_sizes(spec: TaskSpec) -> dict[str, int]:
    """Aligned, so that the form with descriptors runs."""
    return {symbol: _SMALL.get(symbol, _SMALL_ELSE) for symbol in next(iter(spec.time_shapes.values()))}


def finalist(name: str, device: str) -> Bound:
    """A finalist by its name on the command line, ready to run."""
    spec, _, path = name.partition("=")
    chosen = task(spec)
    text = Path(path).read_text(encoding="utf-8") if path else worked_candidate(spec)
    sizes: Mapping[str, int] = small_sizes(chosen) if device == "cuda" else tiny_sizes(chosen)
    inputs = make_inputs(chosen, signature(chosen), Case("device", sizes, 1, "normal", "auto"), device)
    return bind(lowered(chosen, sizes, device, device == "cpu", text), inputs, device)


def differing(bound: Bound, repeats: int) -> tuple[int, list[str]]:
    """In which repeat the outputs' bits first differ from the first run's, and where; (repeats, []) if in none. Every
    run starts from poisoned buffers and inputs as they were."""
    first = rerun(bound)
    for number in range(2, repeats + 1):
        bits = rerun(bound)
        if unlike := [name for name, bit in bits.items() if bit != first[name]]:
            return number, unlike
    return repeats, []


def sanitized(name: str, tool: str) -> tuple[bool, str]:
    """Whether a tool passes a finalist, and its summary or why it did not run."""
    own = [sys.executable, str(Path(__file__).resolve()), name, "--once"]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(_FOUND), *own]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    except subprocess.TimeoutExpired:
        return False, "it took more than half an hour"
    said = _SUMMARY.findall(done.stdout)
    if done.returncode == 0 and said:
        return True, said[-1]
    shown = [line for line in done.stdout.splitlines() if line.startswith("=========")][:24] or done.stderr.splitlines()
    return False, "\n".join([said[-1] if said else f"exit code {done.returncode}", *(f"    {line}" for line in shown)])


def main() -> int:
    options = _options()
    names = options.finalists or (("linear_bias", "residual_rmsnorm") if options.device == "cpu" else task_names())
    clock_of(options.device)
    if options.once:
        finalist(names[0], "cuda").launch()
        torch.cuda.synchronize()
        return 0
    print(f"{machine(options.device)}; {options.repeats} repeats")
    tools = _tools(options)
    failed = 0
    for name in names:
        try:
            number, unlike = differing(finalist(name, options.device), options.repeats)
        except Exception as error:  # one finalist must not end the others
            failed += 1
            print(f"{name}: {one_line(error)}", flush=True)
            continue
        failed += bool(unlike)
        said = f"other bits in {', '.join(unlike)} in run {number}" if unlike else f"{number} runs, the same bits"
        print(f"{name}: {said}", flush=True)
        for tool in tools:
            passed, summary = sanitized(name, tool)
            failed += not passed
            print(f"{name}: {tool}: {'passed' if passed else 'FAILED'}: {summary}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


def _tools(options: argparse.Namespace) -> list[str]:
    if options.device == "cpu":
        print("compute-sanitizer looks at GPUs: on a CPU there are only the repeats")
        return []
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed (it comes with the CUDA toolkit): only the repeats are made")
        return []
    return [tool for tool in options.tools.split(",") if tool]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="finalists under compute-sanitizer, and their repeats")
    parser.add_argument("finalists", nargs="*", metavar="TASK[=FILE]", help="every worked candidate by default")
    parser.add_argument("--repeats", type=int, help="1,000, on a CPU 5")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--once", action="store_true", help="run the finalist once, in silence: what tools watch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="on a CPU always")
    options = parser.parse_args()
    options.repeats = options.repeats or (1000 if options.device == "cuda" else 5)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this needs a CUDA device; --device cpu --tiny makes the repeats in the interpreter")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""How many instructions the epilogues of Hopper kernels take, from ahead-of-time builds: no GPU is needed.

    python benchmarks/epilogue.py [TASK ...]
    python benchmarks/epilogue.py --words

A row is a kernel of a task's worked candidate at its first shape, a column a class of machine instructions: how many a
thread issues from the last wgmma of a tile to the loop's end, over the elements of the product that it holds. One an
element takes a tile of 128 x 256 at least 256 clocks, a quarter of the wgmma of one step along K.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import triton
from coda_synth.coda_api.generated import Generated, Launch
from coda_synth.coda_api.lowering import lower
from coda_synth.coda_api.program import Kernel
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.toolchain import compile_launch, load, target_of
from coda_synth.coda_api.words import WORDS, Group
from coda_synth.evaluator.signature import signature
from coda_synth.tasks.catalog import task, worked_candidate

from benchmarks.arguments import task_name

TASKS = ("linear_nt", "linear_residual", "residual_rmsnorm", "linear_swiglu", "swiglu_backward", "rmsnorm_backward")
NVDISASM = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
THREADS = 256  # that share the tiles of a block, in either mainloop
CLASSES = {  # in the order in which they are tried
    "move": r"U?MOV|IMAD\.MOV|CS2R|S2U?R|R2UR",
    "shuffle": r"SHFL",
    "round": r"F2FP?|I2FP?|F2I",
    "unpack": r"PRMT|SHF|IMAD\.(U32|SHL)|LOP3",
    "select": r"FSEL|SEL|[IF]SETP|PLOP3|P2R|R2P",
    "float": r"F(ADD|MUL|FMA|MNMX)|H(ADD|MUL|FMA)",
    "special": r"MUFU",
    "shared": r"LDS|STS",
    "global": r"LDG|STG|LDC",
    "spill": r"LDL|STL",
    "wait": r"BAR|MEMBAR|FENCE|SYNCS|DEPBAR|WARPSYNC|WARPGROUP|BRA|NOP",
    "uniform": r"U[A-Z]|VOTE|ELECT",
    "integer": r"I(ADD|MAD|ABS)|LEA|VIADD",
}


def epilogue(listing: str) -> list[str]:
    """The opcodes from the last wgmma of the first consumer's loop over tiles to the jump that ends this loop."""
    lines = list(_instructions(listing))
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    wgmma = [i for i, line in enumerate(lines) if "HGMMA" in line]
    for i, line in enumerate(lines):
        jump = re.search(r"\bBRA `\((\.L_\w+)\)", line)
        if jump and labels[jump[1]] < wgmma[0] < i:
            found = lines[max(w for w in wgmma if w < i) + 1 : i + 1]
            return [re.sub(r"^@!?U?P\w+ ", "", line).split()[0] for line in found if not line.endswith(":")]
    raise ValueError("no loop over tiles is found in this listing")


def _instructions(listing: str) -> Iterator[str]:
    """Instructions without their addresses, and labels with a colon."""
    for line in listing.splitlines():
        if match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;|(\.L_\w+:)", line):
            yield match[1] or match[2]


def classes(opcodes: Sequence[str]) -> Counter[str]:
    """How many of each class there are; "other" holds what none has."""
    return Counter(next((n for n, pattern in CLASSES.items() if re.match(pattern, o)), "other") for o in opcodes)


def built(made: Generated, launch: Launch) -> Any:
    """A launch's kernel compiled for sm_90; raises BuildError."""
    return compile_launch(getattr(load(made.source), launch.kernel), launch, target_of("sm_90"))


def disassembled(compiled: Any) -> str:
    """The machine code of a compiled kernel; raises OSError where there is no nvdisasm."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([NVDISASM, "-c", file.name], capture_output=True, text=True, check=True).stdout


def rows(name: str) -> Iterator[tuple[str, int, Counter[str]]]:
    """Each Hopper kernel of a task: what it is called and runs, elements of a thread, instructions by class."""
    spec, sig = task(name), signature(task(name))
    made = lower(read(worked_candidate(name), sig), sig, next(iter(spec.time_shapes.values())), form="hopper")
    for launch in (launch for launch in made.launches if launch.gluon):
        how = made.effective[launch.call]
        groups = 2 if how.mainloop == "pingpong" else 1
        label = f"{name}.{launch.kernel} ({how.mainloop}, {how.slice_n})"
        elements = how.block_m * how.block_n * groups // THREADS
        yield label, elements, classes(epilogue(disassembled(built(made, launch))))


def word_cost(name: str) -> tuple[float, float]:
    """Instructions that a word of one argument adds for an element, and how many of them are special; of a pair of
    columns for `rotation`."""
    if name == "rotation":
        turned = _cost("linear_rope", lambda text: text)
        plain = _cost("linear_rope", lambda text: re.sub(r"rotation\(pos, (.*?), (cycle.*?)\)\n", r"\1, \2\n", text))
        return 2 * (turned[0] - plain[0]), 2 * (turned[1] - plain[1])
    plain = _cost("linear_nt", lambda text: text)
    with_it = _cost("linear_nt", lambda text: text.replace("gemm(x, w)", f"{name}(gemm(x, w))"))
    return with_it[0] - plain[0], with_it[1] - plain[1]


def _cost(name: str, rewritten: Callable[[str], str]) -> tuple[float, float]:
    """Instructions and special ones, an element, of a rewritten candidate's first Hopper kernel on the wide tile."""
    spec, sig = task(name), signature(task(name))
    program = read(rewritten(worked_candidate(name)), sig)
    wide = {call.name: Schedule() for call in program.calls if isinstance(call.unit, Kernel)}
    made = lower(program, sig, next(iter(spec.time_shapes.values())), form="hopper", schedules=wide)
    launch = next(launch for launch in made.launches if launch.gluon)
    count = classes(epilogue(disassembled(built(made, launch))))
    elements = Schedule().block_m * Schedule().block_n // THREADS
    return count.total() / elements, count["special"] / elements


def words() -> None:
    print("| word | instructions | special | said |")
    print("|---|---|---|---|")
    for word in WORDS:
        if word.cost or word.group is Group.ELEMENTWISE and len(word.takes) == 1:
            instructions, special = word_cost(word.name)
            print(f"| {word.name} | {instructions:.1f} | {special:.1f} | {word.cost or '-'} |", flush=True)


def kernels(tasks: Sequence[str]) -> None:
    names = [*CLASSES, "other"]
    print("| kernel (mainloop, slice_n) | elements | instructions | an element |", *(f"{n} |" for n in names))
    print("|---|" + "---|" * (len(names) + 3))
    for name in tasks:
        for label, elements, count in rows(name):
            shares = " | ".join(f"{count[n] / elements:.2f}" for n in names)
            total = count.total()
            print(f"| {label} | {elements} | {total} | {total / elements:.2f} | {shares} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="instructions of the epilogues of Hopper kernels")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("tasks", nargs="*", type=task_name, default=TASKS, help="six by default")
    either.add_argument("--words", action="store_true", help="what each word of the language adds")
    options = parser.parse_args()
    words() if options.words else kernels(options.tasks)


if __name__ == "__main__":
    main()

"""Many evaluations in a row of small shapes, check only: prints memory, descriptors, processes and seconds as a table.

`python benchmarks/soak.py [COUNT] [DEVICE]`; exits 1 if something leaks or the median evaluation takes half a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.gpu import driver_state
from coda_synth.evaluator.judge import Judge, JudgeError
from coda_synth.evaluator.processes import family, held_bytes
from coda_synth.tasks.catalog import worked_candidate

from benchmarks.arguments import count

TASK = "linear_residual"
# The median evaluation. Its processes wait for nothing but each other, so on an idle machine it takes at most the
# processor time of all of them; on a busy one this alone can be told.
SLOWEST_S = 0.5
GROWTH = 1.15  # of memory, from a quarter of the way to the end
ROWS = 12
COLUMNS = ("evaluations", "memory", "GPU memory", "descriptors", "processes", "s each")


@dataclass(frozen=True)
class Row:
    """What this process and everything that it started hold after so many evaluations; seconds: each, since the row
    before. gpu_mb: of the whole GPU, 0.0 without one."""

    evaluations: int
    mb: float
    gpu_mb: float
    descriptors: int
    processes: int
    seconds: float

    def __str__(self) -> str:
        gpu = f"{self.gpu_mb:.0f} MB" if self.gpu_mb else "-"
        cells = (self.evaluations, f"{self.mb:.0f} MB", gpu, self.descriptors, self.processes, f"{self.seconds:.3f}")
        return _line(map(str, cells))


def soaked(evaluations: int, device: str) -> int:
    """One evaluation after the other, each of another text, so that nothing is answered from a cache."""
    source, rows, times = worked_candidate(TASK), [], []
    steps: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    began_s, told = 0.0, 0
    print(_line(COLUMNS))
    with Judge(device=device) as judge:
        for number in range(evaluations):
            start = time.perf_counter()
            found = judge.evaluate(Candidate(TASK, f"{source}\n# {number}\n"), measure=False, small=True)
            times.append(time.perf_counter() - start)
            steps.update(found.stages if number else {})
            waits.update(found.seconds if number else {})
            if found.verdict is not Verdict.PASSED:
                print(f"{number}: {found.verdict}, seed {found.seed}: {found.diagnostics[0]}")
                return 1
            if number % -(-evaluations // ROWS) == 0 or number == evaluations - 1:
                rows.append(_row(times[told:], number + 1, device))
                told = len(times)
                print(rows[-1], flush=True)
            began_s = began_s or _cpu_s()  # imports and the first compilation are over
        worked = (_cpu_s() - began_s) / max(1, evaluations - 1)
    median = statistics.median(times)
    print(f"{evaluations} evaluations, {median:.3f} s each (median), {max(times):.2f} s the slowest")
    for said, spent in (("by stage", waits), ("by step, side by side", steps)):
        print(f"{said}: {', '.join(f'{n} {s / max(1, evaluations - 1):.3f}' for n, s in spent.most_common(12))}")
    print(f"{worked:.3f} s of processor time each, all processes together; load {os.getloadavg()[0]:.1f}")
    quarter, last = rows[len(rows) // 4], rows[-1]
    grown, on_gpu = last.mb / quarter.mb, last.gpu_mb / (quarter.gpu_mb or 1.0)
    said = f", the GPU's by {on_gpu - 1:.1%}" if quarter.gpu_mb else ""
    print(f"memory grew by {grown - 1:.1%}{said} from evaluation {quarter.evaluations} to {last.evaluations}")
    leaks = last.descriptors > quarter.descriptors or last.processes > quarter.processes
    return int(max(grown, on_gpu) > GROWTH or leaks or min(median, worked) > SLOWEST_S)


def _line(cells: Iterable[str]) -> str:
    return "  ".join(f"{cell:>11}" for cell in cells)


def _row(times: Sequence[float], evaluations: int, device: str) -> Row:
    mine = _ours()
    gpu = driver_state("memory.used") if device == "cuda" else ""  # "1234 MiB"
    gpu_mb = float(gpu.split()[0]) * 1.048576 if gpu else 0.0
    descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in mine)
    return Row(evaluations, held_bytes(mine) / 1e6, gpu_mb, descriptors, len(mine), statistics.median(times))


def _cpu_s() -> float:
    """Seconds of processor time that these have taken."""
    ticks = 0
    for pid in _ours():
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ours() -> list[int]:
    return [pid for pid in family(os.getpid()) if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    """This process, or a child of it: the session may hold the user's other programs."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="many evaluations in a row, and what they leave behind")
    parser.add_argument(
        "count", nargs="?", type=count, default=1000, metavar="COUNT", help="evaluations, 1,000 by default"
    )
    parser.add_argument(
        "device", nargs="?", choices=("cpu", "cuda"), default="cpu", metavar="DEVICE", help="cpu, by default, or cuda"
    )
    options = parser.parse_args()
    try:
        return soaked(options.count, options.device)
    except JudgeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())

"""Many evaluations in a row of small shapes, check only: prints the curve of memory, descriptors and processes.

`python benchmarks/soak.py [COUNT] [DEVICE]`; exits 1 if something leaks or the median evaluation takes half a second.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.judge import Judge
from coda_synth.evaluator.processes import family, held_bytes
from coda_synth.tasks.catalog import worked_candidate

TASK = "linear_residual"
# The median evaluation. Its processes wait for nothing but each other, so on an idle machine it takes at most the
# processor time of all of them; on a busy one this alone can be told.
SLOWEST_S = 0.5
GROWTH = 1.15  # of memory, from a quarter of the way to the end


def main(count: int = 1000, device: str = "cpu") -> int:
    """One evaluation after the other, each of another text, so that nothing is answered from a cache."""
    source, rows, times = worked_candidate(TASK), [], []
    began_s = 0.0
    with Judge(device=device) as judge:
        for number in range(count):
            start = time.perf_counter()
            found = judge.evaluate(Candidate(TASK, f"{source}\n# {number}\n"), measure=False)
            times.append(time.perf_counter() - start)
            if found.verdict is not Verdict.PASSED:
                print(f"{number}: {found.verdict}, seed {found.seed}: {found.diagnostics[0]}")
                return 1
            if number % max(1, count // 20) == 0 or number == count - 1:
                rows.append((number, *_state()))
                print("{:6d} evaluations: {:7.1f} MB, {:4d} descriptors, {:2d} processes".format(*rows[-1]), flush=True)
            began_s = began_s or _cpu_s()  # imports and the first compilation are over
        worked = (_cpu_s() - began_s) / max(1, count - 1)
    median = statistics.median(times)
    print(f"{count} evaluations, {median:.3f} s each (median), {max(times):.2f} s the slowest")
    print(f"{worked:.3f} s of processor time each, all processes together; load {os.getloadavg()[0]:.1f}")
    quarter, last = rows[len(rows) // 4], rows[-1]
    grown = last[1] / quarter[1]
    print(f"memory grew by {grown - 1:.1%} from evaluation {quarter[0]} to {last[0]}")
    return int(grown > GROWTH or last[2] > quarter[2] or last[3] > quarter[3] or min(median, worked) > SLOWEST_S)


def _state() -> tuple[float, int, int]:
    """Megabytes and open descriptors of this process and everything that it started, and how many these are."""
    mine = _ours()
    return held_bytes(mine) / 1e6, sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in mine), len(mine)


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


if __name__ == "__main__":
    sys.exit(main(*(int(a) if a.isdigit() else a for a in sys.argv[1:])))

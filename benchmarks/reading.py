"""Times reading and checking of the worked candidates, warm. Aim: under 5 ms each. Run: python benchmarks/reading.py"""

from __future__ import annotations

import statistics
import time

from coda_synth.coda_api.reader import read
from coda_synth.tasks.catalog import task_names, worked_candidate

REPEATS = 50


def main() -> None:
    for name in task_names():
        text = worked_candidate(name)
        read(text)
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            read(text)
            seconds.append(time.perf_counter() - start)
        print(f"{name:28s} {statistics.median(seconds) * 1e3:6.2f} ms median, {max(seconds) * 1e3:6.2f} ms worst")


if __name__ == "__main__":
    main()

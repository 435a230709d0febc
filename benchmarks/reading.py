"""Times reading and checking of the worked candidates, warm. Aim: under 5 ms each. Run: python benchmarks/reading.py"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from coda_synth.coda_api.reader import read
from coda_synth.tasks.catalog import task_names, worked_candidate

REPEATS = 50


def main() -> None:
    argparse.ArgumentParser(description="reading and checking of the worked candidates, warm").parse_args()
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

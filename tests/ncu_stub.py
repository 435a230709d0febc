"""Nsight Compute without a GPU: takes the judge's options, runs the target, and writes for every kernel of NCU_LAUNCHES
that --kernel-name matches a row of the csv that `--page raw` has. NCU_FATE says what becomes of it instead."""

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

METRICS = {
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "31.25"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("", "1,200"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "24,000"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "44.10"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "63.80"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "2.00"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "7.00"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1.00"),
}
BASE = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC".split(",")


def table(kernels: list[str]) -> str:
    rows = [BASE + list(METRICS), [""] * len(BASE) + [unit for unit, _ in METRICS.values()]]
    for number, kernel in enumerate(kernels):
        place = [
            str(number),
            "41",
            "python3.11",
            "127.0.0.1",
            kernel,
            "1",
            "7",
            "(384, 1, 1)",
            "(132, 1, 1)",
            "0",
            "9.0",
        ]
        rows.append(place + [value for _, value in METRICS.values()])
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("target-processes", "kernel-name", "clock-control", "page", "log-file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--section", action="append", required=True)
    parser.add_argument("--csv", action="store_true", required=True)
    parser.add_argument("target", nargs=argparse.REMAINDER)
    asked, fate = parser.parse_args(), os.environ.get("NCU_FATE", "")
    assert (asked.target_processes, asked.clock_control, asked.page) == ("all", "none", "raw")
    kind, _, pattern = asked.kernel_name.partition(":")
    assert kind == "regex"
    Path(os.environ["TMPDIR"], "nsight-compute-report").write_bytes(b"x" * 1000)
    with open(asked.log_file, "w", encoding="utf-8") as log:
        target = subprocess.Popen(asked.target, close_fds=False)
        print(f"==PROF== Connected to process {target.pid} ({sys.executable})", file=log, flush=True)
        if fate == "driver":
            print("==ERROR== Failed to initialize the profiler: LibraryNotLoaded.", file=log, flush=True)
            target.send_signal(signal.SIGKILL)
        if fate == "stuck":
            target.send_signal(signal.SIGSTOP)
        code = target.wait()
        if fate == "slow":
            subprocess.run(["sleep", "600"], start_new_session=True)
        if fate == "denied":
            said = "The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0."
            print(f"==ERROR== ERR_NVGPUCTRPERM - {said}", file=log)
            print("==WARNING== No kernels were profiled.", file=log)
            return 1
        if fate == "driver":
            print("==ERROR== The application returned an error code (9).", file=log)
            return 9
        print(f"==PROF== Disconnected from process {target.pid}", file=log)
        kernels = os.environ.get("NCU_LAUNCHES", "").split()
        matched = [kernel for kernel in kernels if re.search(pattern, kernel)]
        log.write(table(matched) if matched else "==WARNING== No kernels were profiled.\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

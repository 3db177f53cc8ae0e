"""What guarding a trial costs, and how far one that takes memory as fast as it can gets past its limit.

python benchmarks/guard.py [SECONDS]
"""

import sys

from stoker.records import Limits
from stoker.trial.guard import run

# Python processes that were forked from one another share their pages, as a loader's workers do.
IDLE = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        time.sleep(1000)
time.sleep(1000)
"""
# As many processes as asked together take four times the limit at once.
GREEDY = """
import os, sys, time
count, size = int(sys.argv[1]), int(sys.argv[2])
for _ in range(count - 1):
    if os.fork() == 0:
        break
kept = b"x" * (size // count)
time.sleep(1000)
"""
GIB = 1 << 30


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    cost(seconds)
    burst()


def burst() -> None:
    limit_bytes = GIB // 2
    print("\n| takes four times its limit of 512 MiB at once | held by | ended as | most it had, of its limit |")
    print("|---|---|---|---:|")
    for count in (1, 2, 8):
        for use_cgroup in (True, False):
            command = [sys.executable, "-c", GREEDY, str(count), str(4 * limit_bytes)]
            outcome = run(command, Limits(limit_bytes, seconds=60), use_cgroup=use_cgroup)
            assert outcome.host_peak_bytes is not None
            share = outcome.host_peak_bytes / limit_bytes
            print(f"| {count} process(es) | {outcome.guarded_by} | {outcome.ending} | {share:.0%} |", flush=True)


def cost(seconds: float) -> None:
    print("| processes | held by | peak RAM | CPU of the watch, share of one core |")
    print("|---:|---|---:|---:|")
    for count in (1, 8, 50, 200):
        for use_cgroup in (True, False):
            limits = Limits(2 * GIB, seconds=seconds, processes=1000)
            outcome = run([sys.executable, "-c", IDLE, str(count)], limits, use_cgroup=use_cgroup)
            assert outcome.ending == "time", outcome
            assert outcome.guard_cpu_s is not None
            assert outcome.host_peak_bytes is not None
            share = outcome.guard_cpu_s / outcome.seconds
            ram = f"{outcome.host_peak_bytes / 2**20:.0f} MiB"
            print(f"| {outcome.processes_peak} | {outcome.guarded_by} | {ram} | {share:.2%} |", flush=True)


if __name__ == "__main__":
    main()

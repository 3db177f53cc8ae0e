"""Prove the planted suite: slow and healthy run in turns, and the ratio of their step times is what the cause costs.

    python tests/planted/prove.py [--only collate] [--scale small] [--repeats 1] [--json proof.json]

The scripts count their own steps and seconds (their last line says so). What they waited for data is measured by a
ruler around every DataLoader of the process, and their private memory by a sampler, both from outside the script.
The table is docs/causes.md's. Nothing here is a test: speed never is.
"""

import argparse
import atexit
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from planted import suite  # noqa: E402  found through the line above

SAID = re.compile(r"^(\d+) steps in ([\d.]+) s$", re.MULTILINE)
RULER = "--ruler"


@dataclass(frozen=True)
class Measured:
    """One run of one script."""

    steps: int
    step_s: float
    wait_share: float | None
    wall_s: float
    private_peak_bytes: int


def ruler(out: Path, script: str, arguments: list[str]) -> None:
    """Run the script in this process, with a clock around all it waits for DataLoaders."""
    from torch.utils.data import dataloader

    waited = 0.0

    def clocked(call: Any) -> Any:
        def timed(*args: Any) -> Any:
            nonlocal waited
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                waited += time.perf_counter() - began

        return timed

    kind: Any = dataloader._BaseDataLoaderIter
    kind.__next__ = clocked(kind.__next__)
    whole: Any = dataloader.DataLoader
    whole.__iter__ = clocked(whole.__iter__)
    sys.argv = [script, *arguments]
    owner = os.getpid()
    # Forked workers leave through os._exit and would not come here; spawned ones never had the ruler.
    atexit.register(lambda: out.write_text(json.dumps(waited)) if os.getpid() == owner else None)
    runpy.run_path(script, run_name="__main__")


def measure(script: Path, arguments: list[str]) -> Measured:
    """Run one script to its end and read what it said."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "waited.json"
        env = dict(os.environ, TMPDIR=scratch, PYTHONPATH=os.pathsep.join([str(HERE.parents[1] / "src")]))
        command = [sys.executable, __file__, RULER, str(out), str(script), *arguments]
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(child, peak))
        watcher.start()
        text, errors = child.communicate()
        watcher.join()
        wall_s = time.perf_counter() - began
        said = SAID.search(text)
        if child.returncode or said is None:
            raise SystemExit(
                f"{script} {' '.join(arguments)} ended with {child.returncode}:\n{text[-800:]}{errors[-3000:]}"
            )
        steps, seconds = int(said[1]), float(said[2])
        waited = json.loads(out.read_text()) / seconds if out.exists() else None
        return Measured(steps, seconds / steps, waited, wall_s, peak[0])


def _watch(child: subprocess.Popen[str], peak: list[int]) -> None:
    """Once a second, the private memory of the script and all its children together."""
    while child.poll() is None:
        time.sleep(1)
        total = 0
        try:
            root = psutil.Process(child.pid)
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_full_info().uss
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total)


def prove(planted: "suite.Planted", scale: str, repeats: int, steps: int | None) -> dict[str, Any]:
    """Slow and healthy in turns; medians of the repeats."""
    arguments = ["--scale", scale, *(["--steps", str(steps)] if steps else [])]
    runs: dict[str, list[Measured]] = {"slow": [], "healthy": []}
    for turn in range(repeats):
        order: list[suite.Which] = ["slow", "healthy"]
        for which in order if turn % 2 == 0 else reversed(order):
            runs[which].append(measure(planted.script(which), arguments))
    row: dict[str, Any] = {"cause": planted.cause, "scale": scale, "unit": planted.unit}
    for side, measured in runs.items():
        row[side] = {
            name: _median([asdict(run)[name] for run in measured])
            for name in ("steps", "step_s", "wait_share", "wall_s", "private_peak_bytes")
        }
    row["ratio"] = row["slow"]["step_s"] / row["healthy"]["step_s"]
    if planted.unit == "sample":
        row["ratio"] *= planted.samples_ratio(scale)
    return row


def _median(values: list[Any]) -> Any:
    return None if None in values else statistics.median(values)


def line(row: dict[str, Any]) -> str:
    """One row of the table."""

    def share(which: str) -> str:
        value = row[which]["wait_share"]
        return "   -" if value is None else f"{value:4.0%}"

    slow, healthy = row["slow"], row["healthy"]
    return (
        f"| {row['cause']:<23} | {row['scale']:<5} | {slow['step_s'] * 1e3:8.2f} | {healthy['step_s'] * 1e3:8.2f} "
        f"| {row['ratio']:5.2f} | {share('slow')} | {share('healthy')} "
        f"| {slow['wall_s']:5.1f} | {healthy['wall_s']:5.1f} "
        f"| {slow['private_peak_bytes'] / 1e6:5.0f} | {healthy['private_peak_bytes'] / 1e6:5.0f} |"
    )


def main() -> None:
    """Measure what is asked for, print a row as soon as it is there, and keep the JSON up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[planted.cause for planted in suite.PLANTED], help="these causes")
    parser.add_argument("--scale", nargs="*", choices=suite.SCALES, default=suite.SCALES)
    parser.add_argument("--repeats", type=int, default=1, help="interleaved runs of each script")
    parser.add_argument("--steps", type=int, default=None, help="end each script after this many steps")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    print(
        "| cause | scale | slow, ms a step | healthy | ratio | wait slow | healthy | wall s | healthy | MB | healthy |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for planted in suite.PLANTED:
        if args.only and planted.cause not in args.only:
            continue
        for scale in args.scale:
            rows.append(prove(planted, scale, args.repeats, args.steps))
            print(line(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [RULER]:
        ruler(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        main()

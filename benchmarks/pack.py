"""`stoker pack` against a plain copy of the same files, and its peak memory against --memory.

python benchmarks/pack.py [--megabytes 400] [--rounds 3] [--json pack.json]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROW = np.dtype([("id", "<u8"), ("board", "u1", (81,)), ("hand", "u1", (14,)), ("move", "<f2", (1496,)), ("v", "<f2")])
MEMORY = "768MiB"
WAYS = {
    "pack": ["--memory", "2GiB"],
    "pack --shuffle, fits into memory": ["--shuffle", "--memory", "4GiB"],
    f"pack --shuffle, two passes, --memory {MEMORY}": ["--shuffle", "--memory", MEMORY],
}
PACK = """
import json, resource, sys, time
from stoker.pack import execute, kinds, plan
from stoker.commands import main
began = time.perf_counter()
try:
    main(["pack", *sys.argv[1:]])
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"s": time.perf_counter() - began, "peak_bytes": peak}), file=sys.stderr)
"""


def copy(source: Path, target: Path) -> float:
    """What the disk can do: each file copied and synced, as pack does."""
    began = time.perf_counter()
    target.mkdir()
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, target / path.name)
        with (target / path.name).open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - began


def pack(source: Path, target: Path, options: list[str]) -> dict[str, float]:
    command = [sys.executable, "-c", PACK, str(source), str(target), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return dict(json.loads(done.stderr.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    copies: list[float] = []
    packs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder, source = Path(name), Path(name) / "src"
        source.mkdir()
        rows = options.megabytes * 1_000_000 // ROW.itemsize // 8
        random = np.random.default_rng(0)
        for number in range(8):
            raw = random.integers(0, 255, rows * ROW.itemsize, np.uint8)
            np.save(source / f"{number}.npy", raw.view(ROW))
        for _ in range(options.rounds):
            copies.append(copy(source, folder / "copy"))
            shutil.rmtree(folder / "copy")
            for way, arguments in WAYS.items():
                packs[way].append(pack(source, folder / "dst", arguments))
                shutil.rmtree(folder / "dst")
    rate = options.megabytes / statistics.median(copies)
    print(f"| {options.megabytes} MB of records | MB/s | ÷ copy | peak memory |\n|---|---|---|---|")
    print(f"| copy, synced | {rate:.0f} | 1.00 | |")
    table = {}
    for way, runs in packs.items():
        ratios = [c / run["s"] for c, run in zip(copies, runs, strict=True)]
        peak = max(run["peak_bytes"] for run in runs)
        middle = statistics.median(ratios)
        table[way] = {"ratio": middle, "peak_bytes": peak}
        print(f"| {way} | {rate * middle:.0f} | {middle:.2f} | {peak / 1e6:.0f} MB |")
    if options.json:
        options.json.write_text(json.dumps({"copy_s": copies, "ways": table}, indent=2))


if __name__ == "__main__":
    main()

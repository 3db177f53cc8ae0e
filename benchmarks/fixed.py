"""How near do the five fixed scripts come to what the device alone would take?

    python benchmarks/fixed.py [CASE ...] [--rounds 3] [--data DIR] [--json F]

Each `train_fixed.py` runs as it stands on the simulated accelerator, at scale 1: device time of a step ÷ time of a
step, from the script's own clock, the median over the rounds. For records also what the whole data set of the note, of
25,666,449 rows, would take at that pace.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CASES = ("records", "volumes", "events", "images", "text")
LEAST = 0.95
NOTE_ROWS, NOTE_MINUTES = 25_666_449, 14.5


def script(case: str, name: str, *arguments: str) -> None:
    words = [sys.executable, str(EXAMPLES / case / name), *arguments]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{case}/{name} ended with code {done.returncode}:\n{done.stderr}")


def measure(case: str, folder: Path) -> dict[str, Any]:
    data, out = folder / case / "data", folder / case / "fixed"
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        script(case, "make_data.py", "--out", str(data))
    script(case, "train_fixed.py", "--data", str(data), "--out", str(out))
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics["epochs"][-1] if "epochs" in metrics and "step_s" not in metrics else metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder with the cases' data: <case>/data; made where it is missing")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = options.cases or list(CASES)
    if unknown := set(chosen) - set(CASES):
        parser.error(f"{min(unknown)} is not one of {', '.join(CASES)}")
    found: dict[str, list[float]] = {case: [] for case in chosen}
    minutes: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.data or Path(scratch)).resolve()
        for number in range(options.rounds):
            for case in chosen:
                metrics = measure(case, folder)
                found[case].append(metrics["device_step_s"] / metrics["step_s"])
                if case == "records":
                    minutes.append(NOTE_ROWS / metrics["samples_per_s"] / 60)
                print(f"  {number + 1}/{options.rounds} {case}: {found[case][-1]:.3f}", file=sys.stderr, flush=True)
    print("| fixed script | device time ÷ step time (range) | wanted | met |\n|---|---|---|---|")
    for case, ratios in found.items():
        middle = statistics.median(ratios)
        met = "yes" if middle >= LEAST else "no"
        print(f"| {case} | {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | ≥ {LEAST} | {met} |")
    if minutes:
        middle = statistics.median(minutes)
        met = "yes" if middle < NOTE_MINUTES else "no"
        print(f"| records, an epoch of {NOTE_ROWS:,} rows | {middle:.1f} min | < {NOTE_MINUTES} min | {met} |")
    if options.json:
        options.json.write_text(json.dumps({"ratios": found, "records_epoch_min": minutes}, indent=2) + "\n")


if __name__ == "__main__":
    main()

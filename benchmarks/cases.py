"""Do the five slow scripts suffer as their notes say, and for the same reason? Prints the table and writes it as JSON.

    python benchmarks/cases.py [CASE ...] [--repeats 3] [--out benchmarks/out/cases.json]

Each script runs as it stands, on the simulated accelerator, at scale 1. What is compared is a share or a ratio from the
script's own clock, the median over the repeats; absolute times are those of the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "benchmarks" / "out" / "cases"
TEN_POINTS = 0.10

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Symptom:
    """One figure of a note, how ours is read from the metrics of one or two runs, and what counts as the same."""

    case: str
    what: str
    note: str
    runs: tuple[tuple[str, ...], ...]
    read: Callable[..., float]
    low: float
    high: float
    is_share: bool = True


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    what: str
    note: str
    ours: float
    spread: list[float]
    low: float
    high: float
    holds: bool
    is_share: bool


def _share(note: float) -> tuple[float, float]:
    return note - TEN_POINTS, note + TEN_POINTS


PLAIN: tuple[tuple[str, ...], ...] = ((),)
SYMPTOMS = [
    Symptom(
        "records",
        "steady step waiting for data",
        "44.2 of 68.0 ms",
        PLAIN,
        lambda m: m["wait_share"],
        *_share(44.2 / 68.0),
    ),
    Symptom("volumes", "step waiting for data", "15-17 of 18 s", PLAIN, lambda m: m["wait_share"], *_share(16 / 18)),
    Symptom(
        "events",
        "loading a batch, shuffled ÷ in order",
        "11.6 s ÷ 84 ms = 140",
        (("--shuffle",), ("--no-shuffle", "--steps", "30", "--log-every", "30")),
        lambda shuffled, ordered: shuffled["wait_s"] / ordered["wait_s"],
        50,
        float("inf"),
        is_share=False,
    ),
    Symptom(
        "images",
        "epoch 0 ÷ epoch 1",
        "7:37 ÷ 2:16 = 3.3",
        PLAIN,
        lambda m: m["cold_over_warm"][0],
        3.3 / 1.33,
        3.3 * 1.33,
        is_share=False,
    ),
    Symptom(
        "images",
        "epoch 0 ÷ epoch 2",
        "7:37 ÷ 1:56 = 3.9, by the rates 3.7",
        PLAIN,
        lambda m: m["cold_over_warm"][1],
        3.7 / 1.33,
        3.7 * 1.33,
        is_share=False,
    ),
    Symptom("text", "device idle", "83 %", PLAIN, lambda m: m["device_idle_share"], *_share(0.83)),
    Symptom("text", "step spent tokenising", "200 of 280 ms", PLAIN, lambda m: m["wait_share"], *_share(200 / 280)),
]


def run(case: str, arguments: tuple[str, ...]) -> Metrics:
    """One run of a slow script; its metrics."""
    data, out = HOME / case / "data", HOME / case / "run"
    scripts = ROOT / "examples" / case
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    for command in (
        ["make_data.py", "--out", str(data)],
        ["train.py", "--data", str(data), "--out", str(out), *arguments],
    ):
        done = subprocess.run(
            [sys.executable, str(scripts / command[0]), *command[1:]],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"cases: {case}/{command[0]} failed:\n{done.stderr}")
    found = json.loads((out / "metrics.json").read_text())
    assert isinstance(found, dict)
    return found


def measure(cases: list[str], repeats: int) -> tuple[list[Row], dict[str, list[Metrics]]]:
    """Every symptom of these cases; repeats are interleaved over the cases, so that drift does not favour one."""
    wanted = [symptom for symptom in SYMPTOMS if symptom.case in cases]
    # Two symptoms of a case that need the same runs share them.
    kinds = list(dict.fromkeys((symptom.case, arguments) for symptom in wanted for arguments in symptom.runs))
    found: dict[tuple[str, tuple[str, ...]], list[Metrics]] = {kind: [] for kind in kinds}
    for repeat in range(repeats):
        for case, arguments in kinds:
            began = time.perf_counter()
            found[case, arguments].append(run(case, arguments))
            took = time.perf_counter() - began
            print(f"{repeat + 1}/{repeats} {case} {' '.join(arguments)}: {took:.0f} s", file=sys.stderr, flush=True)
    rows = []
    for symptom in wanted:
        parts = zip(*(found[symptom.case, arguments] for arguments in symptom.runs), strict=True)
        spread = sorted(symptom.read(*metrics) for metrics in parts)
        ours = median(spread)
        holds = symptom.low <= ours <= symptom.high
        rows.append(
            Row(
                symptom.case,
                symptom.what,
                symptom.note,
                ours,
                spread,
                symptom.low,
                symptom.high,
                holds,
                symptom.is_share,
            )
        )
    return rows, {" ".join((case, *arguments)): runs for (case, arguments), runs in found.items()}


def table(rows: list[Row]) -> str:
    lines = ["| case | symptom | note | ours (range) | accepted | holds |", "|---|---|---|---|---|---|"]
    for row in rows:

        def show(value: float, is_share: bool = row.is_share) -> str:
            return f"{value:.0%}" if is_share else f"{value:.1f}"

        accepted = f"at least {show(row.low)}" if row.high == float("inf") else f"{show(row.low)} to {show(row.high)}"
        spread = f"{show(row.ours)} ({show(row.spread[0])} to {show(row.spread[-1])})"
        verdict = "yes" if row.holds else "**no**"
        lines.append(f"| {row.case} | {row.what} | {row.note} | {spread} | {accepted} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    names = list(dict.fromkeys(symptom.case for symptom in SYMPTOMS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HOME.parent / "cases.json")
    options = parser.parse_args()
    unknown = [case for case in options.cases if case not in names]
    if unknown or options.repeats < 1:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(names)}" if unknown else "--repeats is 1 or more")
    load_before = os.getloadavg()[0]
    rows, runs = measure(options.cases or names, options.repeats)
    print(table(rows))
    print(f"\n{os.cpu_count()} cores; load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    told = [{**asdict(row), "high": None if row.high == float("inf") else row.high} for row in rows]
    options.out.write_text(json.dumps({"rows": told, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()

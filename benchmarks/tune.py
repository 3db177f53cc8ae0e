"""Tune against an exhaustive grid over the same knobs: how near to the grid's best, in how much of its time?

    python benchmarks/tune.py [--case records ...] [--budget 2m] [--steady 3s] [--out benchmarks/out/tune]
    python benchmarks/tune.py --table

Each case: the grid, one guarded run a point, in random order; `stoker tune --keep-results` on the slow script as it
stands, with a fifth of the time that the grid took as its budget; then what tune kept and the grid's best, in turns,
because the best of many noisy runs looks better than it is. Everything is kept as it comes: an interrupted benchmark
goes on where it stopped.
"""

import argparse
import importlib.util
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stoker.decide import compare
from stoker.records import Value
from stoker.records.tuning import Interval, Round
from stoker.trial.command import Command
from stoker.trial.limits import choose
from stoker.trial.measure import Manner, Sample, measure

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "out" / "tune"
CASES = ("records", "volumes", "events", "images", "text")
PLANTED = ("too_few_workers", "too_many_workers", "request_latency", "worker_respawn")
GRID: dict[str, tuple[Value, ...]] = {
    "num_workers": (0, 1, 2, 4, 8),
    "prefetch_factor": (1, 2, 4, 8),
    "persistent_workers": (False, True),
    "worker_threads": (1, 2),
}
PARTS = ("grid", "tune", "loadtune", "turns")
PEER = ("records", "too_few_workers")
THEIRS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
ROUNDS = 8
LONGEST_S = 120.0
NEAR, TIME, ERROR = 0.95, 0.20, 0.15

Knobs = dict[str, Value]


@dataclass(frozen=True)
class Case:
    """One slow script: how its data is made, and how it is started."""

    name: str
    data: list[str] | None
    command: list[str]


def cases(home: Path) -> Iterator[Case]:
    for name in CASES:
        scripts, data = ROOT / "examples" / name, home / name / "data"
        command = [str(scripts / "train.py"), "--data", str(data), "--out", str(home / name / "run")]
        if name == "text":
            command += ["--epochs", "20"]  # an epoch is 25 steps: three are over before a rate can be measured
        if name == "events":
            command += ["--steps", "0"]  # it stops by itself after six, which eight workers have ready at once
        yield Case(name, [str(scripts / "make_data.py"), "--out", str(data)], command)
    for name in PLANTED:
        command = [str(ROOT / "tests" / "planted" / name / "slow.py"), "--epochs", "1000"]
        yield Case(name, None, command)


def points(small: bool) -> list[Knobs]:
    """Every setting; without workers the other knobs mean nothing. A small grid leaves the workers' threads alone."""
    names = [name for name in GRID if not (small and name == "worker_threads")]
    product = itertools.product(*(GRID[name] for name in names))
    return [{"num_workers": 0}, *(dict(zip(names, values, strict=True)) for values in product if values[0])]


class Bench:
    """One case, and all that was measured of it so far."""

    def __init__(self, case: Case, out: Path, budget: str | None, steady: str, small: bool) -> None:
        self.case = case
        self.points = points(small)
        self.home = out / case.name
        self.budget = budget
        self.steady = steady
        self.path = out / f"{case.name}.json"
        self.known: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def save(self) -> None:
        """Keep what is known, now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.known, indent=1) + "\n")

    def run(self, parts: list[str]) -> None:
        """Data, then the parts that were asked for: grid, tune, both side by side."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self.case.data is not None:
            subprocess.run([sys.executable, *self.case.data], check=True, capture_output=True, env=environment())
        if "grid" in parts:
            self.grid()
        if "tune" in parts and "tune" not in self.known:
            self.known["tune"] = self.tune()
            self.save()
        if "loadtune" in parts and "loadtune" not in self.known and self.case.name in PEER:
            self.known["loadtune"] = self.loadtune()
            self.save()
        if "turns" in parts:
            self.side_by_side()

    def tune(self) -> dict[str, Any]:
        """As a user would; what it kept and what that took."""
        began = time.monotonic()
        result = self.home / "tuned.json"
        shutil.rmtree(self.home / ".stoker", ignore_errors=True)
        budget = self.budget or f"{TIME * sum(point['seconds'] for point in self.known['grid']):.0f}s"
        options = ["--keep-results", "--budget", budget, "--steady", self.steady, "--json", str(result)]
        command = [sys.executable, "-m", "stoker", "tune", *options, "--", sys.executable, *self.case.command]
        subprocess.run(command, check=True, env=environment(), cwd=self.home)
        told = json.loads(result.read_text())
        errors = [abs(trial["prediction_error"]) for trial in told["trials"] if trial["prediction_error"] is not None]
        return {
            "seconds": time.monotonic() - began,
            "knobs": told["final"]["knobs"],
            "processes": told["context"]["processes"],
            "ratio": told["final"]["ratio"],
            "errors": errors,
            "ended": told["context"]["ended"],
            "findings": [finding["cause"] for finding in told["findings"]],
        }

    def loadtune(self) -> dict[str, Any] | None:
        """What the peer proposes, by its own defaults; None where it is not installed."""
        if importlib.util.find_spec("loadtune") is None:
            return None
        began = time.monotonic()
        raw = self.home / "loadtune.json"
        workload = str(ROOT / "benchmarks" / "tune_loadtune.py")
        options = ["--no-plots", "--save-raw", str(raw), "--out", str(self.home / "loadtune.md")]
        case = {"LOADTUNE_CASE": self.case.name, "LOADTUNE_DATA": str(self.home / "data")}
        command = [sys.executable, "-m", "loadtune.cli", "tune", workload, *options]
        subprocess.run(command, check=True, env={**environment(), **case}, cwd=self.home)
        told = json.loads(raw.read_text())
        fine = [one for one in told["trials"] if one["result"] and not one["result"].get("error")]
        best = max(fine, key=lambda one: one["result"]["throughput"], default=None)
        better = best is not None and best["result"]["throughput"] > told["baseline"]["throughput"]
        knobs = best["knobs"] if best is not None and better else {"num_workers": 0}
        kept = {name: knobs[name] for name in THEIRS if knobs.get(name) is not None}
        return {"knobs": kept if kept["num_workers"] else {"num_workers": 0}, "seconds": time.monotonic() - began}

    def grid(self) -> None:
        """Every point that was not measured yet."""
        measured = self.known.setdefault("grid", [])
        done = [point["knobs"] for point in measured]
        left = [knobs for knobs in self.points if knobs not in done]
        random.Random(len(done)).shuffle(left)
        for knobs in left:
            sample, seconds = self.measure(knobs)
            point = {"knobs": knobs, "sample_s": sample.sample_s, "is_later": sample.is_later, "seconds": seconds}
            measured.append(point)
            self.save()
            print(f"{self.case.name} {len(measured)}/{len(self.points)}: {point}", file=sys.stderr, flush=True)

    def side_by_side(self) -> None:
        """The user's own setting, what tune kept and the grid's best, in turns."""
        best = min((one for one in self.known["grid"] if one["sample_s"]), key=lambda one: one["sample_s"])
        sides: dict[str, Knobs] = {"own": {}, "tuned": self.known["tune"]["knobs"], "best": best["knobs"]}
        if self.known.get("loadtune"):
            sides["loadtune"] = self.known["loadtune"]["knobs"]
        rounds = self.known.setdefault("rounds", [])
        while len(rounds) < ROUNDS:
            names = list(sides)
            random.Random(len(rounds)).shuffle(names)
            found = {name: self.measure(sides[name])[0] for name in names}
            like = next((one for one in found.values() if not one.is_later), found["own"])  # of the first epoch, or not
            rounds.append({name: one.sample_beside(like) for name, one in found.items()})
            self.save()

    def measure(self, knobs: Mapping[str, Value]) -> tuple[Sample, float]:
        """One process, and what measuring it took."""
        place = self.home / "point"
        shutil.rmtree(place, ignore_errors=True)
        began = time.monotonic()
        command = Command([sys.executable, *self.case.command])
        manner = Manner(float(self.steady.removesuffix("s")))
        sample = measure(command, knobs, place, choose(seconds=LONGEST_S), manner)
        return sample, time.monotonic() - began


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}


def row(name: str, known: dict[str, Any]) -> dict[str, Any] | None:
    """The figures of one case; None until it is whole."""
    if len(known.get("rounds", [])) < ROUNDS:
        return None
    rounds = [one for one in known["rounds"] if all(one.values())]
    grid_s = sum(point["seconds"] for point in known["grid"])
    return {
        "case": name,
        "reached": against_best(rounds, "tuned"),
        "own": against_best(rounds, "own"),
        "time": known["tune"]["seconds"] / grid_s,
        "errors": known["tune"]["errors"],
        "kept": known["tune"]["knobs"],
        "tune_s": known["tune"]["seconds"],
        "grid_s": grid_s,
        "points": len(known["grid"]),
        "peer": against_best(rounds, "loadtune") if known.get("loadtune") else None,
        "peer_knobs": known["loadtune"]["knobs"] if known.get("loadtune") else None,
        "peer_time": known["loadtune"]["seconds"] / grid_s if known.get("loadtune") else None,
    }


def against_best(rounds: list[dict[str, float]], side: str) -> Interval:
    """The rate of one side as a share of the grid's best, with a 95 % interval."""
    return compare([Round((one["best"],), (one[side],)) for one in rounds])


def shown(share: Interval) -> str:
    return f"{share.ratio:.2f} ({share.low:.2f} to {share.high:.2f})"


def table(out: Path) -> str:
    rows = [row(case.name, json.loads((out / f"{case.name}.json").read_text()))
            for case in cases(out) if (out / f"{case.name}.json").exists()]  # fmt: skip
    whole = [one for one in rows if one is not None]
    head = [
        "case",
        "kept",
        "as it was ÷ grid's best (95 %)",
        "reached ÷ grid's best (95 %)",
        "time ÷ grid's time",
        "prediction error",
    ]
    lines = [f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|---:|"]
    for one in whole:
        kept = ", ".join(f"{name}={value}" for name, value in one["kept"].items()) or "nothing"
        error = f"{median(one['errors']):.0%}" if one["errors"] else "none"
        spent = f"{one['time']:.0%} ({one['tune_s']:.0f} of {one['grid_s']:.0f} s, {one['points']} points)"
        lines.append(f"| {one['case']} | {kept} | {shown(one['own'])} | {shown(one['reached'])} | {spent} | {error} |")
    for one in whole:
        if one["peer"] is not None:
            kept = ", ".join(f"{name}={value}" for name, value in one["peer_knobs"].items())
            spent = f"{one['peer_time']:.0%}"
            lines.append(f"| {one['case']}, loadtune 0.3.0 | {kept} | | {shown(one['peer'])} | {spent} | |")
    errors = [error for one in whole for error in one["errors"]]
    if whole:
        near = sum(one["reached"].ratio >= NEAR for one in whole)
        quick = sum(one["time"] <= TIME for one in whole)
        said = f"{median(errors):.0%} (target {ERROR:.0%})" if errors else "none"
        counts = f"{near} of {len(whole)} reach {NEAR:.0%}, {quick} take at most {TIME:.0%} of the grid's time"
        lines.append(f"\n{counts}; median prediction error {said}, over {len(errors)} trials")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", choices=[*CASES, *PLANTED], help="repeatable; default: all nine")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable; default: all, in this order")
    parser.add_argument("--budget", help="of tune; default: a fifth of the grid's time")
    parser.add_argument("--steady", default="3s")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--small", action="store_true", help="a grid of 33 points instead of 65")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    options = parser.parse_args()
    out = options.out.resolve()
    for case in cases(out):
        if not options.table and case.name in (options.case or [*CASES, *PLANTED]):
            Bench(case, out, options.budget, options.steady, options.small).run(options.part or list(PARTS))
    print(table(out))
    print(f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; the grid's points: one run each")


if __name__ == "__main__":
    main()

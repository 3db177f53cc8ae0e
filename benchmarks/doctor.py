"""The doctor side by side with torch.profiler and TraceML: overhead, accounting and forecast.

    python benchmarks/doctor.py [overhead] [accounting] [forecast] [startup] [--cases DIR] [--rounds N] [--json F]
    python benchmarks/doctor.py planted [--only collate]
    python benchmarks/doctor.py peers [--only slow]

Overhead is measured in processes that take turns (`overhead.py`), so that drift of the machine cancels. Accounting and
forecast run the real program on plain scripts and on the five cases; `planted` is the accounting of every planted
script that suffers from something. `peers` is what TraceML says of the planted scripts (`traced.py`); it has to be
installed for that.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import overhead
import traced
from fast_loop import SHAPES

ROOT = Path(__file__).resolve().parents[1]
PLANTED = ROOT / "tests" / "planted" / "accounting"
CASES = ("records", "volumes", "events", "images", "text")


# ---- accounting and forecast -----------------------------------------------------------------------------


def doctor(words: list[str], cwd: Path, *options: str) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "stoker", "doctor", "--no-html", "--json", str(out), *options, "--", *words]
        start = time.perf_counter()
        subprocess.run(command, cwd=cwd, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return (json.loads(out.read_text()) if out.exists() else {}), time.perf_counter() - start


def scripts(cases: Path | None, work: Path) -> Iterator[tuple[str, list[str], Path]]:
    for workers in ("0", "2"):
        place = work / f"plain-{workers}"
        place.mkdir(exist_ok=True)
        yield f"plain loop, {workers} workers", [sys.executable, str(PLANTED / "known_times.py"), workers], place
    for case in CASES if cases else ():
        assert cases is not None
        place = cases / case
        whole = ["--steps", "0"] if case == "events" else []  # it stops by itself after six
        if (place / "data").is_dir():
            yield case, [sys.executable, str(ROOT / "examples" / case / "train.py"), *whole], place


PROFILED = """
import os, runpy, sys, time
began = time.perf_counter()
import torch
from torch.profiler import ProfilerActivity, profile
script, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, os.path.dirname(script))
with profile(activities=[ProfilerActivity.CPU]) as seen:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        pass
wall = time.perf_counter() - began
spans = sorted((e.time_range.start, e.time_range.end) for e in seen.events() if e.cpu_parent is None)
covered, until = 0.0, 0.0
for start, end in spans:
    covered += max(end - max(start, until), 0)
    until = max(until, end)
print("PROFILED", covered / 1e6 / wall)
"""


def profiler_share(words: list[str], cwd: Path) -> float | None:
    """The share of wall time that lies below any of torch.profiler's events on the main thread."""
    done = subprocess.run(
        [sys.executable, "-c", PROFILED, *words[1:]], cwd=cwd, capture_output=True, text=True, check=False
    )
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("PROFILED")]
    if not found:
        print(done.stderr, file=sys.stderr)
    return float(found[0]) if found else None


def accounting(cases: Path | None, peers: bool) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, words, place in scripts(cases, Path(work)):
            seen, took = doctor(words, place)
            row: dict[str, Any] = {"script": name, "seconds": round(took, 1), "steps": seen.get("steps")}
            if seen:
                row["sum_of_shares"] = sum(phase["share"] for phase in seen["phases"])
                row["unaccounted_share"] = seen["unaccounted_share"]
                row["overhead_share"] = seen["overhead_share"]
            if peers and name.startswith("plain"):
                row["profiler_share"] = profiler_share(words, place)
                row["traceml_steps"] = traced.steps(traced.summary(Path(words[1]), words[2:], place))
            rows.append(row)
            print(f"  {row}", file=sys.stderr, flush=True)
    return rows


def planted(only: list[str]) -> Iterator[dict[str, Any]]:
    """What has no name in the planted scripts, watched for some seconds of training."""
    for case in traced.small(only or ["slow"]):
        if case.which == "healthy":
            continue
        with tempfile.TemporaryDirectory() as place:
            words = [sys.executable, str(case.script), "--scale", "small"]
            seen, took = doctor(words, Path(place), "--observe-only", "--budget", "6s")
        row = {"script": case.cause, "seconds": round(took, 1), "steps": seen.get("steps")}
        row["sum_of_shares"] = sum(phase["share"] for phase in seen.get("phases", ()))
        yield row | {"unaccounted_share": seen.get("unaccounted_share")}


def told(row: dict[str, Any]) -> dict[str, Any]:
    print(f"  {row}", file=sys.stderr, flush=True)
    return row


def forecast(cases: Path | None, only: list[str], rounds: int) -> list[dict[str, Any]]:
    """The epoch that a short run forecasts against epochs really run before it and after it; errors are medians.

    The machine's own speed drifts by some percent a minute: what lies between two truths is measured against both.
    """
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, words, place in [*long_loops(Path(work)), *scripts(cases, Path(work))]:
            if name.startswith("plain loop,") or (only and name not in only):
                continue
            pairs = forecasts(words, place, rounds)
            row: dict[str, Any] = {"script": name}
            row |= {key: statistics.median(pair[key] for pair in pairs) for key in ("doctor_s", "whole_s")}
            known = [pair for pair in pairs if pair["predicted_s"] and pair["true_s"]]
            if known:
                errors = [pair["predicted_s"] / pair["true_s"] - 1 for pair in known]
                row |= {key: statistics.median(pair[key] for pair in known) for key in ("predicted_s", "true_s")}
                row |= {"error": statistics.median(errors), "least": min(errors), "most": max(errors)}
                row["inside"] = f"{sum(pair['inside'] for pair in known)} of {len(pairs)}"
                runs = [
                    pair["run_s"] / pair["true_run_s"] - 1 for pair in known if pair["run_s"] and pair["true_run_s"]
                ]
                row["run_error"] = statistics.median(runs) if runs else None
                row["stolen_share"] = max(pair["stolen_share"] for pair in known)
            rows.append(row)
            print(f"  {row}", file=sys.stderr, flush=True)
    return rows


def forecasts(words: list[str], place: Path, rounds: int) -> list[dict[str, Any]]:
    found = []
    before, before_took = doctor(words, place, "--whole")
    for _ in range(rounds):
        seen, took = doctor(words, place)
        after, after_took = doctor(words, place, "--whole")
        truths = [value for value in map(true_epoch_s, (before, after)) if value is not None]
        true_s = statistics.fmean(truths) if truths else None
        predicted = seen.get("prediction") or {}
        inside = bool(predicted and true_s and predicted["low_s"] <= true_s <= predicted["high_s"])
        stolen = max(one["machine"]["stolen_share"] or 0.0 for one in (before, seen, after) if one)
        figures = {"predicted_s": predicted.get("epoch_s"), "true_s": true_s, "truths_s": truths, "inside": inside}
        walls = [one["wall_s"] for one in (before, after) if one]
        figures |= {"run_s": predicted.get("run_s"), "true_run_s": statistics.fmean(walls) if walls else None}
        figures["stolen_share"] = stolen  # by other virtual machines on the same host: the most of the three runs
        print(f"    {figures}", file=sys.stderr, flush=True)
        whole_s = round((before_took + after_took) / 2, 1)
        found.append({"doctor_s": round(took, 1), "whole_s": whole_s, **figures})
        before, before_took = after, after_took
    return found


LONG = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return {samples}
    def __getitem__(self, i):
        time.sleep({read_s})
        x = torch.randn(256)
        for _ in range({work}): x = x * 1.0001
        return x, i % 10
def main():
    torch.manual_seed(0)
    train = DataLoader(Data(), batch_size=16, shuffle=True, num_workers={workers})
    valid = DataLoader(Data(), batch_size=64, num_workers={workers})
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in valid:
                nn.functional.cross_entropy(model(x), y)
        torch.save(model.state_dict(), "model.pt")
main()
"""


def long_loops(work: Path) -> Iterator[tuple[str, list[str], Path]]:
    shapes = {
        "long loop, data on the main thread": {"samples": 16_000, "read_s": 0.0005, "work": 40, "workers": 0},
        "long loop, two workers": {"samples": 40_000, "read_s": 0.0005, "work": 20, "workers": 2},
    }
    for name, values in shapes.items():
        path = work / f"{'-'.join(name.split()[-2:])}.py"
        path.write_text(LONG.format(**values))
        yield name, [sys.executable, str(path)], work


def true_epoch_s(whole: dict[str, Any]) -> float | None:
    """From one training epoch's start to the next, or to the end of the script's code for the last."""
    times = whole.get("epoch_s") or []
    return statistics.fmean(times) if times else None


# ---- start-up --------------------------------------------------------------------------------------------


def startup(rounds: int) -> dict[str, float]:
    """What a script that only imports torch costs more under the doctor: wall, and CPU of all processes."""
    wall: dict[str, list[float]] = {"plain": [], "doctor": []}
    cpu: dict[str, list[float]] = {"plain": [], "doctor": []}
    with tempfile.TemporaryDirectory() as work:
        script = Path(work) / "script.py"
        script.write_text("import torch\n")
        commands = {"plain": [sys.executable, str(script)]}
        commands["doctor"] = [sys.executable, "-m", "stoker", "doctor", "--no-html", "--", *commands["plain"]]
        for _ in range(rounds):
            for label, words in commands.items():
                start, used = time.perf_counter(), children_cpu_s()
                subprocess.run(words, cwd=work, check=False, capture_output=True)
                wall[label].append(time.perf_counter() - start)
                cpu[label].append(children_cpu_s() - used)
    kinds = {"wall": wall, "cpu": cpu}
    found = {f"{label}_{kind}_s": statistics.median(kinds[kind][label]) for kind in kinds for label in commands}
    found["added_wall_s"] = statistics.median(b - a for a, b in zip(wall["plain"], wall["doctor"], strict=True))
    found["added_cpu_s"] = statistics.median(b - a for a, b in zip(cpu["plain"], cpu["doctor"], strict=True))
    return found


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---- tables ----------------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell(row.get(head)) for head in heads)} |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts",
        nargs="*",
        default=[],
        help="overhead, accounting, forecast, startup; all if none; or planted, peers",
    )
    parser.add_argument("--cases", type=Path, help="folder with the cases' data: <case>/data")
    parser.add_argument(
        "--only", action="append", default=[], help="only these scripts; peers: collate, or slow, or collate/slow"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="forecasts and true runs of each script, in turns; of overhead, at least two",
    )
    parser.add_argument("--blocks", type=int, default=20, help="of about a second, in each round of overhead")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts = args.parts or ["overhead", "accounting", "forecast", "startup"]
    found: dict[str, Any] = {}
    if "overhead" in parts:
        found["overhead"] = [told(overhead.measure(shape, args.blocks, max(args.rounds, 2))) for shape in SHAPES]
    if "startup" in parts:
        found["startup"] = [startup(5)]
    if "accounting" in parts:
        found["accounting"] = accounting(args.cases, peers=True)
    if "planted" in parts:
        found["planted"] = [told(row) for row in planted(args.only)]
    if "peers" in parts:
        found["peers"] = [told(row) for row in traced.verdicts(args.only)]
    if "forecast" in parts:
        found["forecast"] = forecast(args.cases, args.only, args.rounds)
    for name, rows in found.items():
        print(f"\n{name}\n\n{table(rows)}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""The doctor side by side with torch.profiler and TraceML: overhead, accounting and forecast.

    python benchmarks/doctor.py [overhead] [accounting] [forecast] [startup] [--cases DIR] [--rounds N] [--json F]
    python benchmarks/doctor.py peers [--only slow]

Overhead is measured in one process: blocks of steps with the hooks in place and without alternate in random order, so
that drift of the machine cancels; printed are ratios of block medians with a bootstrap interval. Accounting and
forecast run the real program on plain scripts and on the five cases. `peers` is what TraceML says of the planted
scripts (`traced.py`); it has to be installed for that.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import traced

from stoker.observe.doze import AWAKE, DOZING, FAST_NS

ROOT = Path(__file__).resolve().parents[1]
PLANTED = ROOT / "tests" / "planted" / "accounting"
CASES = ("records", "volumes", "events", "images", "text")
BLOCK_S, SETTLE_S = 0.1, 0.5
"""How long one block is, and how long steps are made before it: whatever is put in place costs most at first, and is
there for minutes in a real run."""


# ---- overhead --------------------------------------------------------------------------------------------


def make_loop(width: int, depth: int, batch: int) -> Callable[[Any], None]:
    """One step of a plain loop over a real DataLoader iterator."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = [module for _ in range(depth) for module in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def step(batches: Any) -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(x[:batch]), y[:batch])
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def batches_of(width: int, batch: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    class Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            x, y = torch.randn(batch, width), torch.randint(0, 2, (batch,))
            while True:
                yield x, y

    return iter(DataLoader(Endless(), batch_size=None))


@contextlib.contextmanager
def watched(*, asleep: int = 0, ready: bool = False) -> Iterator[Callable[[], None]]:
    """Hooks and sampler as in a child of `stoker doctor --whole`, all of them or dozing; `ready` between experiments.

    Yields what holds them in that state once the loader's iterator is made.
    """
    from stoker.observe.child import Observer
    from stoker.observe.options import Options

    with tempfile.TemporaryDirectory() as directory:
        observer = Observer(Path(directory), Options(whole=not ready))
        observer.start()
        if observer.pace.probes is not None:
            observer.pace.probes._since_ns = 1 << 62  # noqa: SLF001  none is due
        doze = observer.recorder.doze

        def hold() -> None:
            doze.at, doze.asleep[0] = 1 << 62, asleep

        try:
            yield hold
        finally:
            doze.asleep[0] = 0
            observer.finish()


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]):
        yield


@contextlib.contextmanager
def plain() -> Iterator[None]:
    yield


def overhead(shapes: list[tuple[str, int, int, int]], blocks: int) -> list[dict[str, Any]]:
    """Wall time says what a user feels; the main thread's CPU time says it also while others use the cores.

    Steps with all hooks and steps in which they doze are timed apart, in blocks that are short against the drift of the
    machine, and put together as they come in a fast loop: so many of the one, so many of the other.
    """
    rows = []
    for name, width, depth, batch in shapes:
        step = make_loop(width, depth, batch)
        step_s = time_block(step, plain, width, batch, 10)[1]
        count = max(12, round(BLOCK_S / step_s))
        awake = AWAKE / (AWAKE + DOZING) if step_s * 1e9 < FAST_NS else 1.0
        draw = random.Random(0)
        contexts: dict[str, Callable[[], Any]] = {
            "plain": plain,
            "awake": watched,
            "asleep": functools.partial(watched, asleep=1),
            "ready": functools.partial(watched, ready=True),
            "profiler": profiled,
        }
        times: dict[str, list[tuple[float, ...]]] = {label: [] for label in contexts}
        for _ in range(blocks):
            order = list(contexts)
            draw.shuffle(order)
            for label in order:
                times[label].append(time_block(step, contexts[label], width, batch, count))
        pairs = zip(times["awake"], times["asleep"], strict=True)
        times["stoker"] = [tuple(awake * a + (1 - awake) * b for a, b in zip(*pair, strict=True)) for pair in pairs]
        added = {
            label: [1e6 * (a[2] - b[2]) for a, b in zip(times[label], times["plain"], strict=True)]
            for label in ("stoker", "awake", "ready")
        }
        low, high = interval(added["stoker"])
        rows.append(
            {
                "loop": name,
                "step_cpu_ms": statistics.median(block[1] for block in times["plain"]) * 1e3,
                "modules": 2 * depth + 2,
                "stoker_cpu_ratio": ratio(times, "stoker", 1),
                "stoker_us_a_step": statistics.median(added["stoker"]),
                "low_us": low,
                "high_us": high,
                "all_hooks_us": statistics.median(added["awake"]),
                "between_experiments_us": statistics.median(added["ready"]),
                "stoker_wall_ratio": ratio(times, "stoker", 0),
                "profiler_cpu_ratio": ratio(times, "profiler", 1),
                "profiler_wall_ratio": ratio(times, "profiler", 0),
            }
        )
    return rows


def ratio(times: dict[str, list[tuple[float, ...]]], label: str, column: int) -> float:
    """The median over rounds of a block against the plain block beside it."""
    pairs = zip(times[label], times["plain"], strict=True)
    return statistics.median(a[column] / b[column] for a, b in pairs)


def time_block(
    step: Callable[[Any], None], context: Callable[[], Any], width: int, batch: int, count: int
) -> tuple[float, ...]:
    """Seconds of a step: medians of wall and of the thread's CPU, and the CPU of a quick one, disturbed the least.

    The iterator is made inside: its hooks belong to it.
    """
    with context() as hold:
        batches = batches_of(width, batch)
        step(batches)
        if hold is not None:
            hold()
        settled = time.perf_counter() + SETTLE_S
        while time.perf_counter() < settled:
            step(batches)
        wall, cpu = [], []
        for _ in range(count):
            start, used = time.perf_counter(), time.thread_time()
            step(batches)
            cpu.append(time.thread_time() - used)
            wall.append(time.perf_counter() - start)
    return statistics.median(wall), statistics.median(cpu), statistics.quantiles(cpu, n=10)[0]


def interval(values: list[float]) -> tuple[float, float]:
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(500))
    return medians[12], medians[487]


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
        if (place / "data").is_dir():
            yield case, [sys.executable, str(ROOT / "examples" / case / "train.py")], place


PROFILED = """
import runpy, sys, time
began = time.perf_counter()
import torch
from torch.profiler import ProfilerActivity, profile
script, sys.argv = sys.argv[1], sys.argv[1:]
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


def told(row: dict[str, Any]) -> dict[str, Any]:
    print(f"  {row}", file=sys.stderr, flush=True)
    return row


def forecast(cases: Path | None, only: list[str], rounds: int) -> list[dict[str, Any]]:
    """The epoch that a short run forecasts against epochs that were really run, in turns; errors are medians."""
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, words, place in [*long_loops(Path(work)), *scripts(cases, Path(work))]:
            if name.startswith("plain loop,") or (only and name not in only):
                continue
            pairs = [forecast_once(words, place) for _ in range(rounds)]
            row: dict[str, Any] = {"script": name}
            row |= {key: statistics.median(pair[key] for pair in pairs) for key in ("doctor_s", "whole_s")}
            known = [pair for pair in pairs if pair["predicted_s"] and pair["true_s"]]
            if known:
                errors = [pair["predicted_s"] / pair["true_s"] - 1 for pair in known]
                row |= {key: statistics.median(pair[key] for pair in known) for key in ("predicted_s", "true_s")}
                row |= {"error": statistics.median(errors), "least": min(errors), "most": max(errors)}
                row["inside"] = f"{sum(pair['inside'] for pair in known)} of {len(pairs)}"
            rows.append(row)
            print(f"  {row}", file=sys.stderr, flush=True)
    return rows


def forecast_once(words: list[str], place: Path) -> dict[str, Any]:
    seen, took = doctor(words, place)
    whole, whole_took = doctor(words, place, "--whole")
    predicted, true_s = seen.get("prediction") or {}, true_epoch_s(whole)
    inside = bool(predicted and true_s and predicted["low_s"] <= true_s <= predicted["high_s"])
    figures = {"predicted_s": predicted.get("epoch_s"), "true_s": true_s, "inside": inside}
    print(f"    {figures}", file=sys.stderr, flush=True)
    return {"doctor_s": round(took, 1), "whole_s": round(whole_took, 1), **figures}


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
        "parts", nargs="*", default=[], help="overhead, accounting, forecast, startup; all if none; or peers"
    )
    parser.add_argument("--cases", type=Path, help="folder with the cases' data: <case>/data")
    parser.add_argument(
        "--only", action="append", default=[], help="only these scripts; peers: collate, or slow, or collate/slow"
    )
    parser.add_argument("--rounds", type=int, default=1, help="forecasts and true runs of each script, in turns")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts = args.parts or ["overhead", "accounting", "forecast", "startup"]
    found: dict[str, Any] = {}
    if "overhead" in parts:
        shapes = [("~1 ms", 128, 2, 64), ("~1 ms, 100 modules", 16, 50, 8), ("~12 ms", 512, 4, 256)]
        found["overhead"] = overhead(shapes, args.blocks)
    if "startup" in parts:
        found["startup"] = [startup(5)]
    if "accounting" in parts:
        found["accounting"] = accounting(args.cases, peers=True)
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

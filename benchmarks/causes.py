"""Does the doctor name the true cause? Run it on the planted suite or on the five cases, and print who was right.

    python benchmarks/causes.py planted [--only collate] [--which slow] [--scale small] [--repeats 1] [--json out.json]
    python benchmarks/causes.py cases   [--only records] [--repeats 1] [--json out.json]
    python benchmarks/causes.py heldout [--jobs 2]
    python benchmarks/causes.py planted --again --keep DIR

Each script runs in a fresh process under the real `stoker doctor`. Data sets are made once and kept in --data.
With --again nothing is run: what --keep recorded earlier is judged by today's rules, all of it in seconds, so that a
changed rule is seen on every script before any is run again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = {
    "records": {"per-item-fetch"},
    "volumes": {"read-amplification"},
    "events": {"shuffle-thrash"},
    "images": {"request-latency"},
    "text": {"tokenize", "repeated-work"},
}
TIMEOUT_S = 240
Task = tuple[str, list[str], set[str], set[str]]
"""A name, a command, the causes that are right, and those that may not be found at all."""


@dataclass(frozen=True)
class Judged:
    """One run of the doctor, held against what is true."""

    name: str
    expected: list[str]
    verdict: str | None
    findings: list[tuple[str, float | None]]
    is_right: bool
    seconds: float
    trouble: str | None


Judge = Callable[[str, list[str], set[str], set[str], Path | None], Judged]


def judge(name: str, command: list[str], expected: set[str], forbidden: set[str], keep: Path | None) -> Judged:
    """Run the doctor on one command."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "diagnosis.json"
        words = [
            sys.executable,
            "-m",
            "stoker",
            "doctor",
            "--no-html",
            "--json",
            str(out),
            "--out",
            str(Path(scratch) / "run"),
        ]
        env = dict(os.environ, PYTHONPATH=str(ROOT / "src"), COLUMNS="120")
        began = time.perf_counter()
        try:
            child = subprocess.run(
                [*words, "--", *command],
                cwd=scratch,
                env=env,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Judged(name, sorted(expected), None, [], False, TIMEOUT_S, "took too long")
        seconds = time.perf_counter() - began
        if not out.exists():
            return Judged(name, sorted(expected), None, [], False, seconds, child.stderr[-600:])
        said = json.loads(out.read_text())
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            target = keep / name.replace("/", "-")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(scratch) / "run", target)
        found = [(one["cause"], one["gain_max"]) for one in said["findings"]]
        return held(name, expected, forbidden, said["verdict"], found, seconds)


def judge_again(name: str, _: list[str], expected: set[str], forbidden: set[str], keep: Path | None) -> Judged:
    """Read what was recorded of one command, and follow the doctor's arrow from there."""
    from stoker.commands.doctor import diagnose
    from stoker.errors import StokerError

    began = time.perf_counter()
    try:
        said = diagnose(Path(keep or "") / name.replace("/", "-"))[1]
    except StokerError as error:
        return Judged(name, sorted(expected), None, [], False, time.perf_counter() - began, str(error))
    found = [(one.cause, one.gain_max) for one in said.findings]
    return held(name, expected, forbidden, said.verdict, found, time.perf_counter() - began)


def held(
    name: str,
    expected: set[str],
    forbidden: set[str],
    verdict: str | None,
    found: list[tuple[str, float | None]],
    seconds: float,
) -> Judged:
    """What was said against what is true."""
    right = verdict in expected and not forbidden & {cause for cause, _ in found}
    return Judged(name, sorted(expected), verdict, found, right, seconds, None)


def planted(args: argparse.Namespace) -> list[Task]:
    """The suite's cases as commands."""
    sys.path.insert(0, str(args.suite.parent))
    suite: Any = __import__("planted.suite", fromlist=["cases"])
    found: list[Task] = []
    for case in suite.cases():
        if (args.only and case.cause not in args.only) or case.which not in args.which or case.scale not in args.scale:
            continue
        data = args.data / "planted" / case.cause / case.which / case.scale
        data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(case.script), "--scale", case.scale, "--data", str(data)]
        found.append((f"{case.cause}/{case.which}/{case.scale}", command, set(case.expected), set(case.forbidden)))
    return found


def cases(args: argparse.Namespace) -> list[Task]:
    """The five cases as commands; their data is made first."""
    found: list[Task] = []
    for name, expected in CASES.items():
        if args.only and name not in args.only:
            continue
        folder, data = args.examples / name, args.data / "cases" / name
        if not data.exists():
            subprocess.run([sys.executable, str(folder / "make_data.py"), "--out", str(data)], check=True)
        out = args.data / "runs" / name
        command = [sys.executable, str(folder / "train.py"), "--data", str(data), "--out", str(out)]
        command += ["--shuffle", "--steps", "40"] if name == "events" else []  # six steps, its default, are no run
        found.append((name, command, expected, set()))
    return found


def heldout(args: argparse.Namespace) -> list[Task]:
    """Scripts in other styles, written after the rules."""
    folder = args.suite / "heldout"
    sys.path.insert(0, str(args.suite.parent))
    expected: Any = __import__("planted.heldout.expected", fromlist=["EXPECTED", "OWN_DATA"])
    found: list[Task] = []
    for name, causes in expected.EXPECTED.items():
        if args.only and name not in args.only:
            continue
        data = args.data / "heldout" / name
        data.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, str(folder / f"{name}.py"), *([] if name in expected.OWN_DATA else [str(data)])]
        found.append((f"heldout/{name}", words, set(causes), set()))
    return found


WHAT = {"planted": planted, "cases": cases, "heldout": heldout}


def line(row: Judged) -> str:
    """One row of the table."""
    gains = ", ".join(f"{cause} {gain:.2f}" if gain else cause for cause, gain in row.findings)
    mark = "yes" if row.is_right else f"NO, is {' or '.join(row.expected)}"
    return f"| {row.name} | {row.verdict} | {mark} | {row.seconds:.0f} | {gains or (row.trouble or '')[-200:]} |"


def table(rows: list[Judged]) -> None:
    """One row for each script, over all its runs, as the docs show it."""
    print("| script | right | said | seconds, longest |\n|---|---|---|---|")
    for name in dict.fromkeys(row.name for row in rows):
        runs = [row for row in rows if row.name == name]
        said = ", ".join(
            f"{what} ({n})" if n > 1 else str(what) for what, n in Counter(r.verdict for r in runs).items()
        )
        right = f"{sum(run.is_right for run in runs)} of {len(runs)}"
        print(f"| {name} | {right} | {said} | {max(run.seconds for run in runs):.0f} |")


def show(rows: list[Judged]) -> None:
    """How many were right."""
    slow = [row for row in rows if "/healthy/" not in row.name]
    well = [row for row in rows if "/healthy/" in row.name]
    spent = sorted(row.seconds for row in rows)
    print(f"\n{sum(row.is_right for row in rows)} of {len(rows)} right; ", end="")
    print(f"causes {sum(r.is_right for r in slow)} of {len(slow)}; ", end="")
    print(f"healthy twins {sum(r.is_right for r in well)} of {len(well)}; ", end="")
    print(f"a diagnosis took {spent[len(spent) // 2]:.0f} s (median), {spent[-1]:.0f} s (longest)")


def run(todo: list[Task], args: argparse.Namespace) -> list[Judged]:
    """Judge what is not in the JSON yet; each row is kept as soon as it is there, so that it can be gone on with."""
    rows = _kept(args.json)
    done = Counter(row.name for row in rows)
    wanted = {name for name, *_ in todo}
    rows = [row for row in rows if row.name in wanted]
    tasks = [task for turn in range(args.repeats) for task in todo if done[task[0]] <= turn]
    with ThreadPoolExecutor(args.jobs) as pool:
        how: Judge = judge_again if args.again else judge
        futures = [pool.submit(how, *task, args.keep) for task in tasks]
        for future in as_completed(futures):
            rows.append(future.result())
            print(line(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n")
    return rows


def _kept(path: Path | None) -> list[Judged]:
    if path is None or not path.exists():
        return []
    kept = [Judged(**row) for row in json.loads(path.read_text())]
    return [Judged(**{**asdict(row), "findings": [(cause, gain) for cause, gain in row.findings]}) for row in kept]


def main() -> None:
    """Judge what is asked for; a row as soon as it is there, and the JSON kept up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WHAT, "table"], help="table: what is in the JSON, one row for each script")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--which", nargs="*", default=["slow", "healthy"])
    parser.add_argument("--scale", nargs="*", default=["small", "large"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="diagnoses at a time; more than one keeps the cores busy")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "stoker-causes")
    parser.add_argument("--suite", type=Path, default=ROOT / "tests" / "planted", help="folder of the planted suite")
    parser.add_argument("--examples", type=Path, default=ROOT / "examples", help="folder of the five cases")
    parser.add_argument("--keep", type=Path, default=None, help="keep the records of each run in this folder")
    parser.add_argument("--again", action="store_true", help="judge what lies in --keep, by today's rules; run nothing")
    parser.add_argument("--json", type=Path, default=None, help="rows go here; those that are there are not run again")
    args = parser.parse_args()
    if args.what == "table":
        table(_kept(args.json))
        show(_kept(args.json))
        return
    todo = WHAT[args.what](args)
    if args.again:
        if args.keep is None:
            parser.error("--again needs --keep, the folder in which the runs were kept")
        todo = [task for task in todo if (args.keep / task[0].replace("/", "-")).exists()]
    print("| script | said | right | seconds | findings (at most) |\n|---|---|---|---|---|", flush=True)
    show(run(todo, args))


if __name__ == "__main__":
    main()

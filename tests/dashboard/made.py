"""Runs written by hand, as a training writes them: for pages that must bear many, long and strange ones."""

import json
import sqlite3
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from report.tunings import tuning
from stoker.ledger import Ledger
from stoker.records import ARG, Kind, encode

MS = 1_000_000
FACTS = {
    "kind": "DataLoader", "dataset": "Points", "length": 100, "samples": 1600, "batch_size": 16, "num_workers": 0,
    "prefetch_factor": None, "pin_memory": False, "persistent_workers": False, "shuffled": True, "start_method": None,
}  # fmt: skip


class Events:
    """A clock and the numbers that a process appends."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.numbers = array("q")

    def span(self, kind: Kind, ms: float, argument: int = 0, end: Kind | None = None) -> None:
        self.numbers.extend((self.now_ns, kind << 1 | argument << ARG))
        self.now_ns += int(ms * MS)
        self.numbers.extend((self.now_ns, (end or kind) << 1 | 1 | argument << ARG))


def write_run(
    home: Path,
    name: str,
    *,
    steps: int = 300,
    command: Sequence[str] = ("python", "train.py"),
    over: bool = True,
    file: str = "train.py",
    step_ms: float = 10.0,
    age_s: float = 100.0,
) -> Path:
    """A run of so many steps, a hundred to an epoch, that ended `age_s` ago or goes on."""
    directory = home / "runs" / name
    directory.mkdir(parents=True)
    lasts_s = steps * 1.2 * step_ms / 1e3 + 3
    start_ns = time.perf_counter_ns() - int((lasts_s + age_s) * 1e9)
    about = {"command": list(command), "started_s": time.time() - lasts_s - age_s, "start_ns": start_ns, "whole": True}
    machine = {"cores": 2, "quota_cores": None, "ram_bytes": 8 << 30, "shm_bytes": 1 << 30}
    (directory / "run.json").write_text(json.dumps({**about, "machine": machine}))
    stem = directory / f"process-7-{start_ns}"
    notes = [
        {"note": "process", "pid": 7, "parent": 1, "rank": None},
        {"note": "loader", "loader": 1, **FACTS, "file": file, "line": 3},
        {"note": "epochs", "epochs": 200, "name": "epochs"},
        {"note": "line", "number": 0, "file": file, "line": 12, "function": "main", "leaf": "torch.nn.linear"},
    ]
    stem.with_suffix(".notes").write_text("".join(json.dumps({"t": start_ns, **note}) + "\n" for note in notes))
    events = Events(start_ns + 2_000 * MS)
    for i in range(steps):
        if i % 100 == 0:
            if i:
                events.span(Kind.NEXT, 0.01, 1, Kind.EXHAUSTED)
            events.span(Kind.ITER, 1, 1)
        events.span(Kind.NEXT, step_ms * (0.2 + i % 7 / 100), 1)
        events.span(Kind.FORWARD, 0.3 * step_ms)
        events.span(Kind.BACKWARD, 0.5 * step_ms)
        events.span(Kind.OPTIMIZER, 0.2 * step_ms, 1)
    stem.with_suffix(".events").write_bytes(events.numbers.tobytes())
    samples = array("q")
    for i in range(40):
        samples.extend((start_ns + (2_000 + 20 * i) * MS, 0))
    stem.with_suffix(".samples").write_bytes(samples.tobytes())
    _write_meters(directory, start_ns, events.now_ns)
    if over:
        ended = {"end_ns": events.now_ns, "code": 0, "interrupted": False, "ended_by_doctor": False}
        (directory / "end.json").write_text(json.dumps(ended))
    return directory


def _write_meters(directory: Path, start_ns: int, end_ns: int) -> None:
    nothing = [
        *("shm_bytes", "running", "throttled_s", "disk_read_bytes", "disk_write_bytes", "net_received_bytes"),
        *("net_sent_bytes", "device_busy_share", "device_bytes"),
    ]
    every_ns = max((end_ns - start_ns) // 300, 500 * MS)
    with (directory / "meters.jsonl").open("w") as file:
        for i, time_ns in enumerate(range(start_ns, end_ns, every_ns)):
            size = (1 << 30) + i * 100_000
            known = {
                "time_ns": time_ns,
                "cpu_s": {"7": i * 0.4},
                "private_bytes": {"7": size},
                "rss_bytes": {"7": size},
            }
            file.write(json.dumps({**known, **dict.fromkeys(nothing), "free_bytes": 6 << 30}) + "\n")


def index(
    home: Path, name: str, directory: Path, command: Sequence[str], state: str, verdict: str | None = None
) -> None:
    """Put a run into the ledger as a command of ours would."""
    with Ledger(home)._database() as database:
        values = (name, str(directory.resolve()), json.dumps(list(command)), time.time(), state, verdict)
        sql = "insert into runs (run, directory, command, started_s, state, verdict) values (?, ?, ?, ?, ?, ?)"
        database.execute(sql, values)


def write_tuning(
    home: Path, name: str, *, knob: str = "num_workers", command: Sequence[str] = ("python", "t.py")
) -> Path:
    """A decision."""
    directory = home / "runs" / name
    directory.mkdir(parents=True)
    decided = tuning()
    trials = tuple(replace(trial, knob=knob, reason=f"{trial.reason}, says {knob}") for trial in decided.trials)
    decided = replace(decided, trials=trials, final=replace(decided.final, knobs={knob: 2}))
    (directory / "tuning.json").write_text(json.dumps(encode(decided)))
    (directory / "decision.md").write_text(f"# Decision\n\n{knob} is kept\n")
    index(home, name, directory, command, "done")
    return directory


BENCH = {
    "kind": "npy", "files": 4, "rows": 100_000, "row_bytes": 128.0, "fields": ["x"], "batch_size": 256, "threads": 2,
    "copy_rows_per_s": 1e7, "label": None, "label_entropy_uniform_bits": None,
    "runs": [{
        "order": "in order", "cache": "warm", "rows_per_s": 9e6, "rows": 100_000, "share_of_copy": 0.9,
        "first_batch_s": 0.01, "pair_ratio": 1.0, "file_pair_ratio": None, "label_entropy_bits": None,
        "window_blocks": None,
    }],
}  # fmt: skip


def hold(home: Path) -> sqlite3.Connection:
    """Lock the ledger against readers, as a backup of it might."""
    holder = sqlite3.connect(home / "ledger.db", isolation_level=None)
    holder.execute("pragma locking_mode = exclusive")
    holder.execute("begin exclusive")
    holder.execute("update runs set verdict = verdict")
    return holder

"""What the doctor costs: the same loop bare, under `stoker doctor --whole`, torch.profiler and TraceML, in turns.

    python benchmarks/doctor.py overhead [--blocks N] [--rounds N]

Each of them is a process of its own that makes some steps when it is told to and waits while the others make theirs.
So whatever is put in place is as it is after minutes, everything that belongs to it runs (hooks, sampler, writer, the
doctor beside it), and turns are short against the drift of the machine. Turns are added up to blocks of as many steps
as hooks doze and wake in. A second bare loop says what is noise. Each round starts new processes, because where the
memory of one happens to lie makes it faster or slower: by tens of microseconds a step, so that two bare loops differ
by as much as the doctor costs. What it adds is therefore measured inside one process too (`toggled.py`). TraceML gets
the lines that it needs, and is left out where it is not installed (`traced.py`).
"""

import contextlib
import importlib
import os
import random
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import toggled
from fast_loop import Loop, Shape, cycle

TURN_S, SETTLE_STEPS = 0.03, 3000
"""How long a turn is, and how many steps are thrown away first: hooks do not doze at once."""
FEWEST_TURNS = 4
PROFILER, TRACEML = "torch.profiler", "TraceML"
_PROFILED_TURNS = 2
"""Turns of torch.profiler in a block: it takes long to end each of them."""


# ---- one of the processes --------------------------------------------------------------------------------


def serve(shape: Shape, count: int, answers: str, peer: str) -> None:
    """A plain loop; says what each block of steps took, and waits for a word before the next."""
    from torch.profiler import ProfilerActivity, profile

    loop = Loop(shape)
    train = traced(loop) if peer == TRACEML else loop.train
    steps, began = 0, (0.0, 0.0, 0.0)
    with contextlib.ExitStack() as stack, open(answers, "w") as out:  # noqa: PTH123  a pipe with a name
        for x, y in loop.batches:
            if steps % count == 0:
                now = _times()
                if steps:
                    out.write(" ".join(str(b - a) for a, b in zip(began, now, strict=True)) + "\n")
                    out.flush()
                    stack.close()
                if not sys.stdin.readline().strip():
                    return
                if peer == PROFILER:
                    stack.enter_context(profile(activities=[ProfilerActivity.CPU]))
                began = _times()
            steps += 1
            train(x, y)


def traced(loop: Loop) -> Callable[[Any, Any], None]:
    """A step with TraceML's own line around it."""
    traceml = importlib.import_module("traceml_ai")
    traceml.init(mode="auto")

    def train(x: Any, y: Any) -> None:
        with traceml.trace_step(loop.model):
            loop.train(x, y)

    return train


def _times() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


# ---- all of them, in turns -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """Seconds of a step: of wall time, of its thread's CPU, and of the CPU of all threads of its process."""

    wall: float
    thread: float
    process: float


def mean(parts: list[Spent]) -> Spent:
    """Of turns with as many steps each."""
    return Spent(*(statistics.fmean(getattr(one, kind) for one in parts) for kind in ("wall", "thread", "process")))


class Runner:
    """A process that makes some steps in its turn."""

    def __init__(self, shape: Shape, count: int, work: str, before: Sequence[str] = (), peer: str = "") -> None:
        place = tempfile.mkdtemp(dir=work)
        answers = f"{place}/answers"
        said = [str(value) for value in (shape.name, shape.width, shape.depth, shape.batch, count, answers, peer)]
        path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} if peer == TRACEML else {}
        os.mkfifo(answers)
        self._answers = os.fdopen(os.open(answers, os.O_RDWR))  # a launcher keeps what a script prints to itself
        self._count = count
        self._log = Path(tempfile.mkstemp(dir=work)[1]).open("w+")  # noqa: SIM115  open as long as the process is
        self._process = subprocess.Popen(
            [*(before or (sys.executable,)), __file__, *(["--args"] if peer == TRACEML else []), *said],
            cwd=place,
            env={**os.environ, "OMP_NUM_THREADS": "1", **path},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
        )

    def turn(self) -> Spent:
        """What each of its steps took."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        while not select.select([self._answers], [], [], 1.0)[0]:
            if self._process.poll() is not None:
                self._log.seek(0)
                raise SystemExit(f"a process of the benchmark ended: {self._log.read()[-2000:]}")
        return Spent(*(float(word) / self._count for word in self._answers.readline().split()))

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._answers.close()


Times = dict[str, list[Spent]]


def measure(shape: Shape, blocks: int, rounds: int) -> dict[str, Any]:
    """A row of the table. What is added is CPU time of the loop's thread."""
    found: Times = {}
    for turn in range(rounds):
        print(f"{shape.name}: round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, spent in _round(shape, blocks, random.Random(turn)).items():
            found.setdefault(name, []).extend(spent)
    inside = toggled.measure(shape, rounds)
    return {
        "loop": shape.name,
        "step_cpu_ms": 1e3 * statistics.median(one.thread for one in found["plain"]),
        "modules": shape.modules,
        "added_us": inside.added_us,
        "low_us": inside.low_us,
        "high_us": inside.high_us,
        "wanted_us": inside.wanted_us,
        "dozing_us": inside.dozing_us,
        "awake_us": inside.awake_us,
        "other_process_us": statistics.median(_added(found, "doctor")),
        "second_bare_us": statistics.median(_added(found, "again")),
        "stoker_cpu_ratio": _ratio(found, "doctor", "thread"),
        "stoker_wall_ratio": _ratio(found, "doctor", "wall"),
        "profiler_cpu_ratio": _ratio(found, PROFILER, "thread"),
        "profiler_wall_ratio": _ratio(found, PROFILER, "wall"),
        "traceml_cpu_ratio": _ratio(found, TRACEML, "thread") if TRACEML in found else None,
        "traceml_wall_ratio": _ratio(found, TRACEML, "wall") if TRACEML in found else None,
    }


def _added(times: Times, name: str) -> list[float]:
    return [1e6 * (a.thread - b.thread) for a, b in zip(times[name], times["plain"], strict=True)]


def _ratio(times: Times, name: str, kind: str) -> float:
    pairs = zip(times[name], times["plain"], strict=True)
    ratios: list[float] = [getattr(a, kind) / getattr(b, kind) for a, b in pairs]
    return statistics.median(ratios)


def _round(shape: Shape, blocks: int, draw: random.Random) -> Times:
    doctor = (sys.executable, "-m", "stoker", "doctor", "--whole", "--no-html", "--", sys.executable)
    traceml = shutil.which("traceml")
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:

        def start(count: int, before: Sequence[str] = (), peer: str = "") -> Runner:
            return stack.enter_context(contextlib.closing(Runner(shape, count, work, before, peer)))

        first = start(50)
        first.turn()
        step_s = first.turn().wall
        count = max(4, round(TURN_S / step_s))
        turns = max(FEWEST_TURNS, round(cycle(step_s * 1e9) / count))
        runners = {"plain": start(count), "again": start(count), "doctor": start(count, doctor)}
        runners[PROFILER] = start(count, peer=PROFILER)
        if traceml is not None:
            launch = (traceml, "run", "--mode", "summary", "--logs-dir", f"{work}/traceml", "--run-name", "x")
            runners[TRACEML] = start(count, launch, TRACEML)
        for name, runner in runners.items():
            for _ in range(0 if name == PROFILER else min(SETTLE_STEPS // count, 100)):
                runner.turn()
        times: Times = {name: [] for name in runners}
        for _ in range(blocks):
            spent: Times = {name: [] for name in runners}
            for turn in range(turns):
                for name in draw.sample(list(runners), len(runners)):
                    if name != PROFILER or turn < _PROFILED_TURNS:
                        spent[name].append(runners[name].turn())
            for name, parts in spent.items():
                times[name].append(mean(parts))
        return times


if __name__ == "__main__":
    NAME, *NUMBERS, ANSWERS, PEER = sys.argv[1:]
    WIDTH, DEPTH, BATCH, COUNT = map(int, NUMBERS)
    serve(Shape(NAME, WIDTH, DEPTH, BATCH), COUNT, ANSWERS, PEER)

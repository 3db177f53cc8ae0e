"""What the doctor adds to a step, inside one process: its hooks are taken off and put back, a few steps each time.

Where the memory of a process happens to lie makes its steps faster or slower by more than hooks cost, and so does the
machine from one moment to the next. Here it is the same memory and nearly the same moment. Off means: every attribute
is torch's own again, nothing is in torch's lists of hooks, and the thread that samples and writes has ended.
"""

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fast_loop import SHAPES, Loop, Shape, cycle

from stoker.observe.child import Observer
from stoker.observe.doze import AWAKE
from stoker.observe.patches import put

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS, STEPS, SETTLE, FIRST = 1000, 16, 1500, 3
"""Turns of each kind, steps in one, steps before the first, and steps of each that are not counted: they come right
after the change, and the interpreter has to find out anew what is called."""
PAUSE_S = 0.015
"""About as long as it takes until nobody looks on."""
LONGEST_S = 60.0
OFF, DOZING, AWAKE_STEPS = "off", "dozing", "awake"
STAYS = {"_exit", "disable", "enable", "isenabled", "collect"}
"""Attributes that no step asks for."""

Turn = tuple[str, list[int]]


# ---- inside the process ----------------------------------------------------------------------------------


class Switch:
    """Takes all that the doctor has in this process off, and puts it back."""

    def __init__(self) -> None:
        self._observer = next(one for one in gc.get_objects() if isinstance(one, Observer))
        self._optimizers = sys.modules["torch.optim.optimizer"]
        self._undo: list[Callable[[], None]] = []

    @property
    def state(self) -> str:
        """What the hooks do just now."""
        return DOZING if self._observer.recorder.doze.asleep[0] else AWAKE_STEPS

    def off(self) -> None:
        """Bare, and nobody looks on."""
        for owner, name, before in self._observer.patches.replaced:
            if name not in STAYS and name in vars(owner):
                self._replace(owner, name, before)
        for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            self._replace(self._optimizers, name, {})
        self._replace(self._observer.recorder, "_stop", value=True)
        while self._observer.recorder._running:  # noqa: SLF001  it sees at its next look that it is to stop
            time.sleep(0.001)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        now = vars(owner)[name]
        self._undo.append(lambda: setattr(owner, name, now))
        put(owner, name, value)

    def on(self) -> None:
        """All as it was."""
        while self._undo:
            self._undo.pop()()
        self._observer.recorder.ensure_running()


def serve(shape: Shape) -> None:
    """The loop, under the doctor: hooks off and on in random order, and what each step took."""
    loop = Loop(shape)
    switch = Switch()
    draw = random.Random(os.getpid())
    _steps(loop, SETTLE)
    turns: list[Turn] = []
    until = time.monotonic() + LONGEST_S
    while len(turns) < 2 * TURNS and time.monotonic() < until:
        for is_off in draw.sample([True, False], 2):
            if is_off:
                switch.off()
            else:
                time.sleep(PAUSE_S)
            _steps(loop, FIRST)
            before = switch.state
            took = _steps(loop, STEPS)
            state = OFF if is_off else before if before == switch.state else ""
            if is_off:
                switch.on()
            turns.append((state, took))
    sys.stdout.write(json.dumps(turns) + "\n")


def _steps(loop: Loop, count: int) -> list[int]:
    clock, found = time.thread_time_ns, []
    for _ in range(count):
        began = clock()
        loop.train(*next(loop.batches))
        found.append(clock() - began)
    return found


# ---- outside ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Added:
    """Microseconds a step, with a 95 % interval; of steps in which hooks doze, and in which they do not."""

    added_us: float
    low_us: float
    high_us: float
    wanted_us: float
    dozing_us: float | None
    awake_us: float | None


def measure(shape: Shape, rounds: int) -> Added:
    """What is added to the median step, as often as hooks doze and wake; each round is a process of its own."""
    runs = []
    for turn in range(rounds):
        print(f"{shape.name}: one process, round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        runs.append(_run(shape))
    draw = random.Random(0)
    again = sorted(
        _added([draw.choices(run, k=len(run)) for run in draw.choices(runs, k=rounds)])[0] for _ in range(200)
    )
    added, dozing, awake, step_us = _added(runs)
    wanted = 20 + shape.modules if step_us < 10_000 else step_us / 100  # the issue's own bound
    return Added(added, again[4], again[195], wanted, dozing, awake)


def _run(shape: Shape) -> list[Turn]:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "stoker", "doctor", "--whole", "--no-html", "--", sys.executable, __file__]
        done = subprocess.run(
            [*command, shape.name],
            cwd=work,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(f"a process of the benchmark ended: {done.stderr[-2000:]}")
    return [(state, took) for state, took in json.loads(lines[-1]) if state]


def _added(runs: list[list[Turn]]) -> tuple[float, float | None, float | None, float]:
    """Added to a step on the whole, while hooks doze, and while they do not; and the bare step. Means over runs."""
    per_run = [_of_one(run) for run in runs]
    step_us = statistics.fmean(one[OFF] for one in per_run)
    parts = {state: [one[state] - one[OFF] for one in per_run if state in one] for state in (DOZING, AWAKE_STEPS)}
    dozing, awake = (statistics.fmean(values) if values else None for values in parts.values())
    asleep_share = 1 - AWAKE / cycle(1e3 * step_us) if cycle(1e3 * step_us) and dozing is not None else 0.0
    added = asleep_share * (dozing or 0.0) + (1 - asleep_share) * (awake or 0.0)
    return added, dozing, awake, step_us


def _of_one(run: list[Turn]) -> dict[str, float]:
    """The median step of each state, in microseconds."""
    found: dict[str, list[int]] = {}
    for state, took in run:
        found.setdefault(state, []).extend(took)
    return {state: statistics.median(values) / 1e3 for state, values in found.items()}


if __name__ == "__main__":
    serve(next(shape for shape in SHAPES if shape.name == sys.argv[1]))

"""What if: a discrete-event simulation of a loader and the loop that it feeds, from measured distributions.

Workers make batches: they wait (for files, for sockets) and work in turns, sharing the cores with each other and with
the main process. Worker i makes batches i, i + workers, …; at most `prefetch` batches a worker are under way or ready;
batches are delivered in order. Without workers the loop makes its batches itself. Pure and seeded.

    faster = step_s(replace(measured, workers=4))
"""

import random
from dataclasses import dataclass, field, replace
from functools import lru_cache

SEND_S, RECEIVE_S = 0.5e-3, 0.3e-3
"""Of one tensor, for the worker and for the loop: each has a descriptor of its own, passed through a socket that is
opened for it. Batches of 100 to 768 small ones took 0.56 to 1.08 ms each, 0.26 to 0.42 of them on the main thread, on
two cores; another machine was not measured. The doctor takes the sum of both (`diagnose.feeding`)."""
STEPS = 400
WARMUP = 60
"""Simulated steps that are left out: the queue fills."""
FEWEST_STEPS = 120
"""An epoch of up to `STEPS` is simulated as a whole, and again until this many were seen."""
PIECES = 4
"""A batch of several samples is made in turns of waiting and work, not by all of one and then all of the other."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loader and its loop. Lists hold one entry for each batch that was measured; draws keep them together.

    `work_s` and `wait_s` are a worker's CPU and its waiting for one batch; it works on `spread` cores at once, where a
    library has threads of its own. The loop takes `loop_cpu_s` of a core and
    `loop_wait_s` (the device, mostly) for each step; the device itself is busy for `device_s`, and no loop is faster.
    `worker_bytes`, `batch_bytes` and `main_bytes` are memory.
    A batch is `tensors` tensors, each of which costs something where it comes from a worker; it is made in `pieces`.
    An epoch has `epoch_steps` (None: not known); each worker takes `worker_start_s` at its start, unless `persistent`.
    """

    workers: int
    prefetch: int
    cores: float
    work_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    loop_cpu_s: float
    loop_wait_s: float
    main_bytes: int = 0
    worker_bytes: int = 0
    batch_bytes: int = 0
    epoch_steps: int | None = None
    worker_start_s: float = 0.0
    persistent: bool = False
    device_s: float = 0.0
    strangers: float = 0.0  # processes of others that want a core all the time
    tensors: float = 0.0
    spread: float = 1.0
    pieces: int = 1

    def thinned(self, every: int) -> "Pipeline":
        """The same, from every n-th batch that was measured."""
        return replace(self, work_s=self.work_s[::every], wait_s=self.wait_s[::every])

    @property
    def make_s(self) -> float:
        """Seconds that one worker takes for a batch, alone."""
        return (sum(self.work_s) / self.spread + sum(self.wait_s)) / len(self.work_s)

    @property
    def memory_bytes(self) -> int:
        """What the setting takes at its peak: every process, and every batch that can be under way or ready."""
        ahead = self.workers * self.prefetch + 1
        return self.main_bytes + self.workers * self.worker_bytes + ahead * self.batch_bytes


@dataclass(slots=True)
class _Activity:
    """Something that takes time: waiting, then a core, or as many as it works on at once; then what is left."""

    wait_s: float
    work_s: float
    cores: float = 1.0
    left: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_waiting(self) -> bool:
        return self.wait_s > 0

    def is_done(self) -> bool:
        """True if nothing is left; where one piece ends, the next begins."""
        while self.wait_s <= 0 and self.work_s <= 0:
            if not self.left:
                return True
            self.wait_s, self.work_s = self.left.pop()
        return False


def step_s(pipeline: Pipeline, *, steps: int = STEPS, seed: int = 0) -> float:
    """Mean seconds of a steady step."""
    run = _Run(pipeline, random.Random(seed))  # noqa: S311  not for secrets
    return max(run.mean_step_s(steps, min(WARMUP, steps // 4)), pipeline.device_s)


@lru_cache(maxsize=256)
def epoch_step_s(pipeline: Pipeline, *, seed: int = 0) -> float:
    """Mean seconds of a step over a whole epoch: the steady step, and the workers' start spread over all steps."""
    if not pipeline.epoch_steps or not pipeline.workers:
        return step_s(pipeline, seed=seed)
    start_s = 0.0 if pipeline.persistent else pipeline.workers * pipeline.worker_start_s
    if pipeline.epoch_steps <= STEPS:
        return max(_whole_epoch_s(pipeline, seed), pipeline.device_s) + start_s / pipeline.epoch_steps
    steady_s = step_s(pipeline, seed=seed)
    # Nothing is ready when an epoch begins, and all workers make their first batch at once.
    rate = min(1.0, pipeline.cores / (pipeline.workers * pipeline.spread + pipeline.strangers))
    work_s = sum(pipeline.work_s) / len(pipeline.work_s) + pipeline.tensors * SEND_S
    first_s = work_s / (rate * pipeline.spread) + sum(pipeline.wait_s) / len(pipeline.wait_s)
    late_s = max(start_s + first_s - steady_s, 0.0)
    return steady_s + late_s / pipeline.epoch_steps


def _whole_epoch_s(pipeline: Pipeline, seed: int) -> float:
    """Mean seconds of a step, from an empty queue to the last batch, over several epochs."""
    steps = pipeline.epoch_steps or 1
    epochs = -(-FEWEST_STEPS // steps)
    draw = random.Random(seed)  # noqa: S311  not for secrets
    return sum(_Run(pipeline, draw, last=steps).mean_step_s(steps, 0) for _ in range(epochs)) / epochs


class _Run:
    """One simulated run; its clock only moves from event to event. There is no batch from `last` on."""

    def __init__(self, pipeline: Pipeline, draw: random.Random, last: int | None = None) -> None:
        # No more workers than batches: the others would have nothing to do, and there may be a billion of them.
        self._pipeline = replace(pipeline, workers=min(pipeline.workers, STEPS))
        self._draw = draw
        self._last = last
        self._now_s = 0.0
        self._consumed = 0
        self._ready: set[int] = set()
        self._next = list(range(self._pipeline.workers))
        """The batch that each worker makes next."""
        self._making: dict[int, tuple[int, _Activity]] = {}
        self._loop: _Activity | None = None

    def mean_step_s(self, steps: int, warmup: int) -> float:
        began = 0.0
        while self._consumed < steps:
            if warmup and self._consumed == warmup:
                began = self._now_s
            self._start_loop()
            self._start_workers()
            self._advance()
        # the loop that consumed the last batch is still under way: let it end
        while self._loop is not None:
            self._advance()
        return (self._now_s - began) / (steps - warmup)

    def _start_loop(self) -> None:
        if self._loop is not None:
            return
        pipeline = self._pipeline
        if not pipeline.workers:
            wait_s, work_s = self._batch()
            self._consume(wait_s, work_s / pipeline.spread)
        elif self._consumed in self._ready:
            self._ready.remove(self._consumed)
            self._consume(0.0, pipeline.tensors * RECEIVE_S)

    def _consume(self, wait_s: float, work_s: float) -> None:
        pipeline = self._pipeline
        self._consumed += 1
        self._loop = _Activity(wait_s + pipeline.loop_wait_s, work_s + pipeline.loop_cpu_s)

    def _start_workers(self) -> None:
        pipeline = self._pipeline
        allowed = self._consumed + pipeline.workers * pipeline.prefetch
        if self._last is not None:
            allowed = min(allowed, self._last)
        for worker in range(pipeline.workers):
            if worker not in self._making and self._next[worker] < allowed:
                wait_s, work_s = self._batch()
                work_s += pipeline.tensors * SEND_S
                self._making[worker] = (self._next[worker], self._activity(wait_s, work_s))
                self._next[worker] += pipeline.workers

    def _activity(self, wait_s: float, work_s: float) -> _Activity:
        """The making of a batch, in pieces; they wait unevenly, so that workers do not stay in step."""
        count = self._pipeline.pieces
        shares = [self._draw.random() for _ in range(count)] if count > 1 else [1.0]
        left = [(wait_s * share / sum(shares), work_s / count) for share in shares]
        return _Activity(*left.pop(), self._pipeline.spread, left)

    def _batch(self) -> tuple[float, float]:
        at = self._draw.randrange(len(self._pipeline.work_s))
        return self._pipeline.wait_s[at], self._pipeline.work_s[at]

    def _advance(self) -> None:
        """To the next event: the end of somebody's waiting or work."""
        active = [one for _, one in self._making.values()]
        if self._loop is not None:
            active.append(self._loop)
        busy = sum(one.cores for one in active if not one.is_waiting)
        rate = min(1.0, self._pipeline.cores / (busy + self._pipeline.strangers)) if busy else 1.0
        passed = min(one.wait_s if one.is_waiting else one.work_s / (rate * one.cores) for one in active)
        self._now_s += passed
        for one in active:
            if one.is_waiting:
                one.wait_s = 0.0 if one.wait_s <= passed else one.wait_s - passed
            else:
                done = passed * rate * one.cores
                one.work_s = 0.0 if one.work_s <= done * (1 + 1e-12) else one.work_s - done
        self._finish()

    def _finish(self) -> None:
        for worker, (batch, one) in list(self._making.items()):
            if one.is_done():
                self._ready.add(batch)
                del self._making[worker]
        if self._loop is not None and self._loop.is_done():
            self._loop = None

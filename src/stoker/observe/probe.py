"""Experiments inside the running script, through the iterator that feeds it: the loop just gets other batches.

    real steps … │ replay: cached batches, then those that workers made meanwhile │ real steps … │ bench │ real …

Each experiment is a window of whole steps. The windows are noted, so that they can be cut out of the run's time, and
they stand between real steps, so that drift hits both alike.
"""

import os
import sys
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from stoker.observe import probe_bench, probe_copies
from stoker.observe.probe_bench import Orders, Plan
from stoker.observe.probe_container import Limits, Schedule
from stoker.observe.probe_inspect import Inspector
from stoker.observe.recorder import Recorder, clock
from stoker.observe.workers import weigh
from stoker.records import Drain, Replay, Stretch, Window, encode

REAL_STEPS, REAL_S, REAL_LONGEST_S = 8, 0.8, 5.0
"""Between two windows: this many real steps and seconds, or fewer steps if they take long."""
REPLAY_S, REPLAY_LEAST, REPLAY_MOST = 0.8, 3, 40
"""How long one replay is, in seconds and in steps."""
REPLAYS = 4
BUDGET_SHARE = 0.5
"""The share of the budget that experiments may take; the rest is for watching."""
CACHED = 3
BENCH_S = 5.0
"""What one reading of the data set may take."""
HELD_BYTES = 256 << 20
SLOW_BATCH_S = 0.5
"""A loader that takes longer for a batch is not asked for more of them than the loop needs."""


class Epoch(Protocol):
    """What an experiment knows of the pass it happens in."""

    loader: int
    length: int | None
    batches: int
    source: Any
    trained: bool
    probed_ns: int


class Probes:
    """The experiments of one process. `turn` is called before each batch."""

    def __init__(self, torch: Any, recorder: Recorder, budget_s: float, directory: Path) -> None:
        self._torch = torch
        self._recorder = recorder
        self._directory = directory
        self._left_s = budget_s * BUDGET_SHARE
        self.orders = Orders()
        self._limits = Limits(recorder)
        self._plan = deque(["replay", "bench", "replay", "drain", "rate", "replay", "replay"])
        self._copies: list[Any] = []
        self._cached: list[Any] = []
        self._settle = 0
        self._consumed = 0
        self._known: Plan | None = None
        self._inspected = False
        self._inspector: Inspector | None = None
        self._window: tuple[str, int, float] | None = None
        self._replay: dict[str, Any] | None = None
        self._times: deque[tuple[int, int]] = deque(maxlen=64)
        self._delivered_ns = self._asked_ns = 0
        self._real = 0
        self._since_ns = 0
        self._schedule = Schedule()
        self._queued_ns = 0
        self._loader: Any = None
        self._shapes: set[Any] = set()
        self._shaped = 0

    # ---- called by the loader's hooks

    def turn(self, iterator: Any, epoch: Epoch, original: Any) -> tuple[Any] | None:
        """A batch that is not the next real one, or None. May end the epoch, if an experiment used it up."""
        now = self._asked_ns = clock()
        self._note_step(now)
        if self._inspector is not None:
            self._end_inspection()
        if self._window is not None:
            given = self._go_on(iterator, epoch, original)
            if given is not None:
                return given
            self._close(epoch, clock())
        elif self._is_due(epoch, now):
            self._choose()
            return self._begin(iterator, epoch, original)
        return None

    def delivered(self, epoch: Epoch, batch: Any) -> None:
        """A real batch goes to the loop."""
        waited_s = (clock() - self._asked_ns) / 1e9
        if epoch.trained and not self._cached and waited_s > SLOW_BATCH_S and weigh(batch)[0] < HELD_BYTES:
            self._cached = probe_copies.copies([batch], 1)  # another one would be too dear to fetch for an experiment
        self._delivered_ns = clock()
        if epoch.trained:
            self._real += 1
            if not self._since_ns:
                self._since_ns, self._queued_ns = self._delivered_ns, self._schedule.queued_ns()
            self._loader = epoch.source
        if self._shaped < 512:  # noqa: PLR2004
            self._shaped += 1
            self._shapes.add(_shape(batch))

    def interrupted(self) -> None:
        """The loop was left in the middle of an experiment."""
        if self._inspector is not None:
            self._end_inspection()
        self._copies.clear()
        self._replay = None
        self._settle = 0
        if self._window is not None:
            self._close(None, max(self._delivered_ns, self._window[1]))

    def finish(self) -> None:
        """The run is over: say what was gathered on the way."""
        if self._window is None:
            self._end_stretch()
        self.interrupted()
        self._cached.clear()
        self._limits.read()
        facts: dict[str, Any] = {"shapes": len(self._shapes), "shaped_batches": self._shaped}
        facts |= _compiling(self._torch)
        facts["indices_in_sequence"] = self.orders.in_sequence()
        dataset = getattr(self._loader, "dataset", None)
        collate = getattr(self._loader, "collate_fn", None)
        facts["default_collate"] = getattr(collate, "__module__", "").startswith("torch.utils.data")
        facts["cudnn_benchmark"] = bool(self._torch.backends.cudnn.benchmark)
        if dataset is not None:
            whole = self._loader.batch_sampler is None  # then the data set itself is asked for a batch at a time
            facts["batched_fetch"] = whole or hasattr(dataset, "__getitems__")
        self._recorder.note("gathered", **facts, container=self._limits.facts())

    # ---- when

    def _note_step(self, now: int) -> None:
        """The loop's own time for the batch before: from delivery to the next request."""
        if self._delivered_ns and self._window is None:
            self._times.append((self._delivered_ns, now))
        self._limits.read()

    def _is_due(self, epoch: Epoch, now: int) -> bool:
        if not self._plan or self._left_s <= 0 or not epoch.trained or self._is_distributed():
            return False
        seconds = (now - self._since_ns) / 1e9
        head = _head(epoch.source)
        enough = self._real >= max(REAL_STEPS, min(head + 4, 3 * REAL_STEPS)) and seconds >= REAL_S
        return enough or (self._real >= 2 and seconds > REAL_LONGEST_S)  # noqa: PLR2004

    def _choose(self) -> None:
        """A loop whose batches are dear is asked about its data first: a bench takes none of the loop's own steps."""
        if "bench" in self._plan and len(self._times) > 1 and self._waited_s() > SLOW_BATCH_S:
            self._plan.remove("bench")
            self._plan.appendleft("bench")

    def _is_distributed(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        return bool(distributed and distributed.is_available() and distributed.is_initialized())

    # ---- windows

    def _begin(self, iterator: Any, epoch: Epoch, original: Any) -> tuple[Any] | None:
        name = self._plan.popleft()
        step_s = self._step_s()
        planned = max(REPLAY_S, 4 * step_s) if name == "replay" else BENCH_S
        if planned > self._left_s:
            return None
        self._end_stretch()
        self._window = (name, clock(), planned)
        self._say(name, planned)
        before, self._recorder.home[0] = self._recorder.home[0], -1  # what we do ourselves is no step of the script
        try:
            self._start(name, iterator, epoch, original, step_s)
        finally:
            self._recorder.home[0] = before
        given = self._go_on(iterator, epoch, original)
        if given is None:
            self._close(epoch, clock())
        return given

    def _start(self, name: str, iterator: Any, epoch: Epoch, original: Any, step_s: float) -> None:
        if name == "replay":
            self._start_replay(iterator, original, step_s)
        elif name == "drain":
            self._drain(iterator, epoch, original)
        else:
            self._bench(name, iterator, epoch)

    def _go_on(self, iterator: Any, epoch: Epoch, original: Any) -> tuple[Any] | None:
        if self._copies:
            batch = self._copies.pop()
            if not self._inspected:
                self._start_inspection()
            elif self._replay is not None and not self._replay["start_ns"]:
                _synchronize(self._torch)
                queued = self._schedule.queued_ns()
                self._replay.update(start_ns=clock(), cpu=time.thread_time(), queued=queued, device=_device_busy())
            self._delivered_ns = clock()
            return (batch,)
        if self._replay is not None:
            self._end_replay(epoch)
        if self._settle > 0:
            self._settle -= 1
            try:
                batch = original(iterator)
            except StopIteration:
                self._used_up(epoch)
                raise
            self._consumed += 1
            self._delivered_ns = clock()
            return (batch,)
        return None

    def _close(self, epoch: Epoch | None, now: int) -> None:
        assert self._window is not None
        name, start, planned = self._window
        self._window = None
        self._real, self._since_ns, self._queued_ns = 0, now, self._schedule.queued_ns()
        self._left_s -= (now - start) / 1e9
        self._delivered_ns = 0
        if epoch is not None:
            epoch.probed_ns += now - start
        self._recorder.note("window", **encode(Window(name, start, now, planned, self._consumed)))
        self._consumed = 0
        self._say("", 0.0)

    def _end_stretch(self) -> None:
        """Real steps end here: how many, how long, and how long the main thread waited for a core in them."""
        if self._real and self._since_ns:
            queued_s = (self._schedule.queued_ns() - self._queued_ns) / 1e9
            seconds = (clock() - self._since_ns) / 1e9
            self._recorder.note("stretch", **encode(Stretch(self._real, seconds, queued_s)))

    def _used_up(self, epoch: Epoch) -> None:
        """An experiment took the epoch's last batch: for the run's story it was cut here."""
        self._close(epoch, clock())
        self._recorder.note("cut", loader=epoch.loader, batches=epoch.batches, length=epoch.length)

    def _say(self, name: str, planned_s: float) -> None:
        with suppress(OSError):
            (self._directory / "probing").write_text(f"{name} {planned_s:.0f}" if name else "")

    def _step_s(self) -> float:
        """The loop's own seconds a step, without waiting for data."""
        times = sorted(b - a for a, b in list(self._times)[-24:])
        return float(times[len(times) // 2]) / 1e9 if times else 0.1

    # ---- replay

    def _start_replay(self, iterator: Any, original: Any, step_s: float) -> None:
        if not self._cached:
            self._fill_cache(iterator, original)
        wanted = min(max(int(REPLAY_S / max(step_s, 1e-4)), REPLAY_LEAST), REPLAY_MOST)
        self._copies = probe_copies.copies(self._cached, wanted + (not self._inspected)) if self._cached else []
        times = [b - a for a, b in list(self._times)[-24:]]
        before = sum(times) / len(times) / 1e9 if times else None
        if len(self._copies) > 1:
            steps = len(self._copies) - (not self._inspected)
            self._replay = {"steps": steps, "start_ns": 0, "before_s": before}

    def _fill_cache(self, iterator: Any, original: Any) -> None:
        held = 0
        with suppress(StopIteration):
            while len(self._cached) < CACHED:
                batch = original(iterator)
                self._consumed += 1
                held += weigh(batch)[0]
                self._cached += probe_copies.copies([batch], 1)
                if held > HELD_BYTES:
                    break
        with suppress(Exception):
            self._recorder.note("padding", share=probe_copies.padding_share(self._cached))

    def _end_replay(self, epoch: Epoch) -> None:
        assert self._replay is not None
        _synchronize(self._torch)
        seen, self._replay = self._replay, None
        end, cpu, device = clock(), time.thread_time(), _device_busy()
        size = weigh(self._cached[0])[0]
        replay = Replay(
            steps=seen["steps"],
            seconds=(end - seen["start_ns"]) / 1e9,
            cpu_s=cpu - seen["cpu"],
            queued_s=(self._schedule.queued_ns() - seen["queued"]) / 1e9,
            device_s=device - seen["device"] if device is not None and seen["device"] is not None else None,
            before_s=seen["before_s"],
            batch_bytes=size,
            batch_samples=None,
        )
        self._recorder.note("replay", **encode(replay))
        head = _head(epoch.source)
        self._settle = head + 1 if head else 0  # those that workers made meanwhile, and one more

    # ---- inspection

    def _start_inspection(self) -> None:
        """The first replayed step of all runs under the inspector, and is not timed."""
        self._inspected = True
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None or not dynamo.counters.get("frames"):  # else dynamo would compile everything once more
            self._inspector = Inspector(self._torch)
            self._inspector.enter()

    def _end_inspection(self) -> None:
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            with suppress(Exception):
                self._recorder.note("inspection", **inspector.leave())

    # ---- loader-only, and benches

    def _drain(self, iterator: Any, epoch: Epoch, original: Any) -> None:
        head = _head(epoch.source)
        left = (epoch.length or sys.maxsize) - iterator._num_yielded - 1  # noqa: SLF001
        if not head or left < head + 3:  # on the main thread every wait is the loader's own time
            return
        done, first_ns, cpu, deadline = 0, 0, 0.0, clock() + int(BENCH_S / 2 * 1e9)
        while done < left and (clock() < deadline or done < head + 4):
            original(iterator)
            self._consumed += 1
            done += 1
            if done == head:
                first_ns, cpu = clock(), time.thread_time()
            if done > head and clock() > deadline + int(BENCH_S * 1e9):
                break
        if done > head + 1:
            seconds, used = (clock() - first_ns) / 1e9, time.thread_time() - cpu
            self._recorder.note("drain", **encode(Drain(done - head, seconds, used, epoch.source.num_workers)))
        self._settle = 1

    def _bench(self, name: str, iterator: Any, epoch: Epoch) -> None:
        loader = epoch.source
        spawns = _starts_anew(loader)
        if _is_iterable(self._torch, loader) or (spawns and name != "bench"):
            return
        _wait_until_idle(iterator)
        make_s = self._make_s(loader)
        size = None
        if make_s > BENCH_S / 4:  # a batch takes too long: fewer samples of it
            full = len(self.orders.recent[-1]) if self.orders.recent and isinstance(self.orders.recent[-1], list) else 1
            size = max(int(full * BENCH_S / 8 / make_s), 1)
            make_s *= size / full
        count = min(max(int(BENCH_S / 5 / max(make_s, 1e-4)), 1), probe_bench.MOST_BATCHES)
        here = loader.num_workers == 0
        if name == "bench":
            known = self._known = Plan(loader, self.orders, count, size)
            self._read(loader, "one", known.full(), workers=0 if here else 1, until_s=BENCH_S)
            if not here and not spawns:
                self._read(loader, "second", known.second(), workers=1, until_s=BENCH_S / 2)
        elif self._known is not None and not here:
            self._rates(loader, iterator, self._known, make_s)

    def _read(self, loader: Any, name: str, plan: tuple[list[Any], list[str]], **how: Any) -> None:
        probe_bench.run(self._torch, loader, name, plan, self._recorder, **how)

    def _rates(self, loader: Any, iterator: Any, known: Plan, make_s: float) -> None:
        """Throughput in turns: another number of workers, or one thread in each, and as it is in between."""
        cores, workers = len(os.sched_getaffinity(0)), loader.num_workers
        variants: list[tuple[str, int, int | None]] = [("cores", max(cores, 2), None)] if workers != cores else []
        if _extra_threads(iterator) and workers * 2 > cores:
            variants.append(("threads", workers, 1))
        for name, count, threads in variants:
            until_s = BENCH_S / 3 / len(variants)
            for label, many, limit in ((name, count, threads), ("as is", workers, None), (name, count, threads)):
                batches = min(max(int(until_s / max(make_s / min(many, cores), 1e-4)), 4 * many), 200)
                self._read(loader, label, known.rate(batches), workers=many, threads=limit, until_s=until_s)

    def _make_s(self, loader: Any) -> float:
        """What a batch takes to make, at most: one worker may be that much slower than all of them."""
        return float(self._waited_s() * min(max(loader.num_workers, 1), 4))

    def _waited_s(self) -> float:
        """Seconds from one real batch to the next, recently."""
        starts = [a for a, _ in list(self._times)[-16:]]
        if len(starts) < 2:  # noqa: PLR2004
            return 0.1
        gaps = sorted(b - a for a, b in pairwise(starts))
        return float(gaps[len(gaps) // 2] / 1e9)


def _head(loader: Any) -> int:
    """Batches that workers can have ready."""
    return int(loader.num_workers * (loader.prefetch_factor or 1)) if loader is not None else 0


def _is_iterable(torch: Any, loader: Any) -> bool:
    return isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _starts_anew(loader: Any) -> bool:
    context = loader.multiprocessing_context
    if context is None:
        import multiprocessing

        return loader.num_workers > 0 and multiprocessing.get_start_method(allow_none=True) not in {None, "fork"}
    return bool(loader.num_workers > 0 and context.get_start_method() != "fork")


def _extra_threads(iterator: Any) -> bool:
    """True if a worker has more threads than torch and we give it: its own, the queue's, ours."""
    for worker in getattr(iterator, "_workers", []):
        with suppress(OSError):
            if sum(1 for _ in Path(f"/proc/{worker.pid}/task").iterdir()) > OWN_THREADS:
                return True
    return False


OWN_THREADS = 4


def _wait_until_idle(iterator: Any) -> None:
    """Let the user's workers fill their queue, so that they do not compete with ours."""
    queue = getattr(iterator, "_worker_result_queue", None)
    deadline = time.monotonic() + 2.0
    while queue is not None and time.monotonic() < deadline:
        ready = sum(1 for info in iterator._task_info.values() if len(info) > 1)  # noqa: SLF001
        with suppress(NotImplementedError):
            if queue.qsize() + ready >= iterator._tasks_outstanding:  # noqa: SLF001
                return
        time.sleep(0.02)


def _synchronize(torch: Any) -> None:
    """Wait for the device, real or simulated: only at the ends of a window."""
    simulated = sys.modules.get("stoker.sim.device")
    for device in simulated.live() if simulated else []:
        device.synchronize()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _device_busy() -> float | None:
    """Busy seconds of the simulated device; a real one's are not known from here."""
    simulated = sys.modules.get("stoker.sim.device")
    devices = simulated.live() if simulated else []
    return max(float(device.busy_s) for device in devices) if devices else None


def _shape(batch: Any, depth: int = 2) -> Any:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return tuple(shape)
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and depth:
        return tuple(_shape(part, depth - 1) for part in batch[:8])
    return None


def _compiling(torch: Any) -> dict[str, Any]:
    """What dynamo compiled, and how long that took."""
    del torch
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters.get("frames"):
        return {}
    graphs = int(dynamo.counters["stats"].get("unique_graphs", 0))
    spent = sum(dynamo.compilation_time_metrics.get("_compile.compile_inner", ()))
    return {"recompiles": graphs, "compile_s": float(spent)}

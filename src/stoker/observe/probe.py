"""Experiments inside the running script, through the iterator that feeds it.

    real steps … │ batches taken ahead (loader-only), the loop's steps on them (replay) │ real steps … │ bench │ real …

Each experiment is a window of whole steps. The windows are noted, so that they can be cut out of the run's time, and
they stand between real steps, so that drift hits both alike. The loop never notices: it gets every batch of its epoch
once and in order (see `probe_ahead`). The one exception is *known*, where new shapes are slow: there a batch that the
loop has had already stands in for each of a few others; length and order stay.
"""

import sys
import time
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from stoker.observe import probe_ahead, probe_copies
from stoker.observe.options import BUDGET_SHARE
from stoker.observe.probe_ahead import Held, Room
from stoker.observe.probe_bench import Orders
from stoker.observe.probe_container import Limits, Schedule
from stoker.observe.probe_gather import Shapes, about, compiled, gathered
from stoker.observe.probe_hand import ByHand
from stoker.observe.probe_inspect import Inspector, note_inspection
from stoker.observe.probe_reading import BENCH_S, Readings
from stoker.observe.probe_replay import Timing
from stoker.observe.recorder import Recorder, clock
from stoker.records.codec import encode
from stoker.records.probes import Stretch, Window

REAL_STEPS, REAL_S, REAL_LONGEST_S = 8, 0.8, 5.0
"""Between two windows: this many real steps and seconds, or fewer steps if they take long."""
REPLAY_S, REPLAY_LEAST, REPLAY_MOST = 0.8, 3, 40
"""How long one replay is, in seconds and in steps."""
TAKE_S = 3.0
"""How long batches are taken ahead; a slow loader then gives only two or three."""
DRAINED = 16
"""Batches beyond those that workers had ready, for the loader's own rate."""
SLOW_BATCH_S = 0.5
"""A loader that takes longer for a batch is asked about its data first: a bench takes none of the loop's steps."""
REST_S = 2.0
"""How long workers may fill their queue before a replay."""
PLAN = ("replay", "bench", "rate", "loader-only", "replay", "replay", "replay")
FEWER_PLAN = ("replay", "fewer threads", "bench", "replay", "fewer threads", "rate", "loader-only", "replay")
"""Where torch has more threads than there are cores."""


class Epoch(Protocol):
    """What an experiment knows of the pass it happens in."""

    loader: int
    length: int | None
    batches: int
    source: Any
    trained: bool
    probed_ns: int
    held: deque[Held]
    aside: int


class Probes:
    """The experiments of one process. `turn` is called before each batch."""

    def __init__(self, torch: Any, recorder: Recorder, budget_s: float, directory: Path) -> None:
        self._torch = torch
        self._recorder = recorder
        self._directory = directory
        self._left_s = budget_s * BUDGET_SHARE
        self._orders: dict[int, Orders] = {}
        self._limits = Limits(recorder)
        self._schedule = Schedule()
        self._by_hand: ByHand | None = ByHand(torch, recorder, self._schedule, self._limits, self._is_distributed)
        self._readings = Readings(torch, recorder)
        self._shapes = Shapes()
        self._plan = deque(PLAN)
        self._turns: Counter[int] = Counter()
        self._window: tuple[str, int, float] | None = None
        self._owner: Epoch | None = None
        self._timing: Timing | None = None
        self._kept: Any = None
        self._settle = self._aside = 0
        self._inspected = False
        self._inspector: Inspector | None = None
        self._first_share: float | None = None
        self._times: deque[tuple[int, int]] = deque(maxlen=64)
        self._delivered_ns = self._since_ns = self._queued_ns = 0
        self._real = 0
        self._number = 0
        self.are_over = False
        """True when `turn` need not be called any more."""
        self._about: tuple[int, dict[str, Any]] = 0, {}
        """What there is to say of the loader that is tried; it itself may go whenever the script lets it."""

    def orders(self, loader: int | None) -> Orders:
        """The order that a loader's sampler gives."""
        found = self._orders.get(loader or 0)
        if found is None:
            found = self._orders[loader or 0] = Orders()
        return found

    # ---- called by the loader's hooks

    def turn(self, iterator: Any, epoch: Epoch, original: Any) -> tuple[Any] | None:
        """A batch that was taken ahead, or None: then the next one is asked for as always."""
        if self._owner not in (None, epoch) or not self._is_main(epoch):
            if self._timing is not None:
                self._timing.leave()
            return epoch.held.popleft().give() if epoch.held else None
        try:
            self._consider(iterator, epoch, original)
        except Exception as error:  # noqa: BLE001  an experiment may fail, the loop may not
            self._recorder.note("trouble", text=f"an experiment failed: {error!r}")
            self._plan.clear()
        given = self._deliver(iterator, epoch, original)
        self.are_over = given is None and self._window is None and not (self._plan and self._left_s > 0)
        return given

    def delivered(self, epoch: Epoch, batch: Any) -> None:
        """A real batch goes to the loop."""
        if self._timing is not None and epoch is not self._owner:
            self._timing.come_back()
        if self._owner is not None or not (epoch.trained and self._is_main(epoch)):
            return
        self._delivered_ns = clock()
        self._real += 1
        if self.are_over and self._delivered_ns >= self._limits.due_ns:
            self._limits.read()
        if not self._since_ns:
            self._since_ns, self._queued_ns = self._delivered_ns, self._schedule.queued_ns()
        self._number = epoch.loader
        if self._about[0] != epoch.loader:
            self._about = epoch.loader, about(epoch.source)
        self._shapes.see(batch)

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped, and no loader may be there to be tried."""
        by_hand = self._by_hand
        if by_hand is None:
            return
        try:
            if self._number or by_hand.is_over:
                self._by_hand = None
                by_hand.stop()
            else:
                by_hand.stepped(optimizer)
        except Exception as error:  # noqa: BLE001  an experiment may fail, the loop may not
            self._by_hand = None
            with suppress(Exception):
                by_hand.stop()
            self._recorder.note("trouble", text=f"an experiment failed: {error!r}")

    def interrupted(self) -> None:
        """Another pass begins, maybe in the middle of an experiment. What was taken ahead stays with its iterator."""
        self._end_inspection()
        if self._timing is not None:
            self._timing.drop()
        self._timing = None
        self._settle = 0
        if self._window is not None:
            self._close(max(self._delivered_ns, self._window[1]))

    def finish(self) -> None:
        """The run is over: say what was gathered on the way."""
        if self._by_hand is not None:
            self._by_hand.stop()
        if self._window is None:
            self._end_stretch()
        self.interrupted()
        self._kept = None
        self._limits.read()
        orders = self.orders(self._number)
        facts = gathered(self._torch, self._shapes) | self._about[1] | {"indices_in_sequence": orders.in_sequence()}
        self._recorder.note("gathered", **facts, container=self._limits.facts())

    # ---- when

    def _is_main(self, epoch: Epoch) -> bool:
        """True for the loader that trains most: where two train in turns, only one is tried."""
        return not epoch.trained or self._number in (0, epoch.loader) or self._turned(epoch)

    def _turned(self, epoch: Epoch) -> bool:
        self._turns[epoch.loader] += 1
        if self._turns[epoch.loader] > self._turns[self._number] + 3 * REAL_STEPS:  # a second stage of training
            self._number = epoch.loader
        return self._number == epoch.loader

    def _consider(self, iterator: Any, epoch: Epoch, original: Any) -> None:
        """End what is over, begin what is due."""
        now = clock()
        self._turns[epoch.loader] += 1
        if self._delivered_ns and self._window is None:  # the loop's own time: from delivery to the next request
            self._times.append((self._delivered_ns, now))
        if now >= self._limits.due_ns:
            self._limits.read()
        if self._inspector is not None:
            self._end_inspection()
        if self._window is not None:
            if not epoch.held:
                self._end_replay(epoch)
                if not self._settle:
                    self._close(clock())
        elif epoch.held:  # the loop was away, and comes back
            self._open("rest", 0.0, epoch)
        elif self._is_due(epoch, now):
            self._choose()
            self._begin(iterator, epoch, original)

    def _is_due(self, epoch: Epoch, now: int) -> bool:
        seconds = (now - self._since_ns) / 1e9
        if seconds < REAL_S or not self._plan or self._left_s <= 0 or not epoch.trained:
            return False
        if self._is_distributed():  # ranks wait for each other in every step: none is held up
            self._plan.clear()
            return False
        enough = self._real >= max(REAL_STEPS, min(_head(epoch.source) + 4, 3 * REAL_STEPS))
        return enough or (self._real >= 2 and seconds > REAL_LONGEST_S)  # noqa: PLR2004

    def _choose(self) -> None:
        """What comes first: threads that are too many, data that are dear, and shapes that are new."""
        if tuple(self._plan) == PLAN and self._limits.fewer_threads(self._torch) is not None:
            self._plan = deque(FEWER_PLAN)
        if "bench" in self._plan and len(self._times) > 1 and self._waited_s() > SLOW_BATCH_S:
            self._plan.remove("bench")
            self._plan.appendleft("bench")
        searches = self._torch.backends.cudnn.benchmark and self._shapes.are_new()
        if searches and self._kept is not None and "known" not in self._plan and "replay" in self._plan:
            self._plan[self._plan.index("replay")] = "known"

    def _is_distributed(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        return bool(distributed and distributed.is_available() and distributed.is_initialized())

    # ---- windows

    def _begin(self, iterator: Any, epoch: Epoch, original: Any) -> None:
        name = self._plan[0]
        reads = name in ("bench", "rate")
        wanted = 0 if reads else self._wanted(name, iterator, epoch)
        planned = BENCH_S * 1.5 if reads else self._cost_s(wanted, epoch)
        if not reads and wanted < probe_ahead.FEWEST:
            return  # too near to the end of this epoch; there may be another one
        self._plan.popleft()
        if planned > self._left_s or (reads and not self._readings.can(epoch.source, name)):
            return
        self._end_stretch()
        self._open(name, planned, epoch)
        before, self._recorder.home[0] = self._recorder.home[0], -1  # what we do ourselves is no step of the script
        try:
            if reads:
                make_s = self._waited_s() * min(max(epoch.source.num_workers, 1), 4)
                ahead = partial(self._ahead, iterator, epoch, original)
                self._readings.run(name, iterator, epoch.source, self.orders(epoch.loader), make_s, ahead)
            else:
                self._take(name, wanted, iterator, epoch, original)
        finally:
            self._recorder.home[0] = before
            if not epoch.held:
                self._close(clock())

    def _ahead(self, iterator: Any, epoch: Epoch, original: Any, count: int) -> int:
        return len(probe_ahead.take(iterator, original, epoch.held, count, TAKE_S, Room.now(0)))

    def _open(self, name: str, planned_s: float, epoch: Epoch) -> None:
        self._window, self._owner = (name, clock(), planned_s), epoch
        with suppress(OSError):
            (self._directory / "probing").write_text(f"{name} {planned_s:.0f}")

    def _close(self, now: int) -> None:
        assert self._window is not None
        name, start, planned = self._window
        if self._owner is not None:
            self._owner.probed_ns += now - start
        self._window = self._owner = None
        self._real, self._since_ns, self._queued_ns = 0, now, self._schedule.queued_ns()
        self._left_s -= (now - start) / 1e9
        self._delivered_ns = 0
        self._recorder.note("window", **encode(Window(name, start, now, planned, self._aside)))
        self._aside = 0
        with suppress(OSError):
            (self._directory / "probing").write_text("")

    def _end_stretch(self) -> None:
        """Real steps end here: how many, how long, and how long the main thread waited for a core in them."""
        if self._real and self._since_ns:
            queued_s = (self._schedule.queued_ns() - self._queued_ns) / 1e9
            seconds = (clock() - self._since_ns) / 1e9
            self._recorder.note("stretch", **encode(Stretch(self._real, seconds, queued_s)))

    # ---- loader-only and replay

    def _wanted(self, name: str, iterator: Any, epoch: Epoch) -> int:
        """How many batches are taken ahead; never the epoch's last, so that it ends as always."""
        steps = min(max(int(REPLAY_S / max(self._step_s(), 1e-4)), REPLAY_LEAST), REPLAY_MOST) + (not self._inspected)
        if name == "loader-only":
            steps = max(steps, _head(epoch.source) + DRAINED)
        left: int = (epoch.length or sys.maxsize) - iterator._num_yielded - 1  # noqa: SLF001
        return min(steps, left)

    def _cost_s(self, wanted: int, epoch: Epoch) -> float:
        """Taking them, workers filling up again, and the steps on them."""
        each_s = self._waited_s()
        take_s = min(max(wanted * each_s, probe_ahead.FEWEST * each_s), max(TAKE_S, probe_ahead.FEWEST * each_s))
        rest_s = min(_head(epoch.source) * each_s, REST_S)
        return take_s + rest_s + (min(wanted, TAKE_S / max(each_s, 1e-6)) + _head(epoch.source)) * self._step_s()

    def _take(self, name: str, wanted: int, iterator: Any, epoch: Epoch, original: Any) -> None:
        head, workers = _head(epoch.source), epoch.source.num_workers
        probe_ahead.wait_until_idle(iterator, REST_S if name == "loader-only" else 0.0)
        cpu_s = time.thread_time()
        came = probe_ahead.take(iterator, original, epoch.held, wanted, TAKE_S, Room.now(workers))
        drain = probe_ahead.drained(came, head, time.thread_time() - cpu_s, workers)
        if drain is not None:
            self._recorder.note("drain", **encode(drain))
        batches = [held.batch for held in epoch.held if held.error is None]
        if not self._inspected:
            with suppress(Exception):
                self._recorder.note("padding", share=probe_copies.padding_share(batches[:3]))
            self._first_share = probe_ahead.first_share(batches)
        if name == "known" and (stand_ins := probe_copies.copies([self._kept], len(batches))):
            for place, one in enumerate(stand_ins):
                epoch.held[place] = Held(one)
        elif self._kept is None and batches:
            self._kept = next(iter(probe_copies.copies(batches[:1], 1)), None)
        probe_ahead.wait_until_idle(iterator, REST_S)
        steps = len(batches) - (not self._inspected)
        if steps > 0:
            threads = self._limits.fewer_threads(self._torch) if name == "fewer threads" else None
            self._timing = Timing(
                self._torch, self._schedule, steps, self._before_s(), known=name == "known", threads=threads
            )

    def _deliver(self, iterator: Any, epoch: Epoch, original: Any) -> tuple[Any] | None:
        """The next batch that was taken ahead, or one of those that workers made meanwhile."""
        if epoch.held:
            if not self._inspected and self._timing is not None:
                self._start_inspection()
            elif self._timing is not None:
                self._timing.step()
            self._count(epoch)
            return epoch.held.popleft().give()
        if self._window is None or not self._settle:
            return None
        self._settle -= 1
        try:
            batch = original(iterator)
        except BaseException:
            self._settle = 0
            self._close(clock())
            raise
        self._count(epoch)
        return (batch,)

    def _count(self, epoch: Epoch) -> None:
        self._aside += 1
        epoch.aside += 1
        self._delivered_ns = clock()

    def _end_replay(self, epoch: Epoch) -> None:
        timing, self._timing = self._timing, None
        if timing is None:
            return
        replay = timing.end(probe_ahead.weight(self._kept)[0])
        if replay is not None:
            self._recorder.note(timing.note, **encode(replay))
        head = _head(epoch.source)
        self._settle = head + 1 if head else 0  # those that workers made meanwhile, and one more

    # ---- inspection

    def _start_inspection(self) -> None:
        """The first step of all runs under the inspector, and is not timed."""
        self._inspected = True
        if not compiled():  # else dynamo would compile everything once more, or refuse to run at all
            self._inspector = Inspector(self._torch, self._first_share)
            self._inspector.enter()

    def _end_inspection(self) -> None:
        inspector, self._inspector = self._inspector, None
        if inspector is not None:
            note_inspection(inspector, self._torch, self._recorder)

    # ---- recent times

    def _step_s(self) -> float:
        """The loop's own seconds a step, without waiting for data."""
        times = sorted(b - a for a, b in list(self._times)[-24:])
        return float(times[len(times) // 2]) / 1e9 if times else 0.1

    def _before_s(self) -> float | None:
        times = [b - a for a, b in list(self._times)[-24:]]
        return sum(times) / len(times) / 1e9 if times else None

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

"""A run at one moment, from what it has written so far. Pure: the clock is an argument, files are read by `observe`."""

from collections import deque
from dataclasses import dataclass, field

from stoker.attribute.gauges import Gauges, Role
from stoker.attribute.loop import Loop
from stoker.records.attributed import Phase
from stoker.records.live import Live, LiveDevice, LiveState, LiveWorkers, News, Odd, Piece, Pulse
from stoker.records.observed import LoaderFacts, Machine, Meter

LOST_S = 20.0
"""A run that has not ended writes at least this often: its sampler every tenth of a second, its meters every five."""
MISSED = 2
"""Readings in a row that a worker must be missing from while its parent is there; one may fall into its usual end."""
WARM_STEPS = 20
"""What is compiled before this many steps is warm-up."""
COMPILED_S = 60.0
MOST_EPOCHS = 6
MOST_TROUBLE = 5


@dataclass(slots=True)
class _Process:
    """One process of the run that Stoker is inside of."""

    pid: int
    loop: Loop
    start_ns: int = 0
    rank: int | None = None
    worker: int | None = None
    is_worker: bool = False
    is_closed: bool = False
    missed: int = 0
    facts: dict[int, LoaderFacts] = field(default_factory=dict)


class Fold:
    """Takes what is new and keeps what a picture needs, in bounded memory."""

    def __init__(
        self, run: str, command: tuple[str, ...], started_s: float, start_ns: int, machine: Machine | None
    ) -> None:
        self._run, self._command = run, command
        self._started_s, self._start_ns = started_s, start_ns
        self._gauges = Gauges(start_ns, machine)
        self._processes: dict[str, _Process] = {}
        self._graphs: deque[Pulse] = deque()
        self._warm_graphs: int | None = None
        self._gone: list[int] = []
        self._epochs_planned: int | None = None
        self._odd: Odd | None = None
        self._trouble: list[str] = []
        self._news: News | None = None
        self._last_ns = start_ns

    # ---- taking

    def take(self, news: News) -> None:
        """What is new since the last time."""
        self._news = news
        for piece in news.pieces:
            self._take_piece(piece)
        workers = {str(one.pid) for one in self._processes.values() if one.is_worker}
        for meter in news.meters:
            self._gauges.take(meter, workers)
            self._look_for_workers(meter)
            self._last_ns = max(self._last_ns, meter.time_ns)

    def _take_piece(self, piece: Piece) -> None:
        one = self._processes.get(piece.process)
        if one is None:
            one = self._processes[piece.process] = _Process(piece.pid, Loop(self._start_ns))
        one.start_ns = piece.start_ns or one.start_ns
        one.rank = piece.rank if piece.rank is not None else one.rank
        if piece.worker is not None or piece.loader is not None:
            one.is_worker, one.worker = True, piece.worker
        one.is_closed = one.is_closed or piece.is_closed
        one.facts.update({facts.loader: facts for facts in piece.loaders})
        self._epochs_planned = piece.epochs_planned or self._epochs_planned
        self._trouble = [*self._trouble, *piece.trouble][-MOST_TROUBLE:]
        self._odd = piece.odd[-1] if piece.odd else self._odd
        if not one.is_worker:
            one.loop.take(piece.times_ns, piece.codes)
            self._last_ns = max(self._last_ns, *piece.times_ns[-1:], self._last_ns)
            for pulse in piece.pulses:
                self._take_pulse(pulse, one.loop.steps)

    def _take_pulse(self, pulse: Pulse, steps: int) -> None:
        self._gauges.beat(pulse)
        if pulse.graphs is None:
            return
        if self._warm_graphs is None and steps >= WARM_STEPS:
            self._warm_graphs = pulse.graphs
        self._graphs.append(pulse)
        while self._graphs[0].time_ns < pulse.time_ns - COMPILED_S * 1e9:
            self._graphs.popleft()

    def _look_for_workers(self, meter: Meter) -> None:
        """A worker that is gone without a farewell while its run goes on has died."""
        main = self._main()
        if main is None or main.is_closed or str(main.pid) not in meter.rss_bytes:
            return
        for one in self._processes.values():
            if not one.is_worker or one.is_closed or one.start_ns > meter.time_ns:
                continue
            one.missed = 0 if str(one.pid) in meter.rss_bytes else one.missed + 1
            if one.missed == MISSED:
                self._gone.append(one.pid)

    def _main(self) -> _Process | None:
        """The process that trained most; among equals the lowest rank."""
        trained = [one for one in self._processes.values() if not one.is_worker]
        return max(trained, key=lambda one: (one.loop.steps, -(one.rank or 0), one.loop.moved_ns or 0), default=None)

    # ---- the picture

    def picture(self, now_ns: int) -> Live:
        """The run as it is at this moment."""
        state = self._state()
        if state in ("ended", "lost"):
            now_ns = (self._news.end_ns if self._news else None) or self._last_ns
        main = self._main()
        loop = main.loop if main else Loop(self._start_ns)
        over = state in ("ended", "lost")
        lately = loop.lately(now_ns)
        total = sum(lately.values())
        phase, since_ns = loop.now()
        return Live(
            run=self._run,
            command=self._command,
            started_s=self._started_s,
            state=state,
            exit_code=self._news.exit_code if self._news else None,
            elapsed_s=max(now_ns - self._start_ns, 0) / 1e9,
            steps=loop.steps,
            step_s=loop.step_s(now_ns),
            wait_share=lately.get("data_wait", 0.0) / total if total and loop.steps else None,
            phases=tuple(
                Phase(name, spent, spent / total if total else 0.0)
                for name, spent in sorted(lately.items(), key=lambda item: -item[1])
            ),
            phase=None if over or not loop.steps else phase,
            phase_s=max(now_ns - since_ns, 0) / 1e9,
            idle_s=max(now_ns - loop.moved_ns, 0) / 1e9 if loop.moved_ns and loop.steps else None,
            ranks=len({one.rank for one in self._processes.values() if not one.is_worker and one.rank is not None}),
            epochs=loop.epochs(main.facts if main else {}, now_ns, MOST_EPOCHS),
            epochs_planned=self._epochs_planned,
            remaining=None,
            memory=self._gauges.memory(),
            processes=() if over else self._gauges.processes(self._roles(main)),
            workers=self._workers(over=over),
            device=self._device(now_ns),
            graphs_lately=self._graphs_lately(now_ns),
            compile_share=self._compile_share(now_ns),
            odd=self._odd,
            odd_ago_s=max(now_ns - self._odd.time_ns, 0) / 1e9 if self._odd else None,
            trouble=tuple(self._trouble),
            history=tuple(loop.series.moments(self._gauges.series)),
        )

    def _state(self) -> LiveState:
        if self._news is None:
            return "starting"
        if self._news.is_over:
            return "ended"
        if self._news.quiet_s > LOST_S:
            return "lost"
        main = self._main()
        return "training" if main is not None and main.loop.steps else "starting"

    def _roles(self, main: _Process | None) -> dict[int, Role]:
        roles: dict[int, Role] = {}
        for one in self._processes.values():
            if one.is_worker:
                roles[one.pid] = ("worker", one.worker)
            elif one.rank is not None:
                roles[one.pid] = ("rank", one.rank)
            elif one is main:
                roles[one.pid] = ("main", None)
        return roles

    def _workers(self, *, over: bool) -> LiveWorkers:
        present = self._gauges.last.rss_bytes if self._gauges.last and not over else {}
        workers = [one for one in self._processes.values() if one.is_worker and not one.is_closed]
        alive = sum(1 for one in workers if str(one.pid) in present)
        trainers = [one for one in self._processes.values() if not one.is_worker and not one.is_closed]
        wanted = sum(
            one.facts[loader].num_workers
            for one in trainers
            for loader in one.loop.open_loaders()
            if loader in one.facts
        )
        return LiveWorkers(alive, 0 if over else wanted, tuple(self._gone))

    def _device(self, now_ns: int) -> LiveDevice | None:
        pulse, busy = self._gauges.pulse, self._gauges.busy_share(now_ns)
        meter = self._gauges.last
        if pulse is not None and pulse.device is not None:
            return LiveDevice(pulse.device, busy, pulse.device_bytes or (meter.device_bytes if meter else None))
        return None

    def _graphs_lately(self, now_ns: int) -> int | None:
        """Graphs compiled in the last minute, those of warm-up left out; None where nothing is compiled."""
        if not self._graphs:
            return None
        if self._warm_graphs is None:
            return 0
        recent = [pulse for pulse in self._graphs if pulse.time_ns >= now_ns - COMPILED_S * 1e9]
        if not recent:
            return 0
        before = max(min(pulse.graphs or 0 for pulse in recent), self._warm_graphs)
        return max((recent[-1].graphs or 0) - before, 0)

    def _compile_share(self, now_ns: int) -> float | None:
        if not self._graphs:
            return None
        recent = [pulse for pulse in self._graphs if pulse.time_ns >= now_ns - COMPILED_S * 1e9]
        spent_s = (recent[-1].compile_s or 0.0) - (recent[0].compile_s or 0.0) if recent else 0.0
        return spent_s / COMPILED_S

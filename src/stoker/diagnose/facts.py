"""What the rules look at: a run's numbers, each computed once, in seconds, bytes and shares; None is unknown."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.attribute.steady import quantile
from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN
from stoker.records.attributed import Attribution
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Line, LoaderFacts, Observation, Track, WorkerBatch, WorkerTrack
from stoker.records.probes import Probes

DATA_SHARE = 0.75
"""The loader bounds the run if, by itself, it takes at least this share of a real step's time."""
MOSTLY_MAKING = 0.5
"""Workers that make batches for this share of the time are what the loop waits for: a drain asks more of them."""
IDLE_CORES = 0.4
"""Less than this is no idle core, just a gap."""
ALONE_SHARE = 0.5
"""Making a batch with the cores to itself, of a computed step: below, others who use the machine are why it is late."""
FEWEST_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Production:
    """How batches are made, per sample, where waiting for a core does not count as making."""

    batches: int
    samples: float  # of one batch
    wall_s: float
    net_s: float
    collate_s: float
    cpu_s: float
    process_cpu_s: float
    blocked_s: float
    system_s: float
    queued_s: float
    mean_wall_s: float
    mean_net_s: float
    mean_cpu_s: float  # of all threads
    read_bytes: float
    disk_bytes: float
    net_bytes: float
    opens: float
    requests: float
    result_bytes: float
    sent_bytes: float
    pickled_bytes: float
    tensors: float
    send_s: float

    @property
    def blocked_share(self) -> float:
        """The share of making that waits for files and sockets; threads that work meanwhile are work."""
        beside = max(self.process_cpu_s - self.cpu_s, 0.0)
        return max(self.blocked_s - beside, 0.0) / self.net_s if self.net_s else 0.0

    @property
    def taken_bytes(self) -> float:
        """Bytes that were read for one sample, from files, pages or sockets."""
        return max(self.read_bytes, self.disk_bytes) + self.net_bytes

    @property
    def collate_share(self) -> float:
        """The share of making that puts samples together."""
        return self.collate_s / self.wall_s if self.wall_s else 0.0


def net_s(batch: WorkerBatch) -> float:
    """Seconds for one sample, without waiting for a core."""
    return max((batch.end_ns - batch.begin_ns) / 1e9 - batch.queued_s, batch.user_s + batch.system_s) / batch.samples


def production(batches: Sequence[WorkerBatch]) -> Production | None:
    """Medians over batches, per sample."""
    made = [batch for batch in batches if batch.samples and batch.end_ns > batch.begin_ns]
    if not made:
        return None

    def each(name: str) -> float:
        return quantile([float(getattr(batch, name)) / batch.samples for batch in made], 0.5)

    def mean(name: str) -> float:
        return math.fsum(float(getattr(batch, name)) for batch in made) / sum(batch.samples for batch in made)

    wall = [(batch.end_ns - batch.begin_ns) / 1e9 / batch.samples for batch in made]
    net = [net_s(batch) for batch in made]
    return Production(
        batches=len(made),
        samples=quantile([float(batch.samples) for batch in made], 0.5),
        wall_s=quantile(wall, 0.5),
        net_s=quantile(net, 0.5),
        collate_s=each("collate_s"),
        cpu_s=quantile([(batch.user_s + batch.system_s) / batch.samples for batch in made], 0.5),
        process_cpu_s=each("process_cpu_s"),
        blocked_s=each("blocked_s"),
        system_s=mean("system_s"),
        queued_s=each("queued_s"),
        mean_wall_s=math.fsum(wall) / len(wall),
        mean_net_s=math.fsum(net) / len(net),
        mean_cpu_s=mean("process_cpu_s"),
        read_bytes=mean("read_bytes"),
        disk_bytes=mean("disk_bytes"),
        net_bytes=mean("net_bytes"),
        opens=mean("opens"),
        requests=mean("requests"),
        result_bytes=mean("result_bytes"),
        sent_bytes=mean("sent_bytes"),
        pickled_bytes=mean("pickled_bytes"),
        tensors=mean("tensors"),
        send_s=mean("send_s"),
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """One run, ready to be judged."""

    seen: Observation
    track: Track
    named: Attribution
    said: Diagnosis
    probes: Probes
    facts: LoaderFacts | None
    cores: float
    wall_step_s: float  # as it was
    step_s: float  # without what the main thread waited for a core
    wait_s: float
    compute_s: float | None
    compute_worst_s: float | None
    device_step_s: float | None
    main_cpu_s: float | None  # of the main thread, in one step on cached batches
    loader_s: float | None
    workers: int
    real: Production | None
    makers: tuple[WorkerTrack, ...]
    benches: dict[str, tuple[WorkerBatch, ...]]
    epochs: int
    errors: Mapping[str, float] = field(default_factory=dict)

    # ---- noise

    def off(self, *figures: str) -> float:
        """The error of what rests on these figures: step, compute, loader, made, a bench's label, or a rate's name."""
        return noise.together(*(self._error(name) for name in figures))

    def _error(self, name: str) -> float:
        if name in self.errors:
            return self.errors[name]
        rows = [net_s(row) for row in self.benches.get(name, ()) if row.samples]
        rates = [bench.seconds for bench in self.probes.benches if bench.name == name and bench.seconds]
        return noise.error(rows or rates)

    @property
    def data_off(self) -> float:
        """The error of a gain in data: a step, the ceiling that bounds it, and the loader."""
        return self.off("step", "compute", "loader" if self.workers else "made")

    # ---- gains

    def step_gain(self, new_step_s: float) -> float:
        """The speed-up if a step took this long, but never less than the compute ceiling allows."""
        floor = min(self.compute_s or self.rest_s, self.step_s)
        return self.step_s / max(new_step_s, floor, 1e-9)

    @property
    def main_s(self) -> float:
        """What stays on the main thread however batches are made: the loop's own work, and the sampler's."""
        rest_s = self.compute_s if self.compute_s is not None else self.step_s - self.wait_s
        return min(rest_s + self.ordering_s, self.step_s)

    @property
    def rest_s(self) -> float:
        """What is left of a step without its wait: the bound where no replay told."""
        return max(self.step_s - self.wait_s, 0.05 * self.step_s)

    def data_gain(self, kept_share: float) -> float:
        """The speed-up if making a batch took only this share of what it takes; sending it takes what it takes."""
        whole_s = min(self.loader_s or self.wait_s, self.wall_step_s)  # it keeps up with real steps already
        alone_s = (self.made_s or whole_s) * kept_share  # with the cores to itself
        if self.workers and self.making_share == 1 and self.compute_s and alone_s <= self.compute_s:
            return self.loader_gain(0.0)  # it keeps up
        return self.loader_gain(whole_s * (1 - self.making_share * (1 - kept_share)))

    def loader_gain(self, new_loader_s: float) -> float:
        """The speed-up if the loader needed this long for a batch."""
        if self.workers:
            return self.step_gain(max(new_loader_s, self.main_s))
        return self.step_gain(new_loader_s + self.step_s - min(self.loader_s or self.wait_s, self.step_s))

    @property
    def making_share(self) -> float:
        """The share of the loader's time for a batch in which workers make it; the rest is its way to the loop."""
        if not self.workers or not self.loader_s or self.real is None:
            return 1.0
        share = self.made_wall_s / min(self.loader_s, self.wall_step_s)
        return 1.0 if share >= MOSTLY_MAKING else share

    def loop_gain(self, saved_s: float) -> float:
        """The speed-up of a step if this much of the main thread's time went; the device still has its own to do."""
        return self.wall_step_s / max(self.wall_step_s - saved_s, self.device_step_s or 0.0, 1e-9)

    def host_gain(self, saved_s: float) -> float:
        """The speed-up of a step if this much of the host's own work went, with the cores to itself."""
        saved_s *= min(self.step_s / self.wall_step_s, 1.0)
        return self.step_s / max(self.step_s - saved_s, self.device_step_s or 0.0, 1e-9)

    def epoch_gain(self, saved_s: float, *, idle: bool = False) -> float | None:
        """The speed-up of a full epoch if this much of it went; `idle`: the device has nothing to do meanwhile."""
        whole = self.epoch_s
        device_s = (self.device_step_s or 0.0) * (self.said.steps_per_epoch or 0)  # it may be waited for anywhere
        if whole and idle:
            whole = max(whole, device_s + saved_s)
        return whole / max(whole - saved_s, device_s, 0.05 * whole) if whole else None

    @property
    def epoch_s(self) -> float | None:
        """The forecast of a full epoch; without one, what was seen of the loop."""
        if self.said.prediction is not None:
            return self.said.prediction.epoch_s
        loop = self.named.wall_s - self.named.startup_s - self.seconds("shutdown")
        return loop if loop > 0 else None

    # ---- states

    @property
    def potential(self) -> float:
        """How much faster the loop runs on batches that are there already."""
        return self.step_s / (self.compute_s or self.rest_s)

    @property
    def is_slower(self) -> bool:
        """True if real steps are slower than those on batches that lie ready, and than the slowest replay too."""
        worst_s = self.compute_worst_s
        return self.potential >= GAIN and not (worst_s and self.step_s / worst_s < NOISE)

    @property
    def waits(self) -> bool:
        """True if the loop is slower than on cached batches, and by its loader."""
        if not self.is_slower:
            return False
        if not self.workers:
            return min(self.wait_s, self.made_s or self.wait_s) / self.step_s > 1 - 1 / GAIN
        return self.loader_s is None or max(self.loader_s, self.made_wall_s) >= DATA_SHARE * self.step_s

    @property
    def made_wall_s(self) -> float:
        """Seconds a batch that workers took in the run itself, whoever else used the cores."""
        return self.real.mean_wall_s * self.real.samples / max(self.workers, 1) if self.real else 0.0

    @property
    def made_s(self) -> float | None:
        """Seconds a batch if workers had the cores to themselves: what waiting for a core adds is others' doing."""
        return _made_s(self.real, self.workers, self.cores)

    @property
    def ideal_step_s(self) -> float:
        """A step if nobody else used the machine."""
        made_s, compute_s = self.made_s or 0.0, self.compute_s or self.step_s - self.wait_s
        if self.workers:
            return max(made_s, compute_s)
        if self.device_step_s and self.main_cpu_s is not None:  # a device works while the host makes the next batch
            return max(made_s + self.main_cpu_s, compute_s)
        return made_s + compute_s

    @property
    def is_data_bound(self) -> bool:
        """True if the loop is slower than on batches that lie ready, and making them takes long enough to be why."""
        if self.compute_s is None or self.real is None:
            return self.waits
        return self.is_slower and (self.made_s or 0.0) >= self._alone_share * self.compute_s

    @property
    def _alone_share(self) -> float:
        """What making must take of a computed step; where it is done beside a device or in workers it may be hidden."""
        return ALONE_SHARE if self.workers or self.device_step_s else GAIN - 1

    @property
    def is_data_bound_alone(self) -> bool:
        """True if the loop would also wait on a machine that nobody else uses."""
        if not self.is_data_bound or self.compute_s is None:
            return self.is_data_bound
        return self.ideal_step_s / self.compute_s >= GAIN

    @property
    def demand_cores(self) -> float | None:
        """Cores that the run would use on a machine of its own: below what there is, some were idle."""
        if self.real is None:
            return None
        if not self.workers:
            return 1.0
        return (self.real.mean_cpu_s * self.real.samples + (self.main_cpu_s or 0.0)) / self.ideal_step_s

    @property
    def ordering_s(self) -> float:
        """Seconds inside the sampler for a batch."""
        ordering = self.probes.ordering
        return ordering.seconds / ordering.batches if ordering is not None and ordering.batches else 0.0

    def bench(self, label: str) -> Production | None:
        """How batches of this label were made."""
        return production(self.benches.get(label, ()))

    def rate_s(self, name: str) -> float | None:
        """Seconds a batch of the benches for throughput of this name."""
        found = [bench.seconds for bench in self.probes.benches if bench.name == name and bench.seconds]
        return sum(found) / len(found) if found else None

    def rate_ratio(self, name: str) -> float | None:
        """How many times faster batches come in this variant than as it is; measured in turns, minutes apart never.

        Where there are too many workers to start them twice, as it is is what loader-only measured.
        """
        as_is, other = self.rate_s("as is") or self.loader_s, self.rate_s(name)
        return as_is / other if as_is and other else None

    def sampled_s(self, holds: Callable[[Line], bool]) -> float:
        """Seconds of the main thread in places that the sampler saw and `holds` accepts."""
        lines = self.track.lines
        count = sum(1 for number in self.track.sample_lines if holds(lines[number]))
        return count / max(len(self.track.sample_lines), 1) * self.named.wall_s

    def seconds(self, phase: str) -> float:
        """Seconds of a phase over the whole run."""
        return next((one.seconds for one in self.named.phases if one.name == phase), 0.0)

    def step_part(self, phase: str) -> float:
        """Seconds of a phase in a steady step."""
        return next((one.seconds for one in self.said.step_phases if one.name == phase), 0.0)


NOISE = 1.03
"""What must be left of a gain when the slowest replay is held against it."""


def gather(seen: Observation, track: Track, named: Attribution, said: Diagnosis) -> Facts | None:
    """The facts of a run; None if it had no steady steps to judge."""
    if named.steady is None or not named.steps:
        return None
    probes = track.probes
    trains = [wait for wait in named.loaders if wait.role == "train"]
    facts = max(trains, key=lambda wait: wait.batches).facts if trains else None
    workers = facts.num_workers if facts else 0
    steady = [named.steps[i] for i in named.steady.steps]
    wait_s = math.fsum(step.parts.get("data_wait", 0.0) for step in steady) / len(steady)
    devices = [r.device_s / r.steps for r in probes.replays if r.steps and r.device_s is not None and not r.known]
    device_s = quantile(devices, 0.5) if devices else 0.0
    real_s = _whole_step_s(named, said, facts)
    makers = _makers(seen, track, facts, probes)
    rows = _rows(makers, probes)
    plain = [replay for replay in probes.replays if replay.steps and not replay.known]
    cpus = [replay.cpu_s / replay.steps for replay in plain]
    least_s = max(device_s, quantile(cpus, 0.5) if cpus else 0.5 * real_s, 1e-9)
    real, cores = production(rows), min([seen.machine.cores, *_quotas(seen, probes)])
    needed_s = min(_made_s(real, workers, cores) or 0.0, real_s)  # waiting for one's own workers is not others' doing
    step_s = max(real_s * (1 - _queued_share(probes)), least_s, needed_s)
    replays = [max((replay.seconds - replay.queued_s) / replay.steps, least_s) for replay in plain]
    compute_s = quantile(replays, 0.5) if replays else None
    loader_s = _loader_s(probes, step_s, wait_s, compute_s) if workers else min(wait_s, needed_s or wait_s)
    benches = _benches(seen, probes)
    epochs = track.epochs_planned or len({step.epoch for step in named.steps})
    return Facts(
        seen=seen,
        track=track,
        named=named,
        said=said,
        probes=probes,
        facts=facts,
        cores=cores,
        wall_step_s=real_s,
        step_s=step_s,
        wait_s=wait_s,
        compute_s=compute_s,
        compute_worst_s=max(replays, default=None),
        device_step_s=device_s or None,
        main_cpu_s=quantile(cpus, 0.5) if cpus else None,
        loader_s=loader_s,
        workers=workers,
        real=real,
        makers=makers,
        benches=benches,
        epochs=max(epochs, len([one for one in named.passes if one.is_train and one.batches > 1])),
        errors={
            "step": noise.error([step.seconds for step in steady]),
            "compute": noise.error(replays),
            "loader": noise.error([drain.seconds / drain.batches for drain in probes.drains if drain.batches]),
            "made": noise.error([net_s(row) for row in rows if row.samples]),
        },
    )


def _made_s(real: Production | None, workers: int, cores: float) -> float | None:
    if real is None:
        return None
    net_s, cpu_s = real.mean_net_s * real.samples, real.mean_cpu_s * real.samples
    return max(net_s / max(workers, 1), cpu_s / cores)


def _whole_step_s(named: Attribution, said: Diagnosis, facts: LoaderFacts | None) -> float:
    """A step of a whole epoch: where epochs are short, their first steps count as much as steady ones."""
    assert named.steady is not None
    parts, length = said.epoch_parts, said.steps_per_epoch
    if not parts or not length:
        return named.steady.mean_step_s
    keeps = facts is not None and (facts.persistent_workers or not facts.num_workers)
    first_s = parts["first_batch"] if keeps else 0.0  # starting workers is a cause of its own
    return (first_s + parts["head"] + parts["steady"]) / length


def _quotas(seen: Observation, probes: Probes) -> list[float]:
    limits = [seen.machine.quota_cores, probes.container.quota_cores if probes.container else None]
    return [limit for limit in limits if limit]


def _queued_share(probes: Probes) -> float:
    """The share of real steps in which the main thread waited for a core: others' doing, taken off as in a replay."""
    seconds = math.fsum(stretch.seconds for stretch in probes.stretches)
    if probes.container is not None and (probes.container.throttled_s or 0.0) > 0.02 * probes.container.seconds:
        return 0.0  # a quota, not others
    queued_s = math.fsum(stretch.queued_s for stretch in probes.stretches)
    return min(queued_s / seconds, 1.0) if seconds else 0.0


def _loader_s(probes: Probes, step_s: float, wait_s: float, compute_s: float | None) -> float | None:
    """Seconds a batch that the loader needs by itself."""
    drains = [drain.seconds / drain.batches for drain in probes.drains if drain.batches]
    if drains:
        return quantile(drains, 0.5)
    waits = wait_s > 0.3 * step_s and (compute_s is None or step_s > 1.1 * compute_s)
    return step_s if waits else None


def _makers(seen: Observation, track: Track, facts: LoaderFacts | None, probes: Probes) -> tuple[WorkerTrack, ...]:
    """The processes that made batches for training."""
    ours = {pid for bench in probes.benches for pid in bench.pids}
    if facts is None:
        return ()
    if not facts.num_workers:
        return tuple(worker for worker in seen.workers if worker.pid == track.pid)
    made = [worker for worker in seen.workers if worker.worker is not None and worker.pid not in ours]
    known = [worker for worker in made if worker.loader == facts.loader]
    return tuple(known or made)


def _rows(makers: Sequence[WorkerTrack], probes: Probes) -> list[WorkerBatch]:
    """Real batches: the first of each process is its start, and those of a bench are not the run's."""
    windows = [(bench.start_ns, bench.end_ns) for bench in probes.benches if not bench.workers]
    rows = []
    for worker in makers:
        real = [b for b in worker.batches if not any(start <= b.begin_ns < end for start, end in windows)]
        rows += real[1:] if len(real) > FEWEST_BATCHES else real
    return rows


def _benches(seen: Observation, probes: Probes) -> dict[str, tuple[WorkerBatch, ...]]:
    """Batches of benches that one process made, by label."""
    found: dict[str, list[WorkerBatch]] = {}
    for bench in probes.benches:
        if bench.workers > 1:
            continue
        pids = set(bench.pids)
        for worker in seen.workers:
            if bench.workers and worker.pid not in pids:
                continue
            rows = [b for b in worker.batches if bench.start_ns <= b.begin_ns < bench.end_ns]
            if not bench.workers and worker.worker is not None:
                continue
            for label, row in zip(bench.labels, rows, strict=False):
                found.setdefault(label, []).append(row)
    return {label: tuple(rows) for label, rows in found.items()}

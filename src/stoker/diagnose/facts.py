"""What the rules look at: a run's numbers, each computed once, in seconds, bytes and shares; None is unknown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.attribute.steady import quantile
from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN
from stoker.diagnose.production import Production, made_s, net_s, production
from stoker.records.attributed import Attribution
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import Line, LoaderFacts, Observation, Track, WorkerBatch, WorkerTrack
from stoker.records.probes import Bench, Probes

DATA_SHARE = 0.75
"""The loader bounds the run if, by itself, it takes at least this share of a real step's time."""
MOSTLY_MAKING = 0.5
"""Workers that make batches for this share of the time are what the loop waits for: a drain asks more of them."""
IDLE_CORES = 0.4
"""Less than this is no idle core, just a gap."""
SHARED = 1.15
"""What workers and a model on the same cores must take together, of the model alone: others make both take more."""
FEWEST_ROWS = 16
"""Batches of an experiment whose processor time counts: work that comes every few batches is among them."""
ALONE_SHARE = 0.5
"""Making a batch with the cores to itself, of a computed step: below, others who use the machine are why it is late."""
MODEL = ("forward", "loss", "backward", "optimizer", "zero_grad")
"""The phases of a step that are the model's."""
REACH = 1.5
"""What making batches on the main thread costs a step, of the time that it is seen to take there: caches suffer too."""
NOISE = 1.03
"""What must be left of a gain when the slowest replay is held against it."""


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
    def quick_cpu_s(self) -> float | None:
        """`main_cpu_s` of the replay that was disturbed least: threads that spin while they wait only add to it."""
        cpus = [one.cpu_s / one.steps for one in self.probes.replays if one.steps and not one.known]
        return None if self.main_cpu_s is None else min([self.main_cpu_s, *cpus])

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
        now_s = min(self.loader_s or self.wait_s, self.step_s)
        kept = min(new_loader_s / now_s, 1.0) if now_s else 1.0
        beyond_s = self.step_s - self.without_data_s  # what real steps take more than those on ready batches
        return self.step_gain(min(self.step_s - now_s + new_loader_s, self.without_data_s + kept * beyond_s))

    @property
    def without_data_s(self) -> float:
        """A step on ready batches. Without workers, what it takes less than a real one was seen on the main thread."""
        return self.main_s if self.workers else max(self.main_s, self.step_s - REACH * self.seen_making_s)

    @property
    def seen_making_s(self) -> float:
        """Seconds of a step in which the main thread was seen to make a batch."""
        waited_s = self.wait_s * min(self.step_s / self.wall_step_s, 1.0)
        return max(waited_s, self.made_s or 0.0, self.ordering_s)

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
        steps = self.said.steps_per_epoch or (0 if self.said.prediction else len(self.named.steps))
        device_s = (self.device_step_s or 0.0) * steps  # it may be waited for anywhere
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
        if self.loader_s is None:
            return True
        return max(self.loader_s + self.received_s, self.made_wall_s) >= DATA_SHARE * self.step_s

    @property
    def idle_by_hand(self) -> float | None:
        """What of the gap in which a loop without a loader gets its data is waiting, as a share; None with a loader."""
        timed = [one for one in self.probes.replays if one.steps and not one.known]
        if self.facts is not None or not timed or not self.wait_s:
            return None
        idle_s = quantile([(one.seconds - one.queued_s - one.cpu_s) / one.steps for one in timed], 0.5)
        idle_s -= self.step_part("sync") + self.step_part("transfer")
        return min(max(idle_s, 0.0) / self.wait_s, 1.0)

    @property
    def by_hand_gain(self) -> float:
        """What a loop without a loader gains if its data lies ready: no more than the gap before its forward pass."""
        return min(self.potential, self.wall_step_s / max(self.wall_step_s - self.wait_s, 0.05 * self.wall_step_s))

    @property
    def received_s(self) -> float:
        """CPU of the main thread for receiving a batch: time in which it cannot do a step's own work."""
        receiving = [drain.cpu_s / drain.batches for drain in self.probes.drains if drain.batches]
        return max(quantile(receiving, 0.5) - self.ordering_s, 0.0) if receiving and self.workers else 0.0

    @property
    def made_wall_s(self) -> float:
        """Seconds a batch that workers took in the run itself, whoever else used the cores."""
        return self.real.mean_wall_s * self.real.samples / max(self.workers, 1) if self.real else 0.0

    @property
    def made_s(self) -> float | None:
        """Seconds a batch if workers had the cores to themselves: what waiting for a core adds is others' doing."""
        return made_s(self.real, self.workers, self.cores)

    @property
    def ideal_step_s(self) -> float:
        """A step if nobody else used the machine."""
        made_s, compute_s = self.made_s or 0.0, self.compute_s or self.step_s - self.wait_s
        if self.workers:
            return max(made_s, compute_s, self._shared_cores_s)
        if self.device_step_s and self.main_cpu_s is not None:  # a device works while the host makes the next batch
            return max(made_s + self.main_cpu_s, compute_s)
        return made_s + compute_s

    @property
    def _shared_cores_s(self) -> float:
        """A step if all it computes, in the workers and in the model's threads, is spread over the cores.

        0 where a device computes, or where that is little more than the model alone takes.
        """
        if self.real is None or not self.workers or self.device_step_s or not self.compute_s:
            return 0.0
        model_s = min(self._model_cpu_s, self.cores * self.compute_s)
        shared_s = (self.real.mean_cpu_s * self.real.samples + model_s) / self.cores
        return shared_s if shared_s >= SHARED * self.compute_s else 0.0

    @property
    def _model_cpu_s(self) -> float:
        """CPU of all threads in a step on batches that lie ready; threads that spin while they wait take cores too."""
        replays = [one for one in self.probes.replays if one.steps and not one.known and one.all_cpu_s is not None]
        if not replays:
            return self.main_cpu_s or 0.0
        return quantile([(one.all_cpu_s or 0.0) / one.steps for one in replays], 0.5)

    @property
    def is_data_bound(self) -> bool:
        """True if the loop is slower than on batches that lie ready, and making them takes long enough to be why."""
        if self.compute_s is None or self.real is None:
            return self.waits
        if not self.workers and self.seen_making_s < (1 - 1 / GAIN) * self.step_s:
            return False  # others who use the cores make it slower than its replays
        is_long = (self.made_s or 0.0) >= self._alone_share * self.compute_s
        return self.is_slower and (is_long or self._shared_cores_s > 0)

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
        if self.ideal_step_s == self._shared_cores_s:  # all of them, then
            return self.cores
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

    def own_rate_ratio(self, name: str) -> float | None:
        """The same if nobody else used the cores: workers that are no more than these wait for one only for others."""
        as_is, other = self._own_rate_s("as is"), self._own_rate_s(name)
        return as_is / other if as_is and other else self.rate_ratio(name)

    def cpu_ratio(self, name: str) -> float | None:
        """How many times more processor time a batch takes as it is than in this variant, whoever has the cores."""
        made = production([row for bench in self.probes.benches if bench.name == name for row in self._rows(bench)])
        if made is None or made.batches < FEWEST_ROWS or self.real is None or not made.mean_cpu_s:
            return None
        return self.real.mean_cpu_s / made.mean_cpu_s

    def _rows(self, bench: Bench) -> list[WorkerBatch]:
        return [row for one in self.seen.workers if one.pid in bench.pids for row in one.batches]

    def _own_rate_s(self, name: str) -> float | None:
        found = []
        for bench in self.probes.benches:
            if bench.name == name and bench.seconds and bench.workers <= self.cores:
                made = production(self._rows(bench))
                queued = made.queued_s / made.wall_s if made and made.wall_s else 0.0
                found.append(bench.seconds * (1 - queued))
        return sum(found) / len(found) if found else None

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

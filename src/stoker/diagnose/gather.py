"""From what was seen of a run to the facts that the rules look at."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeVar

from stoker.attribute.steady import quantile
from stoker.attribute.summary import feeder
from stoker.diagnose import noise
from stoker.diagnose.facts import Facts
from stoker.diagnose.production import made_s, net_s, production
from stoker.records.attributed import Attribution
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import LoaderFacts, Observation, Track, WorkerBatch, WorkerTrack
from stoker.records.probes import Probes, Replay, Stretch

FEWEST_BATCHES, FEWEST_STEPS = 2, 20
CALM = 0.15
"""How much more of a replay may be waiting for a core than of the calmest one."""
Timed = TypeVar("Timed", Replay, Stretch)


def gather(seen: Observation, track: Track, named: Attribution, said: Diagnosis) -> Facts | None:
    """The facts of a run; None if it had no steady steps to judge."""
    if named.steady is None or not named.steps:
        return None
    cores = min([seen.machine.cores, *_quotas(seen, track.probes)])
    probes = _undisturbed_by_itself(track.probes, cores)
    facts = feeder(named.loaders)
    workers = facts.num_workers if facts else 0
    steady = [named.steps[i] for i in named.steady.steps]
    wait_s = math.fsum(step.parts.get("data_wait", 0.0) for step in steady) / len(steady)
    devices = [r.device_s / r.steps for r in probes.replays if r.steps and r.device_s is not None and not r.known]
    device_s = quantile(devices, 0.5) if devices else 0.0
    real_s = _whole_step_s(named, said, facts)
    makers = _makers(seen, track, facts, probes)
    rows = _rows(makers, probes)
    plain = _calm([replay for replay in probes.replays if replay.steps and not replay.known])
    by_hand_s = 0.0 if facts else wait_s  # such a loop is timed with the gap in which it fetches its data
    cpus = [min(one.cpu_s, one.seconds - by_hand_s * one.steps) / one.steps for one in plain]
    least_s = max(device_s, quantile(cpus, 0.5) if cpus else 0.5 * real_s, 1e-9)
    real = production(rows)
    needed_s = min(made_s(real, workers, cores) or 0.0, real_s)  # waiting for one's own workers is not others' doing
    step_s = max(real_s * (1 - _queued_share(probes)), least_s, needed_s)
    if not workers:  # then nobody of ours competes for the cores
        step_s = min(step_s, max(_undisturbed_s(probes) or step_s, least_s))
    replays = [max((one.seconds - one.queued_s) / one.steps - by_hand_s, least_s) for one in plain]
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


def _calm(timed: Sequence[Timed]) -> list[Timed]:
    """Those in which others left the cores alone, as far as there are such.

    What waits for a core in a replay waits for others: the script's own workers are idle. It is taken off, but what
    others do to the threads that compute together, and to caches, is not counted as waiting.
    """
    shares = [one.queued_s / max(one.seconds, 1e-9) for one in timed]
    return [one for one, share in zip(timed, shares, strict=True) if share <= min(shares) + CALM]


def _undisturbed_by_itself(probes: Probes, cores: float) -> Probes:
    """Where torch has more threads than there are cores, the main thread waits for its own, not for others."""
    if (probes.threads or 0) <= cores:
        return probes
    return dataclasses.replace(
        probes,
        replays=tuple(dataclasses.replace(one, queued_s=0.0) for one in probes.replays),
        stretches=tuple(dataclasses.replace(one, queued_s=0.0) for one in probes.stretches),
    )


def others_share(probes: Probes) -> float | None:
    """How much of the calmest replay was spent waiting for a core; None if there was none."""
    timed = [one for one in probes.fewer or probes.replays if one.steps and one.seconds > 0]
    return min((min(one.queued_s / one.seconds, 1.0) for one in timed), default=None)


def _undisturbed_s(probes: Probes) -> float | None:
    """A real step while others left the cores alone, if they did so for a while only."""
    calm = _calm(probes.stretches)
    steps = sum(stretch.steps for stretch in calm)
    if len(calm) == len(probes.stretches) or steps < FEWEST_STEPS:
        return None
    return math.fsum(stretch.seconds - stretch.queued_s for stretch in calm) / steps


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

"""Records of a run → the pipeline they describe, and the same pipeline with other knobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.attribute.batches import train_passes
from stoker.attribute.excise import Clock, windows_of
from stoker.errors import UsageError
from stoker.predict import epoch_parts
from stoker.predict.pipeline import PIECES, Pipeline, epoch_step_s
from stoker.records.attributed import Attribution
from stoker.records.observed import LoaderFacts, Meter, Observation, Value, WorkerBatch, WorkerTrack

KNOWN = ("num_workers", "prefetch_factor", "batch_size", "persistent_workers")
"""The knobs whose effect on the pipeline is simulated."""
FEWEST_BATCHES = 4
QUIET = 0.05
"""Waiting for a core that is less than this share of the work is nobody's doing."""
FORK_S, SETUP_S = 0.044, 0.006
"""A fork of a process with torch, where none was seen; and what a loader does besides for each worker (queues, a first
look at what they bring): on a quick machine eight workers took 8.5 ms each of which 3.0 were forks, and 37 of 36 where
the process held 2 GB."""
WORKER_START_S = FORK_S + SETUP_S


def measured(seen: Observation, named: Attribution, peak_bytes: int | None = None) -> Pipeline:
    """The pipeline of a run, from what its workers (or its main thread) and its steady steps took.

    `peak_bytes` is what all processes held at most, where the run was not metered from outside.
    """
    facts = next((wait.facts for wait in named.loaders if wait.role == "train"), None)
    steady = named.steady
    if facts is None or steady is None:
        raise UsageError("this run has no steady steps fed by a DataLoader; what-if needs both")
    makers = [one for one in seen.workers if one.loader in (facts.loader, None)]
    batches: Sequence[WorkerBatch] = [batch for maker in makers for batch in maker.batches]
    if len(batches) < FEWEST_BATCHES:
        raise UsageError(f"only {len(batches)} batches were seen being made; what-if needs {FEWEST_BATCHES}")
    batches = _of_later_epochs(seen, named, batches)
    worker_bytes = _worker_bytes(seen.meters, makers, facts)
    cores = seen.machine.quota_cores or float(seen.machine.cores)
    share = _share_of_a_core(batches) if facts.num_workers < cores else 1.0
    cpu_s, wait_s = _loop_s(named, on_device=seen.tracks[0].device not in (None, "cpu"))
    pipeline = Pipeline(
        workers=facts.num_workers,
        prefetch=facts.prefetch_factor or 2,
        cores=cores,
        work_s=tuple(_cpu_s(batch) for batch in batches),
        wait_s=tuple(_waiting_s(batch) for batch in batches),
        loop_cpu_s=cpu_s * share,
        loop_wait_s=wait_s,
        main_bytes=_main_bytes(seen, facts.num_workers * worker_bytes, peak_bytes),
        worker_bytes=worker_bytes,
        batch_bytes=max(batch.sent_bytes for batch in batches) or dict(seen.tracks[0].batch_bytes).get(facts.loader, 0),
        device_s=(seen.tracks[0].device_busy_ns or 0) / 1e9 / max(len(named.steps), 1),
        strangers=max(cores / share - 1, 0.0) if share < 1 else 0.0,
        tensors=_tensors(seen, facts, batches),
        spread=_spread(batches),
        pieces=min(PIECES, max(batch.samples for batch in batches) or 1),
    )
    fork_s = seen.tracks[0].fork_s
    return replace(pipeline, **_epoch(named, facts, pipeline.make_s, FORK_S / share if fork_s is None else fork_s))


def _of_later_epochs(seen: Observation, named: Attribution, batches: Sequence[WorkerBatch]) -> Sequence[WorkerBatch]:
    """Without those of the first epoch, which may have filled a cache for the others; all, if there are too few."""
    starts = [one.start_ns for one in train_passes(named)]
    clock = Clock(windows_of(seen.tracks[0]))
    later = [batch for batch in batches if len(starts) > 1 and clock.read(batch.begin_ns) >= starts[1]]
    return later if len(later) >= FEWEST_BATCHES else batches


def _cpu_s(batch: WorkerBatch) -> float:
    """Of all threads: a library may have its own."""
    return max(batch.user_s + batch.system_s, batch.process_cpu_s)


def _waiting_s(batch: WorkerBatch) -> float:
    """For files and sockets, not for other threads of the same process, which work meanwhile."""
    elsewhere_s = _cpu_s(batch) - batch.user_s - batch.system_s
    return max(batch.blocked_s - elsewhere_s, 0.0)


def _spread(batches: Sequence[WorkerBatch]) -> float:
    """Cores that making a batch takes at once, while it does not wait."""
    working_s = sum(batch.user_s + batch.system_s + batch.blocked_s - _waiting_s(batch) for batch in batches)
    return max(sum(map(_cpu_s, batches)) / working_s, 1.0) if working_s else 1.0


def _tensors(seen: Observation, facts: LoaderFacts, batches: Sequence[WorkerBatch]) -> float:
    """Tensors and arrays in a batch: those that were sent, or those in the first one that the loop made itself."""
    sent = [batch.tensors for batch in batches if batch.tensors]
    if sent:
        return sum(sent) / len(sent)
    return float(dict(seen.tracks[0].batch_arrays).get(facts.loader, 0))


def _share_of_a_core(batches: Sequence[WorkerBatch]) -> float:
    """What a thread of ours gets of a core that strangers want too; 1 if it hardly ever waits for one.

    Only where there is a core for each of ours: else they wait for each other. Nor where it mostly waits for something
    else: each time it wakes it is a moment until it runs, on an idle machine too.
    """
    work_s = sum(batch.user_s + batch.system_s for batch in batches)
    queued_s = sum(batch.queued_s for batch in batches)
    blocked_s = sum(map(_waiting_s, batches))
    return work_s / (work_s + queued_s) if work_s and queued_s > QUIET * (work_s + blocked_s) else 1.0


def _epoch(named: Attribution, facts: LoaderFacts, make_s: float, fork_s: float) -> dict[str, Any]:
    """What comes once in an epoch."""
    parts = epoch_parts(named)
    steps = next((one.length for one in named.passes if one.is_train and one.length), None)
    if parts is None or not steps:
        return {}
    start_s = fork_s + SETUP_S
    if facts.num_workers and not facts.persistent_workers:
        start_s = max(parts.first_batch_s - make_s, 0.0) / facts.num_workers
    return {"epoch_steps": steps, "worker_start_s": start_s, "persistent": facts.persistent_workers}


def _main_bytes(seen: Observation, workers_bytes: int, peak_bytes: int | None) -> int:
    metered = _peak(seen.meters, [str(seen.tracks[0].pid)])
    return metered or max((peak_bytes or 0) - workers_bytes, 0)


def changed(pipeline: Pipeline, facts: LoaderFacts, knobs: Mapping[str, Value], device_speed: float = 1.0) -> Pipeline:
    """The pipeline with other knobs: a larger batch takes more of everything, in proportion."""
    unknown = [name for name in knobs if name not in KNOWN]
    if unknown:
        raise UsageError(f"{unknown[0]} cannot be predicted; {', '.join(KNOWN)} can. Try it: stoker tune --knob …")
    workers, prefetch = knobs.get("num_workers"), knobs.get("prefetch_factor")
    size = knobs.get("batch_size")
    factor = size / facts.batch_size if isinstance(size, int) and facts.batch_size else 1.0
    worker_bytes = pipeline.worker_bytes or pipeline.main_bytes
    persistent = knobs.get("persistent_workers")
    return replace(
        pipeline,
        workers=workers if isinstance(workers, int) else pipeline.workers,
        persistent=persistent if isinstance(persistent, bool) else pipeline.persistent,
        epoch_steps=pipeline.epoch_steps and max(round(pipeline.epoch_steps / factor), 1),
        prefetch=prefetch if isinstance(prefetch, int) else pipeline.prefetch,
        work_s=tuple(one * factor for one in pipeline.work_s),
        wait_s=tuple(one * factor for one in pipeline.wait_s),
        loop_cpu_s=pipeline.loop_cpu_s * factor,
        loop_wait_s=pipeline.loop_wait_s * factor / device_speed,
        device_s=pipeline.device_s * factor / device_speed,
        worker_bytes=worker_bytes,
        batch_bytes=int(pipeline.batch_bytes * factor),
    )


def _loop_s(named: Attribution, *, on_device: bool) -> tuple[float, float]:
    """A steady step without its wait for data: seconds of a core, and seconds of waiting for the device."""
    assert named.steady is not None
    steps = [named.steps[at] for at in named.steady.steps]
    all_s = sum(step.seconds - step.parts.get("data_wait", 0.0) for step in steps) / len(steps)
    device_s = sum(step.parts.get("sync", 0.0) + step.parts.get("transfer", 0.0) for step in steps) / len(steps)
    return (all_s - device_s, device_s) if on_device else (all_s, 0.0)


def _peak(meters: Sequence[Meter], pids: Sequence[str]) -> int:
    return max((sum(meter.private_bytes.get(pid, 0) for pid in pids) for meter in meters), default=0)


def _worker_bytes(meters: Sequence[Meter], makers: Sequence[WorkerTrack], facts: LoaderFacts) -> int:
    """The largest of the workers; 0 if there are none."""
    if not facts.num_workers:
        return 0
    metered = max((_peak(meters, [str(maker.pid)]) for maker in makers), default=0)
    return metered or max((batch.private_bytes for maker in makers for batch in maker.batches), default=0)


def simulated(
    pipeline: Pipeline | None, facts: LoaderFacts | None, knobs: Mapping[str, Value], potential: float | None = None
) -> tuple[float, int] | None:
    """With these knobs: the rate over the rate as it is, and the bytes of memory; None where it cannot be told.

    `potential` is what the loop does on ready batches, over its present rate, in steady steps: no setting of a loader
    gets beyond. Another batch size has another one, and starting workers is no steady step.
    """
    if pipeline is None or facts is None or any(name not in KNOWN for name in knobs):
        return None
    other = changed(pipeline, facts, knobs)
    size = knobs.get("batch_size")
    samples = size / facts.batch_size if isinstance(size, int) and facts.batch_size else 1.0
    ratio = samples * epoch_step_s(pipeline) / epoch_step_s(other)
    if potential is not None and not {"batch_size", "persistent_workers"} & knobs.keys():
        ratio = min(ratio, max(potential, 1.0))
    return ratio, other.memory_bytes

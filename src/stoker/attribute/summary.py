"""Everything the doctor says about a run, as one record; still without a judgement."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import get_args

from stoker.records.attributed import Attribution, LoaderWait, Pass, Phase
from stoker.records.diagnosis import (
    Bound,
    Ceilings,
    Device,
    Diagnosis,
    MachineUse,
    Memory,
    Prediction,
    Worker,
    WorkerStages,
)
from stoker.records.observed import Kind, LoaderFacts, Meter, Observation, PhaseName, Track, WorkerTrack

EVENT_NS, CALL_NS = 500, 200
"""What an event and a module call cost where a run was killed before it could measure that itself."""
RIVALS = 0.9
"""Loaders with at least this share of the busiest one's batches train as much as it does."""


def summarise(seen: Observation, track: Track, named: Attribution, prediction: Prediction | None) -> Diagnosis:
    """One run in the words of the contract; findings and ceilings come from what is further right."""
    steady = named.steady
    primary = _primary(named)
    size = _batch_size(track, named)
    ours = {pid for bench in track.probes.benches for pid in bench.pids}
    return Diagnosis(
        wall_s=named.wall_s,
        steps=len(named.steps) + sum(window.batches for window in track.probes.windows),
        epochs=_epochs(named),
        steps_per_epoch=next((one.length for one in primary), None),
        samples_per_s=size / steady.mean_step_s if steady and size and steady.mean_step_s else None,
        startup_s=named.startup_s if named.startup_s or named.steps else None,  # else no loop began
        first_batch_s=tuple(one.first_batch_s for one in primary),
        steady_step_s=steady.step_s if steady else None,
        mean_step_s=steady.mean_step_s if steady else None,
        phases=named.phases,
        unaccounted_share=named.unaccounted_share,
        hot_lines=named.hot_lines,
        ceilings=Ceilings(None, None),
        prediction=prediction,
        workers=tuple(_worker(worker, seen.meters) for worker in seen.workers if worker.pid not in ours),
        memory=_memory(track, seen.meters),
        device=_device(track, named, seen.meters),
        findings=(),
        verdict=None,
        overhead_share=overhead_share(track, named),
        step_phases=_step_phases(named),
        bound=_bound(_step_phases(named)),
        warmup_steps=steady.warmup_steps if steady else None,
        drift_share=steady.drift_share if steady else None,
        spikes=steady.spikes if steady else None,
        epoch_s=_epoch_s(track, named),
        loaders=named.loaders,
        machine=_use(seen, track),
        notes=_notes(seen, track, named),
    )


def within_reach(said: Diagnosis) -> Diagnosis:
    """The same with ceilings that are not below what was really reached: they are measured apart, in other moments."""
    reached = said.samples_per_s or 0.0
    found = (said.ceilings.loader_samples_per_s, said.ceilings.compute_samples_per_s)
    ceilings = Ceilings(*(None if one is None else max(one, reached) for one in found))
    return dataclasses.replace(said, ceilings=ceilings)


def overhead_share(track: Track, named: Attribution) -> float | None:
    """What Stoker itself cost the main thread: events and module calls at their measured price, and the sampler."""
    if not named.wall_s or track.own_ns is None:
        return None
    seen, passed = max(named.events - track.filled, 0), track.filled + track.module_calls
    hooks_ns = seen * (track.event_ns or EVENT_NS) + passed * (track.call_ns or CALL_NS)
    return (hooks_ns + track.own_ns) / 1e9 / named.wall_s


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _primary(named: Attribution) -> list[Pass]:
    """The passes of the training loader that steps are counted by: its batch is the first to come in the first step."""
    train = [one for one in named.passes if one.is_train and one.batches]
    begun_ns = named.steps[0].start_ns if named.steps else 0
    came_ns = {one.start_ns + round(one.first_batch_s * 1e9): one.loader for one in reversed(train)}
    after = [time_ns for time_ns in came_ns if time_ns >= begun_ns]
    return [one for one in train if one.loader == came_ns[min(after)]] if after else train


def _epoch_s(track: Track, named: Attribution) -> tuple[float, ...]:
    """Whole training epochs, from one's start to the next, the last to the end of the script's own code.

    Not those in which experiments stood for some of the steps.
    """
    train = _primary(named)
    exits = [time_ns for time_ns, code in zip(track.times_ns, track.codes, strict=True) if code == Kind.EXIT << 1]
    ends = [one.start_ns for one in train[1:]] + exits[:1]
    tried = any(window.batches for window in track.probes.windows)
    return tuple(
        (end - one.start_ns) / 1e9
        for one, end in zip(train, ends, strict=False)
        if one.is_whole and (one.batches == one.length or not tried)
    )


def _epochs(named: Attribution) -> int:
    return len({step.epoch for step in named.steps})


def _batch_size(track: Track, named: Attribution) -> int | None:
    """Samples in a batch: as the training loader was configured, or as its first batch was."""
    trains = {one.loader for one in named.passes if one.is_train}
    sizes = [facts.batch_size for facts in track.loaders if facts.loader in trains and facts.batch_size]
    return next(iter([*sizes, *track.batch_samples]), None)


def _step_phases(named: Attribution) -> tuple[Phase, ...]:
    if named.steady is None:
        return ()
    apart = {"validation", "checkpoint", "first_batch", "startup", "shutdown"}
    steps = [named.steps[i] for i in named.steady.steps]
    totals = {
        name: math.fsum(step.parts.get(name, 0.0) for step in steps) / len(steps)
        for name in get_args(PhaseName)
        if name not in apart
    }
    whole = math.fsum(totals.values())
    return tuple(Phase(name, total, total / whole if whole else 0.0) for name, total in totals.items() if total)


PARTS = {
    "data_wait": "waiting for data",
    "transfer": "copying to the device",
    "sync": "waiting for the device",
    "logging": "logging",
    "gc": "garbage collection",
    "other": "the script's own code",
}
MODEL = "the model's own work"
NOT_REMOVABLE = {MODEL, PARTS["sync"]}
"""Work has to be done somewhere: a wait for the device is where its work is paid, not what it costs."""


def _bound(phases: Sequence[Phase]) -> Bound | None:
    """The largest part of a steady step; forward, loss, backward and optimizer are one part: the model's work."""
    parts: dict[str, list[Phase]] = {}
    for phase in phases:
        parts.setdefault(PARTS.get(phase.name, MODEL), []).append(phase)
    if not parts:
        return None
    part, held = max(parts.items(), key=lambda item: math.fsum(phase.seconds for phase in item[1]))
    share = min(math.fsum(phase.share for phase in held), 1.0)
    gain = None if part in NOT_REMOVABLE or share >= 1 else 1 / (1 - share)
    return Bound(part, share, math.fsum(phase.seconds for phase in held), gain)


# ---- workers ---------------------------------------------------------------------------------------------


def _worker(worker: WorkerTrack, meters: Sequence[Meter]) -> Worker:
    batches = worker.batches
    fetch = math.fsum(batch.fetch_s for batch in batches)
    read = min(math.fsum(batch.blocked_s + batch.system_s for batch in batches), fetch)
    sends = worker.worker is not None
    rss = [meter.rss_bytes[str(worker.pid)] for meter in meters if str(worker.pid) in meter.rss_bytes]
    return Worker(
        pid=worker.pid,
        stages=WorkerStages(
            read=read if batches else None,
            transform=fetch - read if batches else None,
            collate=math.fsum(batch.collate_s for batch in batches) if batches else None,
            send=math.fsum(batch.send_s for batch in batches) if sends and batches else None,
        ),
        cpu_s=math.fsum(batch.user_s + batch.system_s for batch in batches) if batches else None,
        rss_peak_bytes=max(rss, default=None),
    )


# ---- machine ---------------------------------------------------------------------------------------------


def _memory(track: Track, meters: Sequence[Meter]) -> Memory:
    private = [sum(meter.private_bytes.values()) for meter in meters if meter.private_bytes]
    shared = [meter.shm_bytes for meter in meters if meter.shm_bytes is not None]
    device = [meter.device_bytes for meter in meters if meter.device_bytes is not None]
    return Memory(
        host_peak_bytes=max(private, default=None),
        device_peak_bytes=track.device_peak_bytes or max(device, default=None),
        shm_peak_bytes=max(shared) - shared[0] if shared else None,
    )


def _device(track: Track, named: Attribution, meters: Sequence[Meter]) -> Device:
    step_s = statistics.median(track.device_step_us) / 1e6 if track.device_step_us else None
    if track.device_busy_ns is not None:
        return Device(track.device or "device", track.device_busy_ns / 1e9 / named.wall_s, step_s)
    busy = [meter.device_busy_share for meter in meters if meter.device_busy_share is not None]
    share = math.fsum(busy) / len(busy) if busy and track.device else None
    if share is None and step_s is not None:  # no meter: as far as the marked work of steps goes
        share = min(math.fsum(track.device_step_us) / 1e6 / named.wall_s, 1.0)
    return Device(track.device or "cpu", share, step_s)


def _use(seen: Observation, track: Track) -> MachineUse:
    machine, meters = seen.machine, seen.meters
    workers = {str(worker.pid) for worker in seen.workers if worker.worker is not None}
    cores = min(machine.cores, machine.quota_cores or machine.cores)
    running = [meter.running for meter in meters if meter.running is not None]

    def cpu(wanted: set[str] | None) -> float | None:
        used = _cpu_s(meters, wanted)
        span = (meters[-1].time_ns - meters[0].time_ns) / 1e9 if len(meters) > 1 else 0.0
        return used / span / cores if span and used is not None else None

    return MachineUse(
        cores=machine.cores,
        quota_cores=machine.quota_cores,
        ram_bytes=machine.ram_bytes,
        cpu_share=cpu(None),
        main_cpu_share=cpu({str(track.pid)}),
        workers_cpu_share=cpu(workers) if workers else None,
        running_mean=math.fsum(running) / len(running) if running else None,
        throttled_s=_grown(meters, "throttled_s"),
        disk_read_bytes_per_s=_rate(meters, "disk_read_bytes"),
        disk_write_bytes_per_s=_rate(meters, "disk_write_bytes"),
        net_received_bytes_per_s=_rate(meters, "net_received_bytes"),
        net_sent_bytes_per_s=_rate(meters, "net_sent_bytes"),
        stolen_share=stolen_share(meters),
    )


def stolen_share(meters: Sequence[Meter]) -> float | None:
    """Of the core time that was wanted on this machine: what the host of a virtual machine gave to others."""
    busy_s, stolen_s = _grown(meters, "busy_s"), _grown(meters, "stolen_s")
    if busy_s is None or stolen_s is None:
        return None
    return stolen_s / (busy_s + stolen_s) if busy_s + stolen_s > 0 else 0.0


def _cpu_s(meters: Sequence[Meter], wanted: set[str] | None) -> float | None:
    """CPU seconds of these processes between the first meter and the last; each counts what it used meanwhile."""
    first: Mapping[str, float] = meters[0].cpu_s if meters else {}
    last: dict[str, float] = {}
    for meter in meters:
        last.update(meter.cpu_s)
    chosen = [pid for pid in last if wanted is None or pid in wanted]
    return math.fsum(last[pid] - first.get(pid, 0.0) for pid in chosen) if chosen else None


def _grown(meters: Sequence[Meter], name: str) -> float | None:
    values = [value for meter in meters if (value := getattr(meter, name)) is not None]
    return float(values[-1] - values[0]) if len(values) > 1 else None


def _rate(meters: Sequence[Meter], name: str) -> float | None:
    grown = _grown(meters, name)
    span = (meters[-1].time_ns - meters[0].time_ns) / 1e9 if len(meters) > 1 else 0.0
    return grown / span if grown is not None and span else None


# ---- notes -----------------------------------------------------------------------------------------------


def _notes(seen: Observation, track: Track, named: Attribution) -> tuple[str, ...]:
    """What a reader must know about how this run was observed."""
    notes = []
    for loader in sorted({cut.loader for cut in track.cuts}):
        cuts = [cut for cut in track.cuts if cut.loader == loader]
        of = f" of {cuts[0].length}" if cuts[0].length else ""
        seen_of = f"{cuts[0].batches + cuts[0].aside}{of}"
        notes.append(f"loader {loader}: {counted(len(cuts), 'epoch')} ended early, after {seen_of} batches")
    if seen.ended_by_doctor:
        notes.append("the run was ended when enough had been seen")
    saved = [note.partition(": ")[2] for note in track.notes]
    if saved:
        notes.append(f"torch.save was timed; your checkpoints are untouched: {', '.join(saved)}")
    if track.made and not seen.whole:
        some = ", ".join(track.made[:3]) + (" …" if len(track.made) > 3 else "")  # noqa: PLR2004  a few are enough
        shortened = "; they are a shortened run's" if track.cuts or seen.ended_by_doctor else ""
        notes.append(
            f"the script itself wrote {counted(max(track.made_count, len(track.made)), 'new file')}{shortened}: {some}"
        )
    if named.steps and not any(one.is_train for one in named.passes):
        notes.append("no DataLoader trained; data_wait is the gap before the forward pass")
    if seen.interrupted:
        notes.append("the run was interrupted; this is what was seen until then")
    others = [other for other in seen.tracks if other.pid != track.pid and other.rank is not None]
    if others:
        notes.append(f"{len(others) + 1} ranks trained; this is rank {track.rank}")
    return (*notes, *seen.trouble)


def feeder(loaders: Sequence[LoaderWait]) -> LoaderFacts | None:
    """The loader that training depends on: where several bring about as many batches, the one most waited for."""
    trains = [one for one in loaders if one.role == "train"]
    most = max((one.batches for one in trains), default=0)
    rivals = [one for one in trains if one.batches >= RIVALS * most]
    return max(rivals, key=lambda one: one.wait_s).facts if rivals else None

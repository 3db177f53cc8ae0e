"""Causes in how batches reach the loop: workers, their start, their number, their memory, their transport."""

from itertools import pairwise

from stoker.attribute.steady import quantile
from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import IDLE_CORES, REACH, Facts
from stoker.diagnose.production import Production
from stoker.records.diagnosis import Finding
from stoker.records.observed import Track

SPEED_UP = 1.12
"""What another number of workers or threads must bring on the same machine, minutes apart."""
MORE_CPU = 1.5
"""Processor time for a batch that more workers take: beyond what they take from each other's caches."""
BLOCKED = 0.2
"""Of making: what workers must wait for files and sockets before another one finds a core to work on meanwhile."""
SENT_ARRAY_S = 0.8e-3
"""To send and to receive one array or tensor of a batch: the sum of what `predict.pipeline` charges for both, which
this room may not import."""
REFUSED, BUS_ERROR = "unable to allocate shared memory", "bus error"
"""Torch's words for a /dev/shm that is full, and the kernel's, which has them for a mapped file cut short as well."""
OWN_SHM_BYTES = 1 << 30
"""A container's /dev/shm is smaller (64 MiB if nobody asks for more), a machine's own larger: half of its memory."""
IN_FLIGHT = 0.8
"""Share of /dev/shm that batches in flight may fill before it counts as small."""
MANY_OBJECTS, MANY_BYTES = 1000, 16 << 20
"""Objects pickled one by one, and bytes through a pipe instead of shared memory, that make transport visible."""
GROWTH_BYTES_PER_S, GROWTH_LEAST_BYTES = 1 << 20, 24 << 20
"""Private memory of one worker: how fast and how much it must grow."""
BUFFERS = 50
"""Batches on their way, and what an allocator keeps of them: growth below is no leak."""
MOSTLY, LARGE_BYTES = 0.5, 1 << 20
"""Of a batch that is copied into new shared memory: the share that this takes, and its size."""
IN_TIME = 0.6
"""Making, of the time from one batch to the next: below, workers are done in time and it is the way that takes long."""
MOVING = 0.3
"""Sending or receiving a batch, of the time from one batch to the next: from here on it is seen without counting."""
THROTTLED = 0.02
"""Seconds held back in a second; other processes that use the cores make it less than it would be alone."""


def too_few_workers(facts: Facts) -> Finding | None:
    """Idle cores while the loop waits."""
    made, demand = facts.real, facts.demand_cores
    if not facts.is_data_bound_alone or made is None or demand is None or made.blocked_share > 0.5:  # noqa: PLR2004
        return None
    idle, few = facts.cores - demand, facts.workers < facts.cores
    if idle < IDLE_CORES or not (few or _wait_in_turn(facts, made)):
        return None
    make_s = made.net_s * made.samples
    if facts.workers:
        gain = facts.data_gain(facts.workers / facts.cores if few else demand / facts.cores)
    else:  # made beside the loop instead of in it; the loop takes a part of one core
        make_all_s = (facts.loader_s or facts.wait_s) + _arrays(facts) * SENT_ARRAY_S
        cpu_s = made.mean_cpu_s * made.samples / facts.cores  # of all threads: a library may have its own
        made_s = max(facts.seen_making_s - facts.ordering_s, facts.made_s or 0.0)  # the sampler stays where it is
        least_s = max(facts.without_data_s, facts.step_s - REACH * made_s)
        gain = facts.step_gain(max(make_all_s / max(facts.cores - 0.5, 1.0), cpu_s, least_s))
    off = facts.off("cores", "as is")
    measured = facts.own_rate_ratio("cores") if off < noise.BLIND and few else None
    if (measured is not None and measured < SPEED_UP) or gain < GAIN:
        return None
    return finding(
        "too-few-workers",
        ("workers", float(facts.workers), ""),
        ("cores idle while waiting", idle, ""),
        ("making a batch", make_s, "s"),
        ("rate with as many workers as cores", measured, "ratio"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(measured, 1.0, off) if measured is not None else _unrated(facts),
    )


def _wait_in_turn(facts: Facts, made: Production) -> bool:
    """True if there is a worker for each core, all are at it all the time, and a part of that is waiting for data."""
    return made.blocked_share > BLOCKED and facts.making_share == 1 and bool(facts.workers)


def _arrays(facts: Facts) -> int:
    """Arrays in a batch that the loop makes itself, and a worker would have to send."""
    return dict(facts.track.batch_arrays).get(facts.facts.loader, 0) if facts.facts else 0


def _unrated(facts: Facts) -> float:
    """Without workers there is nothing to compare; with some, what was not tried is not known."""
    return noise.UNTRIED if facts.workers else noise.CERTAIN


def too_many_workers(facts: Facts) -> Finding | None:
    """As many workers as cores are faster than what is set."""
    rate, spent = facts.rate_ratio("cores"), facts.cpu_ratio("cores") or 0.0
    if not facts.is_data_bound or facts.workers <= facts.cores or not rate:
        return None
    if facts.real is not None and facts.real.blocked_share > 0.5:  # noqa: PLR2004  they wait, they do not compete
        return None
    measured = max(rate, spent if spent >= MORE_CPU else 0.0)  # others may have had the cores, but not done its work
    if measured < SPEED_UP:
        return None
    whole_s = min(facts.loader_s or facts.wait_s, facts.wall_step_s)  # rates are of all that a loader does
    gain = max(facts.data_gain(1 / measured), facts.loader_gain(whole_s / measured))
    if gain < GAIN:
        return None
    return finding(
        "too-many-workers",
        ("workers", float(facts.workers), ""),
        ("cores", facts.cores, ""),
        ("rate with as many as there are cores", rate, "ratio"),
        ("processor time for a batch, of that with as many", spent or None, "ratio"),
        ("waiting for a core, of making", _queued_share(facts), "share"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(measured, 1.0, facts.off("cores", "as is")),
    )


def _queued_share(facts: Facts) -> float | None:
    return facts.real.queued_s / facts.real.wall_s if facts.real and facts.real.wall_s else None


def thread_oversubscription(facts: Facts) -> Finding | None:
    """One thread in each worker is faster, or as many threads of the model's as there are cores."""
    if (crowded := _crowded_model(facts)) is not None:
        return crowded
    measured, demand = facts.rate_ratio("threads"), facts.demand_cores
    if not facts.is_data_bound or measured is None or measured < SPEED_UP:
        return None
    if demand is not None and demand < facts.cores / 2:  # nobody competes where cores are idle
        return None
    threads = max((row.threads for rows in facts.benches.values() for row in rows), default=0)
    gain = facts.data_gain(1 / measured)
    if gain < GAIN:
        return None
    return finding(
        "thread-oversubscription",
        ("threads in each worker", float(threads) or None, ""),
        ("workers", float(facts.workers), ""),
        ("cores", facts.cores, ""),
        ("rate with one thread in each worker", measured, "ratio"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(measured, 1.0, facts.off("threads", "as is")),
    )


def _crowded_model(facts: Facts) -> Finding | None:
    """Steps on ready batches, as they are and with no more threads than cores, in turns."""
    as_is = [one.seconds / one.steps for one in facts.probes.replays if one.steps and not one.known]
    fewer = [one.seconds / one.steps for one in facts.probes.fewer if one.steps]
    if not as_is or not fewer or facts.probes.threads is None:
        return None
    now_s, then_s = quantile(as_is, 0.5), quantile(fewer, 0.5)
    step_s = max(facts.wall_step_s, now_s)
    gain = step_s / max(step_s - (now_s - then_s), then_s)
    if now_s < SPEED_UP * then_s or gain < GAIN:
        return None
    return finding(
        "thread-oversubscription",
        ("threads of torch in the main process", float(facts.probes.threads), ""),
        ("cores", facts.cores, ""),
        ("a step on ready batches", now_s, "s"),
        ("with as many threads as cores", then_s, "s"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.likely(now_s, then_s, max(noise.error(as_is), noise.error(fewer))),
    )


def cpu_quota(facts: Facts) -> Finding | None:
    """The control group holds the run back."""
    container = facts.probes.container
    if container is None or container.quota_cores is None or not container.throttled_s or not container.seconds:
        return None
    share = min(container.throttled_s / container.seconds, 0.9)
    if share < THROTTLED or container.quota_cores >= facts.seen.machine.cores:
        return None
    most = facts.seen.machine.cores / container.quota_cores
    # A group that was held back while its loader was tried says little of that: what real steps waited does.
    waits = facts.waits or (facts.is_slower and facts.wait_s > MOSTLY * facts.step_s)
    gain = min(facts.potential if waits else 1 / (1 - share), most)
    if gain < GAIN or not (waits or facts.device_step_s is None):
        return None
    return finding(
        "cpu-quota",
        ("quota", container.quota_cores, "cores"),
        ("cores that can be seen", float(facts.seen.machine.cores), ""),
        ("held back", container.throttled_s, "s"),
        ("of", container.seconds, "s"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.likely(share, THROTTLED, noise.LEAST),  # the kernel counts, however much steps differ
    )


def out_of_shm(track: Track) -> Finding | None:
    """A worker got no shared memory, and the run ended. After a bus error only a small /dev/shm is to blame."""
    for failed in track.no_batches:
        text = failed.text.lower()
        refused = REFUSED in text
        if failed.shm_bytes is not None and (refused or (BUS_ERROR in text and failed.shm_bytes < OWN_SHM_BYTES)):
            return finding(
                "shm-small",
                ("shared memory there is", float(failed.shm_bytes), "B"),
                ("of it free after a worker had failed", _as_float(failed.shm_free), "B"),
                ("it failed with", "no space left" if refused else "a bus error", ""),
                gain=None,
                off=noise.LEAST,
                sure=noise.CERTAIN if refused else noise.UNTRIED,
            )
    return None


def _as_float(value: int | None) -> float | None:
    return None if value is None else float(value)


def shm_small(facts: Facts) -> Finding | None:
    """Free /dev/shm against the bytes in flight."""
    if (fatal := out_of_shm(facts.track)) is not None:
        return fatal
    container, made = facts.probes.container, facts.real
    if container is None or not container.shm_bytes or made is None or facts.facts is None or not facts.workers:
        return None
    size = max(made.sent_bytes, made.pickled_bytes) * made.samples
    in_flight = size * facts.workers * (facts.facts.prefetch_factor or 2)
    if in_flight < IN_FLIGHT * container.shm_bytes or not facts.waits:
        return None
    through_pipe = made.pickled_bytes > 0.5 * made.sent_bytes
    return finding(
        "shm-small",
        ("shared memory there is", float(container.shm_bytes), "B"),
        ("bytes in flight", in_flight, "B"),
        ("went through the pipe instead", "yes" if through_pipe else None, ""),
        gain=facts.loader_gain(0.0),
        off=facts.data_off,
        sure=noise.likely(in_flight, IN_FLIGHT * container.shm_bytes, noise.LEAST),
    )


def ipc(facts: Facts) -> Finding | None:
    """Workers are done, the loop still waits; or all they do is to put batches where the loop can get them."""
    made = facts.real
    if not facts.waits or made is None or not facts.workers or not facts.loader_s:
        return None
    if (shared := _shared(facts, made)) is not None:
        return shared
    made_s = facts.made_s or 0.0
    received_s = facts.received_s
    objects, size = made.tensors * made.samples, made.pickled_bytes * made.samples
    if made_s > IN_TIME * facts.loader_s:
        return None
    moved_s = max(received_s, made.send_s * made.samples / facts.workers)
    if objects < MANY_OBJECTS and size < MANY_BYTES and moved_s < MOVING * facts.loader_s:
        return None
    gain = facts.loader_gain(made_s)
    if gain < GAIN:
        return None
    return finding(
        "ipc",
        ("making a batch, all workers together", made_s, "s"),
        ("from one batch to the next at the loop", facts.loader_s, "s"),
        ("sending it", made.send_s * made.samples or None, "s"),
        ("receiving it, on the main thread", received_s or None, "s"),
        ("arrays in a batch", objects, ""),
        ("pickled bytes in a batch", size, "B"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(IN_TIME * facts.loader_s, max(made_s, 1e-9), facts.off("made", "loader")),
    )


def _shared(facts: Facts, made: Production) -> Finding | None:
    """Samples are ready, and the kernel's time for new shared memory is what a batch costs."""
    in_kernel = made.collate_share > MOSTLY and made.system_s > MOSTLY * made.cpu_s
    size, gain = made.sent_bytes * made.samples, facts.data_gain(1 - made.collate_share)
    if not (facts.probes.default_collate and in_kernel) or size < LARGE_BYTES or gain < GAIN:
        return None
    return finding(
        "ipc",
        ("copying a batch into shared memory", made.collate_s * made.samples, "s"),
        ("of the time to make it", made.collate_share, "share"),
        ("of its CPU time in the kernel", made.system_s / made.cpu_s, "share"),
        ("bytes of a batch", size, "B"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(made.collate_share, MOSTLY, facts.off("made")),
    )


# ---- starts ------------------------------------------------------------------------------------------------


def worker_respawn(facts: Facts) -> Finding | None:
    """The first batch of every epoch is late, and other processes make it."""
    loader = facts.facts
    if loader is None or not facts.workers or loader.persistent_workers:
        return None
    passes = [one for one in facts.named.passes if one.is_train and one.batches and one.loader == loader.loader]
    starts = len({worker.pid for worker in facts.makers})
    if len(passes) < 2 or starts <= facts.workers or facts.epochs < 2:  # noqa: PLR2004
        return None
    make_s = facts.real.wall_s * facts.real.samples if facts.real else 0.0
    first_s = quantile([one.first_batch_s for one in passes[1:]], 0.5)
    retire_s = quantile([one.retire_s for one in passes], 0.5)
    lost_s = max(first_s - make_s, 0.0) + retire_s
    gain = facts.epoch_gain(lost_s)
    if gain is None or gain < GAIN:
        return None
    return finding(
        "worker-respawn",
        ("first batch of an epoch", first_s, "s"),
        ("a full epoch", facts.epoch_s, "s"),
        ("worker processes seen", float(starts), ""),
        ("epochs", float(len(passes)), ""),
        gain=gain,
        off=noise.error([one.first_batch_s for one in passes[1:]]),
    )


def dataset_pickle(facts: Facts) -> Finding | None:
    """Pickled size and time of the data set, before the very first batch."""
    probes, loader = facts.probes, facts.facts
    if probes.pickled_bytes is None or probes.pickle_s is None or loader is None:
        return None
    starts = max(len(facts.makers) // max(facts.workers, 1), 1)
    unpickled = [w.unpickle_s for w in facts.seen.workers if w.unpickle_s is not None]
    lost_s = probes.pickle_s / starts + max(unpickled, default=0.0)
    wall = facts.named.wall_s
    first = next(iter(facts.said.first_batch_s), None)
    gain = wall / max(wall - lost_s, 0.05 * wall)
    if gain < GAIN:
        return None
    return finding(
        "dataset-pickle",
        ("pickled", float(probes.pickled_bytes), "B"),
        ("pickling and unpickling at the start", lost_s, "s"),
        ("first batch of the run", first, "s"),
        ("start method", loader.start_method, ""),
        gain=gain,
        off=noise.LEAST,
    )


def ram_growth(facts: Facts) -> Finding | None:
    """Slope of private memory of each worker."""
    slopes = []
    for worker in facts.makers:
        if worker.worker is None:
            continue
        points = [(row.end_ns / 1e9, float(row.private_bytes)) for row in worker.batches if row.private_bytes]
        slope = _slope(points)
        if slope is not None:
            slopes.append(slope)
    if not slopes:
        return None
    per_s = quantile([slope for slope, _ in slopes], 0.5)
    grown = quantile([grown for _, grown in slopes], 0.5)
    batch_bytes = facts.real.sent_bytes * facts.real.samples if facts.real else 0.0
    if per_s < GROWTH_BYTES_PER_S or grown < max(GROWTH_LEAST_BYTES, BUFFERS * batch_bytes):
        return None
    return finding(
        "ram-growth",
        ("each worker grows by", per_s, "B/s"),
        ("grown while watched", grown, "B"),
        ("workers", float(facts.workers), ""),
        gain=None,
        off=noise.LEAST,
        sure=noise.likely(per_s, GROWTH_BYTES_PER_S, noise.error([slope for slope, _ in slopes])),
    )


def _slope(points: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Bytes a second and bytes in all while memory creeps; a jump is a table that was made, not a leak."""
    if len(points) < 3:  # noqa: PLR2004
        return None
    grown = points[-1][1] - points[0][1]
    late = points[-1][1] - _at(points[0][0] + (1 - LATE) * (points[-1][0] - points[0][0]), points)
    falls = sum(max(before - after, 0.0) for (_, before), (_, after) in pairwise(points))
    if late < STILL * grown or falls > FALLS * grown:
        return None
    jump = max(after - before for (_, before), (_, after) in pairwise(points))
    if grown <= 0 or jump > ONE_JUMP * grown:
        return None
    full_s = next(time_s for time_s, size in points if size - points[0][1] >= 0.95 * grown)
    return grown / max(full_s - points[0][0], 1e-9), grown


def _at(time_s: float, points: list[tuple[float, float]]) -> float:
    """The size at this time, on a line between the two looks around it."""
    for (from_s, before), (to_s, after) in pairwise(points):
        if time_s <= to_s:
            return before + (after - before) * (time_s - from_s) / max(to_s - from_s, 1e-9)
    return points[-1][1]


ONE_JUMP = 0.75
LATE, STILL = 1 / 3, 0.15
"""The last part of the time, and the share of all growth that must come in it: once a worker has touched all of its
data set it grows no more …"""
FALLS = 0.2
"""… and what memory may fall in between, as a share of it: buffers come and go, what leaks only comes."""


RULES = (
    shm_small,
    cpu_quota,
    thread_oversubscription,
    too_many_workers,
    ipc,
    worker_respawn,
    dataset_pickle,
    too_few_workers,
    ram_growth,
)

"""Causes in how the bytes of a sample are read: order, amount, latency, bandwidth, first touch."""

import math

from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import Facts
from stoker.diagnose.making import BY_HAND_GAIN, files_shared, gap, place, reading_share
from stoker.diagnose.production import Production, production
from stoker.records.diagnosis import Finding
from stoker.records.probes import Cold

MOSTLY = 0.5
AMPLIFIED = 4.0
"""Bytes read for each byte used; below, headers and rounding up explain it."""
THRASHED = 2.0
"""Shuffled against sequential, in the same data."""
SCALES, FLAT = 1.5, 1.3
"""Throughput with twice the concurrency: above it scales, below it does not."""
WARMED = 1.5
"""First against second touch."""


def shuffle_thrash(facts: Facts) -> Finding | None:
    """The same data in sequence, many times faster."""
    fresh, sequential, second = facts.bench("fresh"), facts.bench("sequential"), facts.bench("second")
    order = facts.probes.indices_in_sequence
    if not facts.is_data_bound or fresh is None or sequential is None or (order is not None and order > MOSTLY):
        return None
    touched_s = min(fresh.net_s, second.net_s) if second else fresh.net_s  # a first touch is another cause
    ratio = touched_s / max(sequential.net_s, 1e-9)
    if ratio < THRASHED or fresh.net_s - sequential.net_s < 20e-6:  # noqa: PLR2004  a cache line, not a file
        return None
    gain = facts.data_gain(1 / ratio)
    if gain < GAIN or not (_reads_more(fresh, sequential) or _slow_again(facts, sequential)):
        return None
    return finding(
        "shuffle-thrash",
        ("shuffled against sequential", ratio, "ratio"),
        ("files opened for one sample", fresh.opens or None, ""),
        ("bytes read for one sample", fresh.taken_bytes or None, "B"),
        ("bytes of one sample", fresh.result_bytes, "B"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(ratio, THRASHED, facts.off("fresh", "sequential")),
        place=place(facts),
    )


def _reads_more(fresh: Production, sequential: Production) -> bool:
    """True if random order opens or reads more than neighbours do."""
    opens, taken = fresh.opens + fresh.requests, fresh.taken_bytes
    return opens > THRASHED * (sequential.opens + sequential.requests) + 0.1 or taken > (
        THRASHED * sequential.taken_bytes + fresh.result_bytes
    )


def _slow_again(facts: Facts, sequential: Production) -> bool:
    """True if the same samples in the same random order are slow a second time too: it was not just their first."""
    again = facts.bench("again")
    return again is None or again.net_s > THRASHED * sequential.net_s


def read_amplification(facts: Facts) -> Finding | None:
    """Bytes read ÷ bytes used, where reading or working on them takes the time."""
    fresh, made = facts.bench("fresh"), facts.real
    if not facts.is_data_bound or fresh is None or made is None or not fresh.result_bytes:
        return None
    read = max(fresh.taken_bytes, made.read_bytes + made.net_bytes)  # pages that came once are no habit
    factor = read / fresh.result_bytes
    sequential = facts.bench("sequential")
    if sequential is not None and sequential.taken_bytes * THRASHED < read and shuffle_thrash(facts) is not None:
        return None  # in order there is far less of it: then the order is the cause
    reading = max(reading_share(made), reading_share(fresh))
    shared = files_shared(facts)
    if factor < AMPLIFIED or (reading < MOSTLY and not shared):
        return None
    kept = 0.0 if shared else 1 - reading * (1 - 1 / factor)  # what is done to the unused part goes with it
    gain = facts.data_gain(kept)
    if gain < GAIN:
        return None
    return finding(
        "read-amplification",
        ("bytes read for each byte used", factor, "ratio"),
        ("bytes read for one sample", read, "B"),
        ("bytes of one sample", fresh.result_bytes, "B"),
        ("reading, of the time to make a batch", reading, "share"),
        ("different samples read the same file", "yes" if shared else None, ""),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(factor, AMPLIFIED, facts.off("fresh")),
        place=place(facts),
    )


# ---- waiting for the data ----------------------------------------------------------------------------------


def _speed_up(facts: Facts) -> float | None:
    """Throughput as it is, or with more workers, against one worker: measured concurrency."""
    fresh = facts.bench("fresh")
    if fresh is None or facts.real is None:
        return None
    one_s = fresh.wall_s * facts.real.samples  # where samples take long, a bench makes smaller batches
    if facts.workers > 1 and facts.loader_s:
        return one_s / facts.loader_s / (facts.workers / 2)  # brought to twice the concurrency
    more_s = facts.rate_s("cores")
    as_is_s = facts.rate_s("as is")
    return as_is_s / more_s if more_s and as_is_s else one_s / more_s if more_s else None


def _waits(facts: Facts) -> Production | None:
    """The making of batches, if it mostly waits for what it reads."""
    fresh, made = facts.bench("fresh"), facts.real
    if not facts.is_data_bound or made is None:
        return None
    waits = max(made.blocked_share, fresh.blocked_share if fresh else 0.0)
    return made if waits > MOSTLY else None


def request_latency(facts: Facts) -> Finding | None:
    """CPU idle, waiting for answers, and more at a time brings more."""
    if facts.facts is None:
        return _asked_by_hand(facts)
    made = _waits(facts)
    speed_up = _speed_up(facts)
    if made is None or (speed_up is not None and speed_up < FLAT):
        return None
    fresh = facts.bench("fresh") or made
    asked = max(fresh.requests, fresh.opens, made.requests)
    gain = _cold_gain(facts, facts.data_gain(1 - made.blocked_share))
    if gain < GAIN:
        return None
    return finding(
        "request-latency",
        ("waiting for one sample", max(made.blocked_s, fresh.blocked_s), "s"),
        ("CPU for one sample", made.process_cpu_s, "s"),
        ("requests for one sample", asked or None, ""),
        ("bytes for one sample", max(fresh.net_bytes, fresh.read_bytes) or None, "B"),
        ("rate with twice the concurrency", speed_up, "ratio"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(speed_up, FLAT, facts.off("fresh", "loader")) if speed_up is not None else noise.UNTRIED,
        place=place(facts),
    )


def _asked_by_hand(facts: Facts) -> Finding | None:
    """The same in a loop without a loader; whether more at a time would bring more cannot be tried."""
    idle, gain = facts.idle_by_hand, facts.by_hand_gain
    if idle is None or idle <= MOSTLY or gain < BY_HAND_GAIN:
        return None
    return finding(
        "request-latency",
        ("getting a batch, by the loop itself", facts.wait_s, "s"),
        ("of it nobody works", idle, "share"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step", "compute"),
        sure=noise.UNTRIED,
        place=gap(facts),
    )


def io_bandwidth(facts: Facts) -> Finding | None:
    """CPU idle, waiting for bytes, and more at a time brings nothing."""
    made = _waits(facts)
    speed_up = _speed_up(facts)
    if made is None or speed_up is None or speed_up >= FLAT:
        return None
    fresh = facts.bench("fresh") or made
    size = max(made.taken_bytes, fresh.taken_bytes)
    gain = _cold_gain(facts, facts.data_gain(1 - made.blocked_share))
    if gain < GAIN or not facts.loader_s:
        return None
    return finding(
        "io-bandwidth",
        ("bytes a second, all workers together", size * made.samples / facts.loader_s, "B/s"),
        ("rate with twice the concurrency", speed_up, "ratio"),
        ("CPU for one sample", made.process_cpu_s, "s"),
        *_cold_evidence(facts),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(FLAT, speed_up, facts.off("fresh", "loader")),
        place=place(facts),
    )


def _warm_ratio(facts: Facts) -> float | None:
    """First-touch time ÷ second-touch time of a sample, if reading explains the difference."""
    fresh, second = facts.bench("fresh"), facts.bench("second")
    if fresh is not None and second is not None and second.net_s:
        ratio = fresh.net_s / second.net_s
        saved_s = fresh.blocked_s - second.blocked_s
    else:
        made = facts.real or fresh
        saved_s = _dropped_s(facts, made) if made else 0.0
        ratio = made.net_s / max(made.net_s - saved_s, 1e-9) if made else 0.0
        fresh = made
    explained = fresh is not None and saved_s > READING * fresh.net_s
    return ratio if ratio >= WARMED and explained else None


READING = 0.4
"""The share of a first touch that must be saved waiting."""


def cold_read(facts: Facts) -> Cold | None:
    """Files read with their pages dropped, if the kernel really dropped them."""
    found = [facts.probes.cold, *(worker.cold for worker in facts.seen.workers)]
    return next((one for one in found if one is not None and one.disk_bytes > MOSTLY * one.size_bytes), None)


def _dropped_s(facts: Facts, made: Production) -> float:
    """What a sample would save if what it took from storage lay in memory, by files read cold and warm."""
    cold = cold_read(facts)
    if cold is None:
        return 0.0
    each_s = (math.fsum(cold.cold_s) - math.fsum(cold.warm_s)) / cold.size_bytes
    return min(max(each_s, 0.0) * made.disk_bytes, made.blocked_s)


def _cold_evidence(facts: Facts) -> list[tuple[str, float | str | None, str]]:
    cold = cold_read(facts)
    if cold is None:
        return []
    rates = [cold.size_bytes / max(math.fsum(times), 1e-9) for times in (cold.cold_s, cold.warm_s)]
    return [("files read with their pages dropped", rates[0], "B/s"), ("and again", rates[1], "B/s")]


def _cold_gain(facts: Facts, gain: float) -> float:
    """What a gain in the first epoch is worth in all of them, if later ones are warm."""
    ratio = _warm_ratio(facts)
    if ratio is None or facts.epochs < 2:  # noqa: PLR2004
        return gain
    warm_s = max((facts.loader_s or facts.step_s) / ratio, facts.compute_s or 0.0)
    later = facts.epochs - 1
    new_first_s = facts.step_s / gain
    return (facts.step_s + later * warm_s) / (new_first_s + later * min(warm_s, new_first_s))


def cold_cache(facts: Facts) -> Finding | None:
    """First-touch against second-touch reads: in the epochs that were seen, or else by experiment."""
    return _seen_cold(facts) or _tried_cold(facts)


def _seen_cold(facts: Facts) -> Finding | None:
    """The first epoch waited for data, later ones did not."""
    steps: dict[int, list[float]] = {}
    waits: dict[int, list[float]] = {}
    for step in facts.named.steps:
        if not step.is_first:
            steps.setdefault(step.epoch, []).append(step.seconds)
            waits.setdefault(step.epoch, []).append(step.parts.get("data_wait", 0.0))
    if len(steps) < 2 or facts.real is None:  # noqa: PLR2004
        return None
    first, later = min(steps), [value for epoch, values in steps.items() if epoch > min(steps) for value in values]
    first_s, later_s = math.fsum(steps[first]) / len(steps[first]), math.fsum(later) / len(later)
    waited = [value for epoch, values in waits.items() if epoch > first for value in values]
    more_s = math.fsum(waits[first]) / len(waits[first]) - math.fsum(waited) / len(waited)
    rows = sorted((row for worker in facts.makers for row in worker.batches), key=lambda row: row.begin_ns)
    half = max(len(rows) // 4, 1)
    early, late = production(rows[:half]), production(rows[-half:])
    if early is None or late is None or early.blocked_s < WARMED * late.blocked_s or early.blocked_share < 0.3:  # noqa: PLR2004
        return None
    later_s = max(later_s, facts.compute_s or 0.0)  # a host that runs ahead of its device is not faster than it
    gain = 1 + max(more_s, 0.0) / (facts.epochs * later_s)  # what else made the first epoch slow is none of this
    if gain < GAIN:
        return None
    return finding(
        "cold-cache",
        ("a step in the first epoch", first_s, "s"),
        ("a step in later epochs", later_s, "s"),
        ("waiting for one sample at first", early.blocked_s, "s"),
        ("waiting for one sample later", late.blocked_s, "s"),
        *_cold_evidence(facts),
        gain=gain,
        off=noise.together(noise.error(waits[first]) * (1 - 1 / gain), noise.error(later)),
        place=place(facts),
    )


def _tried_cold(facts: Facts) -> Finding | None:
    ratio = _warm_ratio(facts)
    if not facts.is_data_bound or ratio is None or facts.epochs < 2:  # noqa: PLR2004
        return None
    warm_s = max((facts.loader_s or facts.step_s) / ratio, facts.compute_s or 0.0)
    gain = (facts.step_s + (facts.epochs - 1) * warm_s) / (facts.epochs * warm_s)
    if gain < GAIN:
        return None
    second, fresh = facts.bench("second"), facts.bench("fresh")
    return finding(
        "cold-cache",
        ("first touch of a sample", fresh.net_s if fresh else None, "s"),
        ("second touch", second.net_s if second else None, "s"),
        ("epochs", float(facts.epochs), ""),
        *_cold_evidence(facts),
        gain=gain,
        off=facts.data_off,
        place=place(facts),
    )


def keeps_up_when_warm(facts: Facts) -> bool:
    """True if nothing is left of the stall once everything was read: then only the first epoch is slow."""
    ratio = _warm_ratio(facts)
    if ratio is None or not facts.compute_s:
        return False
    return (facts.loader_s or facts.step_s) / ratio < 1.1 * facts.compute_s


RULES = (shuffle_thrash, cold_cache, io_bandwidth, request_latency, read_amplification)

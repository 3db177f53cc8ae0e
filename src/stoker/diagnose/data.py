"""Causes in how a sample comes to be: reading, decoding, tokenising, putting together."""

import math
from itertools import pairwise

from stoker.diagnose.causes import finding
from stoker.diagnose.facts import GAIN, Facts, Production, production
from stoker.records import Finding, Making

SMALL_WORK_S = 400e-6
"""Work per sample below this is mostly Python's own: a call is 50 to 100 ns, indexing an array 100 to 200 ns."""
LONG_CALL_S = 6e-6
"""A call of Python or numpy on a few bytes takes 0.1 to 3 µs; a mean above this means work inside the calls."""
LOOKUP_S = 15e-6
"""What a sample costs that lies ready in memory: one index, one tensor, its part of a collate."""
COPY_BYTES_PER_S = 1e9
"""One core copying small pieces: far below memory speed, so a cautious bound."""
READ_BYTES_PER_S = 4e9
"""Bytes that lie in the page cache, copied once by the kernel and looked at once: a fast machine's figure."""
MOSTLY = 0.5
AMPLIFIED = 4.0
"""Bytes read for each byte used; below, headers and rounding up explain it."""
THRASHED = 2.0
"""Shuffled against sequential, in the same data."""
SCALES, FLAT = 1.5, 1.3
"""Throughput with twice the concurrency: above it scales, below it does not."""
WARMED = 1.5
"""First against second touch."""
SAME = 0.9
AGAIN = 2
"""Files opened a second time, for other samples, that prove that a file holds several."""


def sampler(facts: Facts) -> Finding | None:
    """Time inside the sampler, on the main thread."""
    each_s = facts.ordering_s
    gain = facts.step_gain(facts.step_s - each_s)
    if gain < GAIN:
        return None
    samples = facts.facts.samples if facts.facts else None
    return finding(
        "sampler",
        ("time inside the sampler for a batch", each_s, "s"),
        ("of a step", each_s / facts.step_s, "share"),
        ("samples in the data set", samples, ""),
        gain=gain,
    )


def collate(facts: Facts) -> Finding | None:
    """Collate time alone against `__getitem__` time."""
    made = facts.real
    if not facts.is_data_bound or made is None or facts.probes.default_collate or made.collate_share < MOSTLY:
        return None
    gain = facts.data_gain(1 - made.collate_share)
    if gain < GAIN:
        return None
    return finding(
        "collate",
        ("collate for a batch", made.collate_s * made.samples, "s"),
        ("__getitem__ for the same batch", (made.wall_s - made.collate_s) * made.samples, "s"),
        gain=gain,
        place=_place(facts),
    )


def tokenize(facts: Facts) -> Finding | None:
    """Text in, integers out, on the way to a batch."""
    followed = [m for m in _makings(facts) if m.text_s and m.seconds]
    if not facts.is_data_bound or not followed:
        return None
    best = max(followed, key=lambda making: (making.text_s or 0.0) / making.seconds)
    share = min((best.text_s or 0.0) / best.seconds, 1.0)
    gain = facts.data_gain(1 - share)
    if share < MOSTLY or gain < GAIN or facts.real is None:
        return None
    return finding(
        "tokenize",
        ("tokenising one sample", share * facts.real.net_s, "s"),
        ("of the time to make a batch", share, "share"),
        ("same text, same ids when read again", _same_share(facts), "share"),
        gain=gain,
        place=best.text_place,
    )


def per_item_fetch(facts: Facts) -> Finding | None:
    """Per-sample Python overhead against one sliced read."""
    made, fresh = facts.real, facts.bench("fresh")
    if not facts.is_data_bound or made is None or facts.probes.batched_fetch or made.samples < 8:  # noqa: PLR2004
        return None
    if made.net_s > SMALL_WORK_S or made.blocked_share > MOSTLY or made.opens + made.requests > 0.5:  # noqa: PLR2004
        return None
    size = (fresh.result_bytes if fresh else 0.0) or made.sent_bytes
    if made.read_bytes > AMPLIFIED * max(size, 1.0) or _call_s(facts, made) > LONG_CALL_S:
        return None
    sliced_s = size / COPY_BYTES_PER_S
    gain = facts.data_gain(min(sliced_s / made.net_s, 1.0))
    if gain < GAIN:
        return None
    return finding(
        "per-item-fetch",
        ("Python for one sample", made.net_s, "s"),
        ("the same bytes in one sliced read", sliced_s, "s"),
        ("samples in a batch", made.samples, ""),
        ("bytes of one sample", size, "B"),
        gain=gain,
        place=_place(facts),
    )


def _call_s(facts: Facts, made: Production) -> float:
    """The mean time of a call while a sample is made: short ones are Python's own, long ones do real work."""
    calls = [making.calls / making.samples for making in _makings(facts) if making.calls and making.samples]
    return made.net_s / max(calls) if calls else 0.0


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
    if gain < GAIN:
        return None
    return finding(
        "shuffle-thrash",
        ("shuffled against sequential", ratio, "ratio"),
        ("files opened for one sample", fresh.opens or None, ""),
        ("bytes read for one sample", fresh.read_bytes + fresh.net_bytes or None, "B"),
        ("bytes of one sample", fresh.result_bytes, "B"),
        gain=gain,
        place=_place(facts),
    )


def read_amplification(facts: Facts) -> Finding | None:
    """Bytes read ÷ bytes used, where reading or working on them takes the time."""
    fresh, made = facts.bench("fresh"), facts.real
    if not facts.is_data_bound or fresh is None or made is None or not fresh.result_bytes:
        return None
    read = max(fresh.read_bytes + fresh.net_bytes, made.read_bytes + made.net_bytes)
    factor = read / fresh.result_bytes
    reading = max(_reading_share(made), _reading_share(fresh))
    shared = _files_shared(facts)
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
        place=_place(facts),
    )


def _reading_share(made: Production) -> float:
    """Time in the kernel and waiting for it; at least what the bytes cost at memory speed."""
    if not made.net_s:
        return 0.0
    passed_s = (made.read_bytes + made.net_bytes) / READ_BYTES_PER_S
    return min(max(made.system_s + made.blocked_share * made.net_s, passed_s) / made.net_s, 1.0)


def _files_shared(facts: Facts) -> bool:
    """True if files are opened again for other samples: a file holds more than one of them."""
    opens = again = visited = 0
    for worker in facts.makers:
        rows = worker.batches[1:]  # what a process opens first is its own code
        if rows:
            opened = sum(row.opens for row in rows)
            opens += opened
            again += max(opened - (rows[-1].names - worker.batches[0].names), 0)
            again += sum(row.samples for row in rows if not row.opens)  # served from what another sample opened
            visited += sum(row.samples for row in rows)
    samples = (facts.facts.samples if facts.facts else None) or visited
    each_once = visited <= samples  # no sample can have come twice yet, so a name that did holds several
    return again >= AGAIN and each_once and opens > 0.5 * visited  # a file that is kept is not opened again


# ---- waiting for the data ----------------------------------------------------------------------------------


def _speed_up(facts: Facts) -> float | None:
    """Throughput as it is, or with more workers, against one worker: measured concurrency."""
    fresh = facts.bench("fresh")
    if fresh is None:
        return None
    one_s = fresh.wall_s * fresh.samples
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
        confidence=0.9 if speed_up is not None else 0.6,
        place=_place(facts),
    )


def io_bandwidth(facts: Facts) -> Finding | None:
    """CPU idle, waiting for bytes, and more at a time brings nothing."""
    made = _waits(facts)
    speed_up = _speed_up(facts)
    if made is None or speed_up is None or speed_up >= FLAT:
        return None
    fresh = facts.bench("fresh") or made
    size = max(made.read_bytes + made.net_bytes, fresh.read_bytes + fresh.net_bytes)
    gain = _cold_gain(facts, facts.data_gain(1 - made.blocked_share))
    if gain < GAIN or not facts.loader_s:
        return None
    return finding(
        "io-bandwidth",
        ("bytes a second, all workers together", size * made.samples / facts.loader_s, "B/s"),
        ("rate with twice the concurrency", speed_up, "ratio"),
        ("CPU for one sample", made.process_cpu_s, "s"),
        gain=gain,
        place=_place(facts),
    )


def _warm_ratio(facts: Facts) -> float | None:
    """First-touch time ÷ second-touch time, in a process that did not see the first, if reading explains it."""
    fresh, second = facts.bench("fresh"), facts.bench("second")
    if fresh is None or second is None or not second.net_s:
        return None
    ratio = fresh.net_s / second.net_s
    saved = fresh.blocked_s - second.blocked_s
    return ratio if ratio >= WARMED and saved > 0.4 * fresh.net_s else None


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
    waited_s = math.fsum(waits[first]) / len(waits[first])
    rows = sorted((row for worker in facts.makers for row in worker.batches), key=lambda row: row.begin_ns)
    half = max(len(rows) // 4, 1)
    early, late = production(rows[:half]), production(rows[-half:])
    if early is None or late is None or early.blocked_s < WARMED * late.blocked_s or early.blocked_share < 0.3:  # noqa: PLR2004
        return None
    later_s = max(later_s, facts.compute_s or 0.0)  # a host that runs ahead of its device is not faster than it
    gain = (first_s + (facts.epochs - 1) * later_s) / (facts.epochs * later_s)
    if gain < GAIN or waited_s < first_s - later_s - 0.2 * first_s:
        return None
    return finding(
        "cold-cache",
        ("a step in the first epoch", first_s, "s"),
        ("a step in later epochs", later_s, "s"),
        ("waiting for one sample at first", early.blocked_s, "s"),
        ("waiting for one sample later", late.blocked_s, "s"),
        gain=gain,
        place=_place(facts),
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
        gain=gain,
        place=_place(facts),
    )


def keeps_up_when_warm(facts: Facts) -> bool:
    """True if nothing is left of the stall once everything was read: then only the first epoch is slow."""
    ratio = _warm_ratio(facts)
    if ratio is None or not facts.compute_s:
        return False
    return (facts.loader_s or facts.step_s) / ratio < 1.1 * facts.compute_s


# ---- work --------------------------------------------------------------------------------------------------


def _same_share(facts: Facts) -> float | None:
    """The share of batches that came out the same when they were made a second time."""
    fresh, again = facts.benches.get("fresh", ()), facts.benches.get("again", ())
    pairs = [(a.result_hash, b.result_hash) for a, b in zip(fresh, again, strict=False) if a.result_hash]
    return sum(1 for a, b in pairs if a == b) / len(pairs) if pairs else None


def repeated_work(facts: Facts) -> Finding | None:
    """Same key, same result, and it comes again."""
    same, fresh, again, made = _same_share(facts), facts.bench("fresh"), facts.bench("again"), facts.real
    if not facts.is_data_bound or same is None or same < SAME or made is None or fresh is None or again is None:
        return None
    if facts.epochs < 2 and not _files_shared(facts):  # noqa: PLR2004
        return None
    work_s = min(made.net_s, again.net_s)
    if made.net_s < SMALL_WORK_S or made.blocked_share > MOSTLY or again.net_s < 0.5 * fresh.net_s:
        return None
    lookup_s = LOOKUP_S + fresh.result_bytes / COPY_BYTES_PER_S
    gain = facts.data_gain(min(lookup_s / work_s, 1.0))
    if gain < GAIN:
        return None
    return finding(
        "repeated-work",
        ("batches that came out the same when made again", same, "share"),
        ("work for one sample", work_s, "s"),
        ("the same, looked up", lookup_s, "s"),
        ("epochs", float(facts.epochs), ""),
        ("kept in memory it would take", _kept_bytes(facts, fresh), "B"),
        gain=gain,
        place=_place(facts),
    )


def _kept_bytes(facts: Facts, fresh: Production) -> float | None:
    samples = facts.facts.samples if facts.facts else None
    return samples * fresh.result_bytes if samples else None


def decode_cpu(facts: Facts) -> Finding | None:
    """CPU seconds per sample times the rate come near the cores."""
    made, demand = facts.real, facts.demand_cores
    if not facts.is_data_bound_alone or made is None or demand is None or made.blocked_share > MOSTLY:
        return None
    if demand < facts.cores - 0.4 or made.net_s < SMALL_WORK_S:
        return None
    gain = facts.data_gain(0.0)
    if gain < GAIN:
        return None
    return finding(
        "decode-cpu",
        ("CPU for one sample", made.process_cpu_s, "s"),
        ("cores wanted", demand, ""),
        ("cores there are", facts.cores, ""),
        gain=gain,
        place=_place(facts),
    )


# ---- where -------------------------------------------------------------------------------------------------


def _makings(facts: Facts) -> list[Making]:
    found = list(facts.probes.makings)
    for worker in facts.seen.workers:
        found += worker.makings
    return found


def _place(facts: Facts) -> str | None:
    """The user's function that took most of a batch, below the one that only calls it."""
    calls = [call for making in _makings(facts) for call in making.functions if _is_users(call.file)]
    if not calls:
        return None
    calls.sort(key=lambda call: -call.total_s)
    best = calls[0]
    for outer, inner in pairwise(calls):
        if inner.total_s < 0.8 * outer.total_s:
            break
        best = inner
    return f"{best.file}:{best.line} {best.function}"


def _is_users(file: str) -> bool:
    return bool(file) and "site-packages" not in file and "/lib/python" not in file and "stoker/observe" not in file


RULES = (
    sampler,
    tokenize,
    shuffle_thrash,
    cold_cache,
    io_bandwidth,
    request_latency,
    read_amplification,
    collate,
    per_item_fetch,
    repeated_work,
    decode_cpu,
)

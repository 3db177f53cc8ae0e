"""Causes in how a sample is made once its bytes are there: order, text, decoding, putting together."""

from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import IDLE_CORES, Facts
from stoker.diagnose.logs import beside_steps
from stoker.diagnose.making import BY_HAND_GAIN, files_shared, gap, makings, place, reading_share, same_share
from stoker.diagnose.production import Production
from stoker.records.diagnosis import Finding

SMALL_WORK_S = 400e-6
"""Work per sample below this is mostly Python's own: a call is 50 to 100 ns, indexing an array 100 to 200 ns."""
LONG_CALL_S = 6e-6
"""A call of Python or numpy on a few bytes takes 0.1 to 3 µs; a mean above this means work inside the calls."""
MANY_CALLS = 150
"""Fetching one sample takes some ten calls, with a dict of many fields eighty; more of them are work of its own."""
LOOKUP_S = 15e-6
"""What a sample costs that lies ready in memory: one index, one tensor, its part of a collate."""
COPY_BYTES_PER_S = 1e9
"""One core copying small pieces: far below memory speed, so a cautious bound."""
MOSTLY = 0.5
SAME = 0.9
FEW = 8
"""A batch of fewer samples gains little by one read for all."""


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
        off=facts.off("step", "compute"),
    )


def collate(facts: Facts) -> Finding | None:
    """Collate time alone against `__getitem__` time."""
    made = facts.real
    if (
        not facts.is_data_bound
        or made is None
        or made.collate_share < MOSTLY
        or facts.probes.default_collate is not False
    ):
        return None
    gain = facts.data_gain(1 - made.collate_share)
    if gain < GAIN:
        return None
    return finding(
        "collate",
        ("collate for a batch", made.collate_s * made.samples, "s"),
        ("__getitem__ for the same batch", (made.wall_s - made.collate_s) * made.samples, "s"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(made.collate_share, MOSTLY, facts.off("made")),
        place=place(facts),
    )


def tokenize(facts: Facts) -> Finding | None:
    """Text in, integers out, on the way to a batch or in the loop itself."""
    followed = [m for m in makings(facts) if m.text_s and m.seconds]
    if not facts.is_data_bound or not followed:
        return _tokenized_in_the_loop(facts)
    best = max(followed, key=lambda making: (making.text_s or 0.0) / making.seconds)
    share = min((best.text_s or 0.0) / best.seconds, 1.0)
    gain = facts.data_gain(1 - share)
    if share < MOSTLY or gain < GAIN or facts.real is None:
        return None
    return finding(
        "tokenize",
        ("tokenising one sample", share * facts.real.net_s, "s"),
        ("of the time to make a batch", share, "share"),
        ("same text, same ids when read again", same_share(facts), "share"),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(share, MOSTLY, noise.error([(m.text_s or 0.0) / m.seconds for m in followed])),
        place=best.text_place,
    )


def _tokenized_in_the_loop(facts: Facts) -> Finding | None:
    """Batches are text, and become integers on the main thread; what was seen of one step is at most its own work."""
    inspected = facts.probes.inspection
    if inspected is None or not inspected.text_s:
        return None
    text_s = min(inspected.text_s, sum(facts.step_part(name) for name in ("other", "forward", "loss")))
    gain = facts.host_gain(text_s)
    if gain < GAIN:
        return None
    return finding(
        "tokenize",
        ("tokenising in a step", text_s, "s"),
        ("of a step", text_s / facts.step_s, "share"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.likely(gain, 1.0, facts.off("step")),
        place=inspected.text_place,
    )


def per_item_fetch(facts: Facts) -> Finding | None:
    """Per-sample Python overhead against one sliced read."""
    made, fresh = facts.real, facts.bench("fresh")
    if not facts.is_data_bound or made is None or fresh is None or facts.probes.batched_fetch:
        return None  # a stream has no rows that could be sliced
    if made.samples < FEW or (made.collate_share > MOSTLY and not facts.probes.default_collate):
        return None
    if made.net_s > SMALL_WORK_S or made.blocked_share > MOSTLY or made.opens + made.requests > 0.5:  # noqa: PLR2004
        return None
    size = fresh.result_bytes or made.sent_bytes
    if reading_share(made) > MOSTLY or not _only_fetches(facts, made):
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
        off=facts.data_off,
        sure=noise.likely(SMALL_WORK_S, made.net_s, facts.off("made")),
        place=place(facts),
    )


def _only_fetches(facts: Facts, made: Production) -> bool:
    """True if a sample is made by few short calls: those are Python's own; long ones, or many, do real work."""
    counts = [making.calls / making.samples for making in makings(facts) if making.calls and making.samples]
    return not counts or (max(counts) <= MANY_CALLS and made.net_s / max(counts) <= LONG_CALL_S)


def repeated_work(facts: Facts) -> Finding | None:
    """Same key, same result, and it comes again."""
    same, fresh, again, made = same_share(facts), facts.bench("fresh"), facts.bench("again"), facts.real
    if not facts.is_data_bound or same is None or made is None or fresh is None or again is None:
        return None
    if same < SAME:
        return _repeated_inside(facts, made)
    if facts.epochs < 2 and not files_shared(facts):  # noqa: PLR2004
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
        off=facts.data_off,
        sure=noise.likely(work_s, lookup_s, facts.off("made", "again")),
        place=place(facts),
    )


def _repeated_inside(facts: Facts, made: Production) -> Finding | None:
    """The same where chance comes after the work: most of it is a function that comes to the same for a sample."""
    twice = [one for one in makings(facts) if one.same_s and one.seconds]
    if not twice or facts.epochs < 2 or made.net_s < SMALL_WORK_S or made.blocked_share > MOSTLY:  # noqa: PLR2004
        return None
    best = max(twice, key=lambda one: (one.same_s or 0.0) / one.seconds)
    share = min((best.same_s or 0.0) / best.seconds, 1.0)
    gain = facts.data_gain(1 - share)
    if share < MOSTLY or gain < GAIN:
        return None
    return finding(
        "repeated-work",
        ("of making a sample, in a function that came to the same again", share, "share"),
        ("that function, for one sample", share * made.net_s, "s"),
        ("epochs", float(facts.epochs), ""),
        gain=gain,
        off=facts.data_off,
        sure=noise.likely(share, MOSTLY, noise.error([(one.same_s or 0.0) / one.seconds for one in twice])),
        place=best.same_place,
    )


def _kept_bytes(facts: Facts, fresh: Production) -> float | None:
    samples = facts.facts.samples if facts.facts else None
    return samples * fresh.result_bytes if samples else None


def decode_cpu(facts: Facts) -> Finding | None:
    """CPU seconds per sample times the rate come near the cores."""
    if facts.facts is None:
        return _decoded_by_hand(facts)
    if (prepared := _prepared_by_the_loop(facts)) is not None:
        return prepared
    made, demand = facts.real, facts.demand_cores
    if not facts.is_data_bound_alone or made is None or demand is None or made.blocked_share > MOSTLY:
        return None
    if demand < facts.cores - IDLE_CORES or per_item_fetch(facts) is not None or facts.data_gain(0.0) < GAIN:
        return None
    sure = noise.likely(demand, facts.cores - IDLE_CORES, facts.off("made", "compute"))
    return _decoding(facts, made, demand, sure)


def decoded_beside_idle_cores(facts: Facts) -> Finding | None:
    """Most of a step, where no other cause is worth a change: workers would cost what they bring."""
    made, demand = facts.real, facts.demand_cores
    if facts.facts is None or made is None or demand is None or not facts.is_data_bound_alone:
        return None
    if made.blocked_share > MOSTLY or facts.data_gain(0.0) < 1 / (1 - MOSTLY):
        return None
    return _decoding(facts, made, demand, noise.CERTAIN)


def _decoding(facts: Facts, made: Production, demand: float, sure: float) -> Finding:
    return finding(
        "decode-cpu",
        ("CPU for one sample", made.process_cpu_s, "s"),
        ("cores wanted", demand, ""),
        ("cores there are", facts.cores, ""),
        gain=facts.data_gain(0.0),
        off=facts.data_off,
        sure=sure,
        place=place(facts),
    )


def _decoded_by_hand(facts: Facts) -> Finding | None:
    """The same in a loop without a loader: the thread that trains is busy before the forward pass."""
    idle, gain = facts.idle_by_hand, facts.by_hand_gain
    if idle is None or idle > MOSTLY or gain < BY_HAND_GAIN:
        return None
    return finding(
        "decode-cpu",
        ("getting a batch, by the loop itself", facts.wait_s, "s"),
        ("of it the CPU works", 1 - idle, "share"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step", "compute"),
        place=gap(facts),
    )


def _prepared_by_the_loop(facts: Facts) -> Finding | None:
    """The same where the loop itself works on a batch that has come: lines of the script that start no operation."""
    inspected = facts.probes.inspection
    if inspected is None:
        return None
    others = beside_steps(facts)
    own = [
        line
        for line in facts.named.hot_lines
        if line.phase == "other"
        and (line.file, line.line) not in others
        and f"{line.file}:{line.line}" not in inspected.places
    ]
    seconds = sum(line.share for line in own) * facts.named.wall_s / max(len(facts.named.steps), 1)
    own_s = min(seconds, facts.step_part("other"))
    gain = facts.host_gain(own_s)
    if gain < BY_HAND_GAIN or (facts.main_cpu_s or 0.0) < MOSTLY * (facts.compute_s or facts.step_s):
        return None  # whoever sleeps there, or waits for another process, does not work
    return finding(
        "decode-cpu",
        ("the script's own code on a batch that has come", own_s, "s"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step", "compute"),
        place=f"{own[0].file}:{own[0].line} {own[0].function}",
    )


RULES = (sampler, tokenize, collate, per_item_fetch, repeated_work, decode_cpu)

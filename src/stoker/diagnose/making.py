"""What is known of how a batch is made: by its profile, by its files, and by making it twice."""

from itertools import pairwise

from stoker.diagnose.facts import Facts
from stoker.diagnose.production import Production
from stoker.records.probes import Making

READ_BYTES_PER_S = 4e9
"""Bytes that lie in the page cache, copied once by the kernel and looked at once: a fast machine's figure."""
SLOW_READ_BYTES_PER_S = 0.5e9
"""The same on a slow machine: time in the kernel beyond it is page faults and memory, not reading."""
AGAIN = 2
"""Files opened a second time, for other samples, that prove that a file holds several."""
BY_HAND_GAIN = 1.15
"""What a loop without a loader must lose in the gap before its forward pass: more is in there than getting data."""


def makings(facts: Facts) -> list[Making]:
    """Batches that were made under a profile, or with an eye on text."""
    found = list(facts.probes.makings)
    for worker in facts.seen.workers:
        found += worker.makings
    return found


def gap(facts: Facts) -> str | None:
    """The line in which a loop without a loader gets most of its data."""
    hot = next((line for line in facts.named.hot_lines if line.phase == "data_wait"), None)
    return f"{hot.file}:{hot.line} {hot.function}" if hot else None


def place(facts: Facts) -> str | None:
    """The user's function that took most of a batch, below the one that only calls it."""
    calls = [call for making in makings(facts) for call in making.functions if _is_users(call.file)]
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
    foreign = file.startswith("<") or any(part in file for part in ("site-packages", "/lib/python", "stoker/observe"))
    return bool(file) and not foreign


def same_share(facts: Facts) -> float | None:
    """The share of batches that came out the same when they were made a second time."""
    fresh, again = facts.benches.get("fresh", ()), facts.benches.get("again", ())
    pairs = [(a.result_hash, b.result_hash) for a, b in zip(fresh, again, strict=False) if a.result_hash]
    return sum(1 for a, b in pairs if a == b) / len(pairs) if pairs else None


def files_shared(facts: Facts) -> bool:
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


def reading_share(made: Production) -> float:
    """Time in the kernel and waiting for it; at least what the bytes cost at memory speed."""
    if not made.net_s:
        return 0.0
    passed_s = made.taken_bytes / READ_BYTES_PER_S
    copied_s = min(made.system_s, made.taken_bytes / SLOW_READ_BYTES_PER_S)  # the kernel has other work too
    return min(max(copied_s + made.blocked_share * made.net_s, passed_s) / made.net_s, 1.0)

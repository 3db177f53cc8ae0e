"""What should not wait until a run has ended: one function for each alarm, over a picture of the run. Pure.

An alarm never touches the run. It is raised while its condition holds; who shows it keeps those that are over.
"""

from collections.abc import Callable
from dataclasses import replace

from stoker.records.diagnosis import Evidence
from stoker.records.live import Alarm, AlarmName, Live

LEFT_SHARE = 0.1
"""Memory left of what the run can have. earlyoom, which many machines run, begins to kill at this share."""
FULL_IN_S = 600.0
"""Memory that grows and will be used up within ten minutes: time enough to save a checkpoint and to stop."""
SHM_SHARE = 0.1
"""The same share of /dev/shm; a batch that does not fit there ends its worker with a bus error."""
STALL_S, STALL_STEPS = 30.0, 20.0
"""No movement for this long *and* for this many steps' time. Shorter is what checkpoints and first batches take."""
STARVING = 0.3
"""Share of the last half minute spent waiting for data; beyond it feeding is worth more than any other change here:
without it the same steps would come 1.4 times as fast."""
STARVING_STEPS = 30
"""Before this many steps a wait is warm-up: caches are cold and workers have just begun."""
GRAPHS = 2
"""Graphs compiled within a minute after warm-up; a single one may be the last, smaller batch of an epoch."""
ODD_S = 60.0
"""How long a value that was no number stays an alarm after it was last read."""


def alarms(live: Live) -> tuple[Alarm, ...]:
    """Everything that is wrong at this moment, the worst first; of an ended run, what happened to it."""
    checks = HAPPENED if live.state == "ended" else CHECKS
    return tuple(alarm for check in checks if (alarm := check(live)) is not None)


def carry(
    before: tuple[Alarm, ...], past: tuple[Alarm, ...], now: Live, found: tuple[Alarm, ...]
) -> tuple[tuple[Alarm, ...], tuple[Alarm, ...]]:
    """The alarms of now, each with the time it was first raised, and those that are over: of an ended run all are."""
    since = {alarm.name: alarm.since_s for alarm in before}
    active = tuple(replace(alarm, since_s=since.get(alarm.name, now.elapsed_s)) for alarm in found)
    if now.state == "ended":
        told = {alarm.name for alarm in (*before, *past)}
        return (), (*past, *before, *(alarm for alarm in active if alarm.name not in told))
    names = {alarm.name for alarm in active}
    return active, (*past, *(alarm for alarm in before if alarm.name not in names))


def _alarm(live: Live, name: AlarmName, *evidence: tuple[str, float | str | None, str]) -> Alarm:
    items = tuple(Evidence(what, value, unit) for what, value, unit in evidence if value is not None)
    return Alarm(name, items, live.elapsed_s)


def memory_low(live: Live) -> Alarm | None:
    """Little is left, or what is left will be used up soon."""
    memory = live.memory
    if memory is None or memory.left_bytes is None or memory.limit_bytes is None or live.state == "lost":
        return None
    low = memory.left_bytes < LEFT_SHARE * memory.limit_bytes
    soon = memory.full_in_s is not None and memory.full_in_s < FULL_IN_S
    if not low and not soon:
        return None
    left = ("left", float(memory.left_bytes), "B")
    return _alarm(
        live, "memory-low", left, ("grows by", memory.grows_bytes_per_s, "B/s"), ("full in", memory.full_in_s, "s")
    )


def shm_low(live: Live) -> Alarm | None:
    """Batches on their way from workers fill /dev/shm."""
    memory = live.memory
    if memory is None or memory.shm_used_bytes is None or not memory.shm_limit_bytes or not live.workers.wanted:
        return None
    left = memory.shm_limit_bytes - memory.shm_used_bytes
    if left >= SHM_SHARE * memory.shm_limit_bytes:
        return None
    return _alarm(live, "shm-low", ("left", float(left), "B"), ("of", float(memory.shm_limit_bytes), "B"))


def worker_died(live: Live) -> Alarm | None:
    """A worker is gone without a farewell, or its loader said so."""
    said = next((text for text in live.trouble if "DataLoader worker" in text), None)
    if not live.workers.gone and said is None:
        return None
    pids = ", ".join(map(str, live.workers.gone)) or None
    return _alarm(live, "worker-died", ("pid", pids, ""), ("said", said, ""))


def stall(live: Live) -> Alarm | None:
    """The loop does not move."""
    if live.idle_s is None or live.state != "training":
        return None
    if live.idle_s < max(STALL_S, STALL_STEPS * (live.step_s or 0.0)):
        return None
    return _alarm(live, "stall", ("no step for", live.idle_s, "s"), ("in", live.phase, ""))


def recompiling(live: Live) -> Alarm | None:
    """Graphs are compiled again and again."""
    if live.graphs_lately is None or live.graphs_lately < GRAPHS:
        return None
    count = ("graphs in the last minute", float(live.graphs_lately), "")
    return _alarm(live, "recompiling", count, ("of it spent compiling", live.compile_share, "share"))


def loader_starving(live: Live) -> Alarm | None:
    """The loop waits for data for much of its time."""
    if live.wait_share is None or live.steps < STARVING_STEPS or live.wait_share < STARVING or live.state != "training":
        return None
    return _alarm(live, "loader-starving", ("waiting for data", live.wait_share, "share"))


def not_a_number(live: Live) -> Alarm | None:
    """The script has read a NaN or an infinity, most likely its loss."""
    odd = live.odd
    if odd is None or live.odd_ago_s is None or live.odd_ago_s > ODD_S:
        return None
    return _alarm(live, "not-a-number", ("read", odd.value, ""), ("at", f"{odd.file}:{odd.line}", ""))


def run_lost(live: Live) -> Alarm | None:
    """Nothing has been written for long, and no end was: killed, or the machine went down."""
    if live.state != "lost":
        return None
    return _alarm(live, "run-lost", ("steps until then", float(live.steps), ""))


CHECKS: tuple[Callable[[Live], Alarm | None], ...] = (
    run_lost, not_a_number, worker_died, memory_low, shm_low, stall, recompiling, loader_starving
)  # fmt: skip
HAPPENED = (not_a_number, worker_died)
"""What may have happened between the last look at a run and its end, and ended it."""
MEANINGS: dict[AlarmName, str] = {
    "memory-low": "memory is nearly used up",
    "shm-low": "shared memory is nearly full",
    "worker-died": "a worker has died",
    "stall": "the loop does not move",
    "recompiling": "graphs are compiled again and again",
    "loader-starving": "the loop waits for its data",
    "not-a-number": "a value is no number",
    "run-lost": "the run has ended without a word",
}

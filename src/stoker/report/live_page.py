"""A run while it goes on, in the parts of a page: what is said, three pictures, and tables."""

from collections.abc import Iterator
from typing import Any

from stoker.records.live import Live
from stoker.report import units
from stoker.report.figures import Figure, thinned
from stoker.report.live import alarm_text, epoch_rate, state
from stoker.report.page import Section, Table

Merit = tuple[str, str, str]


def merits(live: Live) -> Iterator[Merit]:
    """The few numbers that matter: name, value, and a word below."""
    yield "state", state(live), units.seconds(live.elapsed_s)
    if live.epochs:
        now = live.epochs[-1]
        of = f" of {live.epochs_planned}" if live.epochs_planned else ""
        yield "epoch", f"{now.number}{of}", f"{now.batches:,}{f' of {now.length:,}' if now.length else ''} steps"
    elif live.steps:
        yield "steps", f"{live.steps:,}", ""
    if live.step_s:
        yield "speed", f"{1 / live.step_s:.3g} it/s", f"{units.seconds(live.step_s)} a step"
    if live.wait_share is not None:
        yield "waits for data", units.share(live.wait_share), "lately"
    if live.device is not None and live.device.busy_share is not None:
        yield "device busy", units.share(live.device.busy_share), live.device.name
    if live.memory is not None:
        full = f", full in {units.seconds(live.memory.full_in_s)}" if live.memory.full_in_s is not None else ""
        yield "memory", units.size(live.memory.used_bytes), f"{units.size(live.memory.left_bytes)} left{full}"
    if live.workers.wanted:
        yield "workers", f"{live.workers.alive} of {live.workers.wanted}", "alive"
    if live.remaining is not None and live.remaining.run_s is not None and live.state == "training":
        yield "time left", units.seconds(live.remaining.run_s), "for the run"
    elif live.remaining is not None and live.remaining.epoch_s is not None and live.state == "training":
        yield "time left", units.seconds(live.remaining.epoch_s), "for the epoch"


def alarms(live: Live) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of now, and those that are over."""
    now = tuple(alarm_text(alarm) for alarm in live.alarms)
    return now, tuple(f"at {units.seconds(alarm.since_s)}: {alarm_text(alarm)}" for alarm in live.past)


def figures(live: Live) -> Iterator[Figure]:
    """The course of the run."""
    from stoker.report.charts import live as charts

    history = live.history
    at = [(f"{one.time_s:.0f} s", one) for one in history]
    yield Figure(
        "live-speed",
        "Speed",
        "Steps a second over the run.",
        charts.speed(history).to_dict(),
        ("at", "steps a second"),
        thinned([(when, "–" if one.steps_per_s is None else f"{one.steps_per_s:.3g}") for when, one in at]),
    )
    yield Figure(
        "live-shares",
        "Waiting and device",
        "Share of the main thread's time spent waiting for data, and of the device's time in which it was busy.",
        charts.shares(history).to_dict(),
        ("at", "waiting for data", "device busy"),
        thinned([(when, units.share(one.wait_share), units.share(one.device_busy_share)) for when, one in at]),
    )
    yield Figure(
        "live-memory",
        "Memory",
        "What the whole run holds; what it could hold, on the machine or in its container, once that is near.",
        charts.held(history).to_dict(),
        ("at", "the run", "left"),
        thinned([(when, units.size(one.used_bytes), units.size(one.left_bytes)) for when, one in at]),
    )


def chart_rows(live: Live) -> dict[str, list[dict[str, Any]]]:
    """New rows for each picture."""
    from stoker.report.charts import live as charts

    history = live.history
    return {
        "live-speed": charts.speed_rows(history),
        "live-shares": charts.share_rows(history),
        "live-memory": charts.memory_rows(history),
    }


def tables(live: Live) -> Section:
    """Epochs, phases and processes."""
    found = []
    if live.epochs:
        found.append(Table("Epochs", ("epoch", "steps", "it/s", "first batch", "waited", "took"), tuple(_epochs(live))))
    if live.phases:
        rows = tuple((one.name.replace("_", " "), units.share(one.share)) for one in live.phases)
        found.append(Table("The loop lately", ("phase", "share"), rows))
    if live.processes:
        found.append(Table("Processes", ("process", "pid", "memory", "CPU"), tuple(_processes(live))))
    return Section("now", "In numbers", tables=tuple(found))


def _epochs(live: Live) -> Iterator[tuple[str, ...]]:
    for one in reversed(live.epochs):
        rate = epoch_rate(one)
        yield (
            str(one.number),
            f"{one.batches:,}" + (f" of {one.length:,}" if one.length else ""),
            "–" if rate is None else f"{rate:.3g}",
            units.seconds(one.first_batch_s),
            units.seconds(one.wait_s),
            units.seconds(one.whole_s if one.whole_s is not None else one.first_batch_s + one.seconds),
        )


def _processes(live: Live) -> Iterator[tuple[str, ...]]:
    for one in live.processes:
        name = one.role if one.number is None else f"{one.role} {one.number}"
        cpu = "–" if one.cpu_share is None else f"{one.cpu_share * 100:.0f} %"
        yield name, str(one.pid), units.size(one.size_bytes), cpu

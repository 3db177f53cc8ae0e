"""A run at one moment: rows for a terminal of any width, or one plain line for a pipe."""

import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from stoker.diagnose.alarms import MEANINGS
from stoker.records.live import Alarm, Live, LiveEpoch, LiveProcess
from stoker.report import units
from stoker.report.findings import short, value

LABEL = 9
BAR, BAR_LEAST = 30, 8
SMALLEST_SHARE = 0.01
MOST_ALARMS = 4
MOST_PAST = 3
SLOW, STAYS_S = ("validation", "checkpoint"), 5.0
"""Phases that are named while they last, and how long any other must last to be named."""


def rows(live: Live, width: int) -> list[Text]:
    """The whole picture, each row within `width` cells: what does not fit is left out, the less important first."""
    found = [_title(live, width)]
    for label, parts in _body(live, width):
        if parts:
            found.append(_fit(label, parts, width))
    alarms = [Text(f"! {alarm_text(alarm)}", style="bold red") for alarm in live.alarms[:MOST_ALARMS]]
    over = [
        Text(f"· at {units.seconds(alarm.since_s)}: {alarm_text(alarm)}", style="yellow")
        for alarm in live.past[-MOST_PAST:]
    ]
    return [*found, *(_cut(text, width) for text in (*alarms, *over))]


def line(live: Live) -> str:
    """The same in one line of plain text."""
    parts = [units.seconds(live.elapsed_s), _epoch(live), *_speed(live)[:1], *_waits(live), *_device(live)]
    parts += [*_memory(live)[:3], *_workers(live), *[f"left: {part}" for part in _left(live)[:2]]]
    if live.state == "starting":
        parts.insert(1, "starting: no step yet")
    return " · ".join(part for part in parts if part)


def ending(live: Live) -> list[str]:
    """What to say once it is over: how it ended, and what it was like."""
    how = state(live)
    done = f"{live.steps:,} steps in {live.epochs[-1].number} epochs" if live.epochs else f"{live.steps:,} steps"
    rates = [rate for epoch in live.epochs if epoch.is_over and (rate := epoch_rate(epoch)) is not None]
    speed = f", {sum(rates) / len(rates):.3g} it/s in the last {len(rates)} epochs" if rates else ""
    said = [f"{how} after {units.seconds(live.elapsed_s)}: {done}{speed}"]
    said += [f"alarm at {units.seconds(alarm.since_s)}: {alarm_text(alarm)}" for alarm in (*live.past, *live.alarms)]
    return said


def alarm_text(alarm: Alarm) -> str:
    """An alarm in a sentence."""
    evidence = ", ".join(f"{item.name} {short(value(item))}".strip() for item in alarm.evidence)
    return printable(f"{MEANINGS[alarm.name]}: {evidence}") if evidence else MEANINGS[alarm.name]


# ---- rows ------------------------------------------------------------------------------------------------


def _title(live: Live, width: int) -> Text:
    said = f" stoker · {printable(live.run)} · {units.seconds(live.elapsed_s)} · {state(live)} "
    text = _cut(Text(f"──{said}", style="bold"), width)
    return text.append("─" * max(width - text.cell_len, 0), style="bold")


def state(live: Live) -> str:
    """What it does, or how it ended."""
    if live.state != "ended":
        stays = live.phase is not None and (live.phase in SLOW or live.phase_s > STAYS_S)
        return live.phase.replace("_", " ") if live.phase and stays and live.state == "training" else live.state
    if live.exit_code is None:
        return "ended"
    if live.exit_code < 0:
        return f"ended by signal {-live.exit_code}"
    return f"ended with code {live.exit_code}"


def _body(live: Live, width: int) -> Iterator[tuple[str, list[str]]]:
    if live.steps:
        yield "epoch", [_bar(live, width), _epoch(live)] if live.epochs else [f"{live.steps:,} steps"]
        yield "speed", _speed(live)
        yield "left", _left(live)
        yield "loop", [*_waits(live), *_phases(live)]
    elif live.state == "starting":
        yield "", ["no step yet"]
    yield "device", _device(live)
    yield "memory", _memory(live)
    yield "process", [*_workers(live), *_processes(live.processes)]


def _epoch(live: Live) -> str:
    if not live.epochs:
        return f"{live.steps:,} steps" if live.steps else ""
    now = live.epochs[-1]
    of = f" of {live.epochs_planned}" if live.epochs_planned else ""
    length = f" of {now.length:,}" if now.length else ""
    return f"epoch {now.number}{of}, {now.batches:,}{length}"


def _bar(live: Live, width: int) -> str:
    now = live.epochs[-1]
    if not now.length or width < 4 * BAR_LEAST:
        return ""
    size = max(min(BAR, width - 50), BAR_LEAST)
    full = min(max(round(now.batches / now.length * size), 0), size)  # a broken record must not take all memory
    return "█" * full + "░" * (size - full)


def epoch_rate(epoch: LiveEpoch) -> float | None:
    """Steps a second of one epoch, without its first batch."""
    return (epoch.batches - 1) / epoch.seconds if epoch.seconds > 0 and epoch.batches > 1 else None


def _speed(live: Live) -> list[str]:
    if not live.step_s:
        return []
    before = [
        f"epoch {epoch.number}: {rate:.3g}"
        for epoch in reversed(live.epochs[:-1])
        if (rate := epoch_rate(epoch)) is not None
    ]
    return [f"{1 / live.step_s:.3g} it/s", f"{units.seconds(live.step_s)} a step", *before]


def _left(live: Live) -> list[str]:
    left = live.remaining
    if left is None or live.state in ("ended", "lost"):
        return []
    parts = []
    if left.epoch_s:
        parts.append(f"epoch {units.seconds(left.epoch_s)}")
    if left.run_s is not None:
        end_s = live.started_s + live.elapsed_s + left.run_s
        parts += [f"run {units.seconds(left.run_s)}", f"until {_when(end_s)}"]
    return parts


def _when(time_s: float) -> str:
    """A time of day, with the date where it is not today."""
    then = time.localtime(time_s)
    pattern = "%H:%M" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(pattern, then)


def _waits(live: Live) -> list[str]:
    return [] if live.wait_share is None else [f"waits for data {units.share(live.wait_share)}"]


def _phases(live: Live) -> list[str]:
    return [
        f"{phase.name.replace('_', ' ')} {units.share(phase.share)}"
        for phase in live.phases
        if phase.name != "data_wait" and phase.share >= SMALLEST_SHARE
    ]


def _device(live: Live) -> list[str]:
    device = live.device
    if device is None:
        return []
    name = printable(device.name)
    busy = f"{name} {units.share(device.busy_share)} busy" if device.busy_share is not None else name
    return [busy, *([units.size(device.used_bytes)] if device.used_bytes else [])]


def _memory(live: Live) -> list[str]:
    memory = live.memory
    if memory is None:
        return []
    parts = [units.size(memory.used_bytes)]
    if memory.left_bytes is not None:
        parts.append(f"{units.size(memory.left_bytes)} left")
    if memory.full_in_s is not None:
        parts.append(f"full in {units.seconds(memory.full_in_s)} (grows {units.size(memory.grows_bytes_per_s)}/s)")
    if memory.shm_used_bytes:
        parts.append(f"shared {units.size(memory.shm_used_bytes)}")
    return parts


def _workers(live: Live) -> list[str]:
    workers = live.workers
    if not workers.wanted and not workers.alive:
        return []
    return [f"{workers.alive} of {workers.wanted} workers" if workers.wanted else f"{workers.alive} workers"]


def _processes(processes: Sequence[LiveProcess]) -> list[str]:
    parts = []
    for one in processes:
        name = one.role if one.number is None else f"{one.role} {one.number}"
        cpu = f" {one.cpu_share * 100:.0f} %" if one.cpu_share is not None else ""
        parts.append(f"{name} {units.size(one.size_bytes)}{cpu}")
    return parts


# ---- width -----------------------------------------------------------------------------------------------


def _fit(label: str, parts: Sequence[str], width: int) -> Text:
    """As many parts as fit; how many do not is said."""
    text = Text(label.ljust(LABEL), style="dim") if label else Text()
    shown = [part for part in parts if part]
    used = text.cell_len
    for i, part in enumerate(shown):
        room = cell_len(f" +{len(shown) - i - 1}") if i + 1 < len(shown) else 0
        gap = " · " if i and not set(shown[i - 1]) <= set("█░") else " " * bool(i)
        if i and used + cell_len(gap + part) + room > width:
            text.append(f" +{len(shown) - i}", style="dim")
            break
        text.append(gap, style="dim")
        text.append(part)
        used = text.cell_len
    return _cut(text, width)


def _cut(text: Text, width: int) -> Text:
    """Never wider: a wrapped row would push everything else away."""
    text.truncate(max(width, 1), overflow="ellipsis")
    return text


def printable(text: str) -> str:
    """Names and errors come from scripts: what would move the cursor or change colours is left out."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

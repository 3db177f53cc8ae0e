from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from diagnose.test_alarms import CASES, HEALTHY
from stoker.diagnose.alarms import MEANINGS, alarms
from stoker.records import Alarm, Evidence, Live, LiveDevice, LiveEpoch, LiveMemory, LiveProcess, Remaining
from stoker.report.live import ending, line, rows

BUSY = replace(
    HEALTHY,
    epochs=(LiveEpoch(1, 100, 100, 1, 10, 1, 12, True), LiveEpoch(2, 40, 100, 0.1, 4, 1, None, False)),
    epochs_planned=10,
    remaining=Remaining(6.0, 120.0),
    device=LiveDevice("NVIDIA A100-SXM4-80GB", 0.87, 31 << 30),
    processes=tuple(LiveProcess(i, "worker", i, 1 << 30, 0.5) for i in range(8)),
)
finite = st.floats(min_value=0, max_value=1e9, allow_nan=False)
size = st.integers(0, 1 << 45)
epochs = st.builds(LiveEpoch, size, size, st.none() | size, finite, finite, finite, st.none() | finite, st.booleans())
evidence = st.builds(Evidence, st.text(max_size=9), st.text(max_size=30) | finite, st.sampled_from(["", "s", "B", "x"]))
alarm = st.builds(Alarm, st.sampled_from(sorted(MEANINGS)), st.lists(evidence, max_size=2).map(tuple), finite)
memory = st.builds(
    LiveMemory, size, st.none() | size, st.none() | size, st.none() | finite, st.none() | finite, size, st.none() | size
)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


def lives() -> st.SearchStrategy[Live]:
    """Pictures of all kinds, with names that a script could have chosen."""
    changes = st.fixed_dictionaries({
        "run": st.text(max_size=40),
        "state": st.sampled_from(["starting", "training", "ended", "lost"]),
        "exit_code": st.none() | st.integers(-64, 255),
        "elapsed_s": finite,
        "steps": size,
        "step_s": st.none() | finite,
        "wait_share": st.none() | st.floats(0, 1),
        "epochs": some(epochs),
        "memory": st.none() | memory,
        "device": st.none() | st.builds(LiveDevice, st.text(max_size=40), st.none() | finite, st.none() | size),
        "alarms": some(alarm),
        "past": some(alarm),
    })  # fmt: skip
    return changes.map(lambda chosen: replace(BUSY, **chosen))


@given(lives(), st.integers(1, 220))
@settings(max_examples=200)
def test_no_row_is_wider_than_the_terminal_and_none_moves_the_cursor(live: Live, width: int) -> None:
    for row in rows(live, width):
        assert cell_len(row.plain) <= width
        assert row.plain.isprintable()


@given(lives())
@settings(max_examples=200)
def test_the_plain_line_and_the_end_are_plain(live: Live) -> None:
    for text in (line(live), *ending(live)):
        assert text.isprintable()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_most_important_is_there_at_every_width(width: int) -> None:
    shown = "\n".join(row.plain for row in rows(BUSY, width))
    for part in ("epoch 2 of 10, 40 of 100", "10 it/s", "waits for data 2.0 %", "87.0 % busy", "12.0 GiB left"):
        assert part in shown
    for part in ("4 of 4 workers", "run 2.0 min", "worker 0 1.0 GiB"):
        assert part in shown


def test_a_wide_terminal_shows_more() -> None:
    assert len("".join(row.plain for row in rows(BUSY, 200))) > len("".join(row.plain for row in rows(BUSY, 60)))


@pytest.mark.parametrize("name", CASES)
def test_every_alarm_is_said_in_words(name: str) -> None:
    live = replace(CASES[name][1], alarms=alarms(CASES[name][1]))
    assert any(row.plain.startswith("! ") for row in rows(live, 80))


def test_a_name_cannot_change_the_terminal() -> None:
    (alarm,) = alarms(CASES["not-a-number"][1])
    bad = replace(alarm, evidence=(Evidence("at", "\x1b[2J\x07evil.py\n\r:3", ""),))
    live = replace(BUSY, run="\x1b]0;title\x07", alarms=(bad,))
    text = "".join(row.plain for row in rows(live, 200)) + line(live) + "".join(ending(live))
    assert "\x1b" not in text
    assert "\n" not in text

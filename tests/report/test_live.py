from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from diagnose.test_alarms import CASES, HEALTHY
from stoker.diagnose.alarms import alarms
from stoker.records import Evidence, Live, LiveDevice, LiveEpoch, LiveProcess, Remaining
from stoker.report.live import ending, line, rows

BUSY = replace(
    HEALTHY,
    epochs=(LiveEpoch(1, 100, 100, 1, 10, 1, 12, True), LiveEpoch(2, 40, 100, 0.1, 4, 1, None, False)),
    epochs_planned=10,
    remaining=Remaining(6.0, 120.0),
    device=LiveDevice("NVIDIA A100-SXM4-80GB", 0.87, 31 << 30),
    processes=tuple(LiveProcess(i, "worker", i, 1 << 30, 0.5) for i in range(8)),
)
finite = st.floats(min_value=0, max_value=1e12, allow_nan=False)


def lives() -> st.SearchStrategy[Live]:
    st.register_type_strategy(float, finite)
    return st.from_type(Live)


@given(lives(), st.integers(1, 220))
@settings(max_examples=60)
def test_no_row_is_wider_than_the_terminal_and_none_moves_the_cursor(live: Live, width: int) -> None:
    for row in rows(live, width):
        assert cell_len(row.plain) <= width
        assert row.plain.isprintable()


@given(lives())
@settings(max_examples=40)
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

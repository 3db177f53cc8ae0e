"""What is read piece by piece is what is read at once."""

import json
from array import array
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.observe.readback import Process
from stoker.observe.tail import Tail
from stoker.records import Kind, News
from stoker.records.observed import KIND

CODES = st.integers(0, 5_000).filter(
    lambda code: code >> 1 & KIND != Kind.DOZE
)  # filled in: tests/observe/test_doze.py
NUMBERS = st.lists(CODES | st.integers(1 << 32, 1 << 40), max_size=60)


def begin(directory: Path) -> Path:
    """A run's directory with one process that has said who it is."""
    (directory / "run.json").write_text(json.dumps({"command": ["train.py"], "started_s": 0, "start_ns": 0}))
    notes = directory / "process-7-100.notes"
    notes.write_text(json.dumps({"note": "process", "t": 1, "pid": 7, "parent": 1, "rank": None}) + "\n")
    return notes


def events_of(news: list[News]) -> tuple[list[int], list[int]]:
    pieces = [piece for one in news for piece in one.pieces]
    return [t for piece in pieces for t in piece.times_ns], [c for piece in pieces for c in piece.codes]


@given(NUMBERS, st.lists(st.integers(1, 40), max_size=30))
@settings(max_examples=200)
def test_however_the_file_grows_the_same_events_are_read(numbers: list[int], cuts: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        notes = begin(Path(place))
        data = array("q", numbers).tobytes()
        tail, news = Tail(Path(place)), []
        with notes.with_suffix(".events").open("ab") as file:
            at = 0
            for size in [*cuts, len(data)]:
                file.write(data[at : at + size])
                file.flush()
                at += size
                news.append(tail.read())
        times, codes = Process(notes)._pairs("events")
        assert events_of(news) == (times, codes)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    notes = begin(tmp_path)
    events = notes.with_suffix(".events")
    events.write_bytes(array("q", [1 << 33, Kind.NEXT << 1]).tobytes())
    tail = Tail(tmp_path)
    assert events_of([tail.read()]) == ([1 << 33], [Kind.NEXT << 1])
    assert tail.read().pieces == ()
    with events.open("ab") as file:
        file.write(array("q", [1 << 34, Kind.NEXT << 1 | 1]).tobytes())
    assert events_of([tail.read()]) == ([1 << 34], [Kind.NEXT << 1 | 1])


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    notes = begin(tmp_path)
    tail = Tail(tmp_path)
    tail.read()
    line = json.dumps({"note": "epochs", "t": 5, "epochs": 12, "name": "epochs"}) + "\n"
    with notes.open("a") as file:
        file.write(line[:9])
        file.flush()
        assert tail.read().pieces == ()
        file.write(line[9:])
        file.flush()
        assert [piece.epochs_planned for piece in tail.read().pieces] == [12]


def test_rubbish_is_passed_over_and_a_vanished_directory_is_quiet(tmp_path: Path) -> None:
    notes = begin(tmp_path)
    (tmp_path / "process-x.notes").write_text("{}\n")
    (tmp_path / "meters.jsonl").write_text('nonsense\n{"time_ns": "late"}\n[1]\n')
    with notes.open("a") as file:
        file.write('{"no": "name"}\n[3]\n"text"\n')
    tail = Tail(tmp_path)
    assert [piece.pid for piece in tail.read().pieces] == [7]
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    assert tail.read().pieces == ()


def test_a_process_that_has_said_goodbye_is_not_looked_at_again(tmp_path: Path) -> None:
    notes = begin(tmp_path)
    with notes.open("a") as file:
        file.write(json.dumps({"note": "closing", "t": 9}) + "\n")
    tail = Tail(tmp_path)
    assert [piece.is_closed for piece in tail.read().pieces] == [True]
    with notes.open("a") as file:
        file.write(json.dumps({"note": "epochs", "t": 5, "epochs": 12, "name": "epochs"}) + "\n")
    assert tail.read().pieces == ()

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.observe.restore import JOURNAL, KEPT
from stoker.trial.contest import _clear, line_at


def test_memory_at_another_size_lies_on_the_line_through_the_largest_two() -> None:
    assert line_at(32, {4: 100, 8: 200, 16: 400}) == pytest.approx(800)
    assert line_at(8, {4: 100, 16: 400}) == 400


@given(
    peaks=st.dictionaries(st.integers(1, 1000), st.floats(0, 2**40), min_size=2, max_size=5),
    size=st.integers(1, 10_000),
)
def test_a_prediction_is_never_below_what_the_largest_took(peaks: dict[int, float], size: int) -> None:
    assert line_at(size, peaks) >= peaks[max(peaks)]


def killed(tmp_path: Path) -> tuple[Path, Path]:
    """A process of a tuner that was killed, after it had moved a file of the user's away and written its own."""
    place, theirs = tmp_path / "out" / "001", tmp_path / "best.txt"
    place.mkdir(parents=True)
    kept = place / f"{KEPT}1-1"
    kept.write_text("mine")
    (place / JOURNAL).write_text(json.dumps({"path": str(theirs), "kept": str(kept)}) + "\n")
    theirs.write_text("a trial's")
    return place, theirs


def test_a_place_is_cleared_only_after_what_its_process_overwrote_was_put_back(tmp_path: Path) -> None:
    place, theirs = killed(tmp_path)
    _clear(place)
    assert theirs.read_text() == "mine"
    assert not place.exists()


def test_what_cannot_be_put_back_is_never_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, theirs = killed(tmp_path)
    later = time.time() + 3600  # somebody has written there since
    os.utime(theirs, (later, later))
    _clear(place)
    assert not place.exists()
    (aside,) = place.parent.glob("001-kept-*")
    assert (aside / f"{KEPT}1-1").read_text() == "mine"
    assert str(aside) in capsys.readouterr().err
    assert theirs.read_text() == "a trial's"

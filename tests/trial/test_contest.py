import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.trial.contest import line_at


def test_memory_at_another_size_lies_on_the_line_through_the_largest_two() -> None:
    assert line_at(32, {4: 100, 8: 200, 16: 400}) == pytest.approx(800)
    assert line_at(8, {4: 100, 16: 400}) == 400


@given(
    peaks=st.dictionaries(st.integers(1, 1000), st.floats(0, 2**40), min_size=2, max_size=5),
    size=st.integers(1, 10_000),
)
def test_a_prediction_is_never_below_what_the_largest_took(peaks: dict[int, float], size: int) -> None:
    assert line_at(size, peaks) >= peaks[max(peaks)]

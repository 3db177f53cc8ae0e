"""What is left of a track without its experiments is the run as it would have been without them."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from attribute.tracks import make_track
from stoker.attribute.excise import excise
from stoker.records import Probes, Window


def windows(*spans: tuple[int, int]) -> Probes:
    return Probes(windows=tuple(Window("replay", start, end, 1.0) for start, end in spans))


def test_events_inside_a_window_go_and_later_ones_move_up() -> None:
    before = dataclasses.replace(
        make_track([], 0, 1, (), (), (), ()), start_ns=0, end_ns=100, times_ns=(10, 35, 60), codes=(2, 4, 6)
    )
    after = excise(dataclasses.replace(before, probes=windows((30, 50))))
    assert (after.times_ns, after.codes, after.end_ns) == ((10, 40), (2, 6), 80)


@given(st.lists(st.integers(0, 1000), unique=True, max_size=40), st.lists(st.integers(0, 999), unique=True, max_size=8))
def test_time_outside_windows_is_kept_to_the_nanosecond(times: list[int], edges: list[int]) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    spans = [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2)]
    whole = dataclasses.replace(
        make_track([], 0, 1, (), (), (), ()),
        start_ns=0,
        end_ns=1000,
        times_ns=tuple(sorted(times)),
        codes=(2,) * len(times),
        probes=windows(*spans),
    )
    cut = excise(whole)
    cut_ns = sum(end - start for start, end in spans)
    kept = [t for t in sorted(times) if not any(start <= t < end for start, end in spans)]
    assert cut.end_ns - cut.start_ns == 1000 - cut_ns
    assert list(cut.times_ns) == [t - sum(min(t, end) - start for start, end in spans if start < t) for t in kept]

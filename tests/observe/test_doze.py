"""Hooks that doze over most steps of a fast loop, and the steps they did not see filled in again."""

import gc
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim
from stoker.observe import doze
from stoker.observe.child import Observer
from stoker.observe.doze import AWAKE, DOZING, FAST_NS, FIRST, STILL
from stoker.observe.dozed import fill
from stoker.observe.dozed_rows import with_dozed
from stoker.observe.options import Options
from stoker.observe.progress import Progress
from stoker.observe.readback import Process
from stoker.observe.workers import ALIKE, MADE, ROW
from stoker.records.observed import ARG, KIND, SMALLEST_TIME, Kind, Track

STEPS = FIRST + 2 * DOZING + AWAKE + 10
Events = list[tuple[int, int]]


# ---- a real loop -----------------------------------------------------------------------------------------


@contextmanager
def observed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    """Every step counts as fast, however slow this machine is, and a doze is as long as can be said beforehand."""
    monkeypatch.setattr(doze, "FAST_NS", 1 << 62)
    monkeypatch.setattr(doze, "LONGEST", DOZING)
    place.mkdir()
    observer = Observer(place, Options(whole=True))
    observer.start()
    try:
        yield observer
    finally:
        observer.finish()


def train(observer: Observer, after: Callable[[int, torch.nn.Module], None], accumulate: int = 1) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * 2, 4), torch.randint(0, 2, (STEPS * 2,)))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(DataLoader(data, batch_size=2)):
        criterion(model(x), y).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        after(step, model)
        if step == FIRST - 10:
            observer.recorder.flush(5.0)  # what the quiet thread does four times a second: it looks at the steps


def read(place: Path) -> tuple[Track, Events]:
    """The track as it is read, and the events that were seen."""
    processes = [Process(path) for path in place.glob("*.notes")]
    assert len(processes) == 1
    return processes[0].track(0, 1 << 62), list(zip(*processes[0]._pairs("events"), strict=True))


def ends(codes: Any) -> Counter[Kind]:
    return Counter(Kind(code >> 1 & KIND) for code in codes if code & 1)


def dozes(seen: Events) -> int:
    return sum(code >> 1 & KIND == Kind.DOZE and not code & 1 for _, code in seen)


def steps_began(seen: Events) -> list[int]:
    return [at for at, code in seen if code >> 1 & KIND == Kind.NEXT and not code & 1]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_hooks_doze_and_every_step_has_its_parts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, lambda step, model: None, accumulate)
    track, seen = read(tmp_path / "run")

    assert dozes(seen) == 2
    assert ends(code for _, code in seen)[Kind.BACKWARD] == STEPS - 2 * DOZING
    counts = ends(track.codes)
    assert counts[Kind.BACKWARD] == counts[Kind.FORWARD] == counts[Kind.LOSS] == STEPS
    assert counts[Kind.OPTIMIZER] == counts[Kind.ZERO] == STEPS // accumulate
    assert Kind.DOZE not in counts
    assert track.filled > 0
    assert list(track.times_ns) == sorted(track.times_ns)


def shapes(track: Track) -> Counter[tuple[int, ...]]:
    """Kinds of steps: what begins and ends in them, in order of time, without what may come into any."""
    events = [code for _, code in sorted(zip(track.times_ns, track.codes, strict=True), key=lambda event: event[0])]
    regular = [code for code in events if code >> 1 & KIND not in doze.RARE]
    begins = [i for i, code in enumerate(regular) if code & (KIND << 1 | 1) == Kind.NEXT << 1]
    return Counter(tuple(regular[a:b]) for a, b in pairwise(begins))


@pytest.mark.parametrize(("accumulate", "every", "kinds"), [(1, 2, 2), (1, 32, 2), (4, 32, 3)])
def test_a_loop_that_logs_every_so_many_steps_has_its_parts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int, every: int, kinds: int
) -> None:
    """Hooks began to doze just after a step that waits for the loss, and no other step is like that one."""

    def log(step: int, _: torch.nn.Module) -> None:
        if (step + 1) % every == 0:
            loss.item()

    device: Any = sim.Device(forward=0.0, backward=0.0, optimizer=0.0)
    loss = torch.ones(1).to(device)
    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, log, accumulate)
    track, seen = read(tmp_path / "run")
    assert dozes(seen) == 2
    counts = ends(track.codes)
    assert counts[Kind.BACKWARD] == counts[Kind.FORWARD] == STEPS
    assert counts[Kind.OPTIMIZER] == STEPS // accumulate
    assert counts[Kind.SYNC] == ends(code for _, code in seen)[Kind.SYNC] >= STEPS // every
    assert len(shapes(track)) == kinds


def test_batches_that_the_main_thread_made_meanwhile_have_their_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, lambda step, model: None)
    process = Process(next((tmp_path / "run").glob("*.notes")))
    rows = [row for row in process._rows() if row[0] in (MADE, ALIKE)]
    assert len(rows) == STEPS - 2 * DOZING
    worker = process.worker()
    assert worker is not None
    assert len(worker.batches) == STEPS
    assert all(batch.samples == 2 and batch.fetch_s > 0 for batch in worker.batches)
    assert [batch.begin_ns for batch in worker.batches] == sorted(batch.begin_ns for batch in worker.batches)
    waits = iter(pairwise(sorted(t for t, code in read(tmp_path / "run")[1] if code >> 1 & KIND == Kind.NEXT)))
    spans = [span for number, span in enumerate(waits) if number % 2 == 0]
    assert all(
        begin <= one.begin_ns and one.end_ns <= end for (begin, end), one in zip(spans, worker.batches, strict=False)
    )


def test_what_a_script_puts_around_the_fetcher_does_not_make_rows_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = torch.utils.data._utils.fetch._MapDatasetFetcher

    def wrap(step: int, _: torch.nn.Module) -> None:
        if step != FIRST // 2:
            return
        inner = kind.fetch

        def theirs(fetcher: Any, index: Any) -> Any:
            return inner(fetcher, index)

        monkeypatch.setattr(kind, "fetch", theirs)

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, wrap)
    worker = Process(next((tmp_path / "run").glob("*.notes"))).worker()
    assert worker is not None
    assert len(worker.batches) == STEPS


def test_the_shorter_steps_are_the_longer_is_a_doze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doze, "DOZE_NS", 1 << 62)  # no step is too long for the most
    with observed(tmp_path / "run", monkeypatch) as observer:
        monkeypatch.setattr(doze, "LONGEST", DOZING + 100)
        train(observer, lambda step, model: None)
    _, seen = read(tmp_path / "run")
    assert ends(code for _, code in seen)[Kind.BACKWARD] == FIRST + AWAKE
    assert dozes(seen) == 2


def test_hooks_do_not_doze_where_a_few_steps_take_most_of_the_time(tmp_path: Path) -> None:
    """As where eight workers deliver eight batches at once, and then none for long: a trial went on for 20 s so."""
    (tmp_path / "run").mkdir()
    observer = Observer(tmp_path / "run", Options(whole=True))
    observer.start()
    try:
        train(observer, lambda step, model: time.sleep(0.0 if step % 8 or step > 2 * FIRST else 8 * FAST_NS / 1e9))
    finally:
        observer.finish()
    _, seen = read(tmp_path / "run")
    early = [(at, code) for at, code in seen if at < steps_began(seen)[FIRST + AWAKE]]
    assert not dozes(early)


def test_a_doze_ends_where_steps_become_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doze, "LONGEST_NS", 1_000_000)
    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, lambda step, model: time.sleep(0.002))
    track, seen = read(tmp_path / "run")
    assert dozes(seen) > 2  # each over before its steps were
    assert ends(code for _, code in seen)[Kind.BACKWARD] > 0.8 * STEPS
    assert ends(track.codes)[Kind.BACKWARD] == STEPS


def test_what_a_script_puts_around_the_loader_meanwhile_does_not_keep_hooks_dozing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(doze, "LONGEST_NS", 1_000_000)
    wrapped: list[int] = []

    def wrap(step: int, _: torch.nn.Module) -> None:
        time.sleep(0.002)
        if observer.recorder.doze.asleep[0] and not wrapped:
            wrapped.append(step)
            inner = kind.__next__
            kind.__next__ = lambda self: (inner(self),)[0]  # the observer's end takes it off again

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, wrap)
    _, seen = read(tmp_path / "run")
    assert wrapped
    assert ends(code for _, code in seen)[Kind.BACKWARD] > 0.8 * STEPS


def test_hooks_do_not_doze_before_a_batch_that_was_taken_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead:
        """Gives the loop what was held for it, as experiments do."""

        are_over = True

        def turn(self, _: Any, epoch: Any, __: Any) -> tuple[Any]:
            return (epoch.held.popleft(),)

    with observed(tmp_path / "run", monkeypatch) as observer:
        doze = observer.recorder.doze
        batches = iter(DataLoader(TensorDataset(torch.arange(9.0)), batch_size=1))
        next(batches)
        epoch = batches._stoker_epoch  # type: ignore[attr-defined]
        epoch.held.append("held")
        doze.may, doze.at, doze._loader, doze._period = lambda: True, 0, epoch.loader, 1
        monkeypatch.setattr(observer.pace, "probes", Ahead())
        assert next(batches) == "held"
        assert not doze.asleep[0]
        monkeypatch.setattr(observer.pace, "probes", None)
        assert next(batches)[0].item() == 1.0
        assert doze.asleep[0]


def test_while_hooks_doze_nothing_of_ours_is_passed_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wrapper but the loader's own is gone, comes back, and goes for good at the end."""
    fetchers, loader = torch.utils.data._utils.fetch, torch.utils.data.dataloader
    places = [
        (torch.nn.Module, "__call__"),
        (torch.nn.Module, "zero_grad"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.autograd, "backward"),
        (loader._BaseDataLoaderIter, "_next_index"),
        (fetchers._MapDatasetFetcher, "fetch"),
    ]
    plain = [vars(owner)[name] for owner, name in places]
    seen: set[tuple[bool, bool, bool]] = set()

    def look(_: int, __: torch.nn.Module) -> None:
        now = [vars(owner)[name] for owner, name in places]
        gone = [one is before for one, before in zip(now, plain, strict=True)]
        seen.add((bool(observer.recorder.doze.asleep[0]), all(gone), any(gone)))

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, look)
    assert seen == {(True, True, True), (False, False, False)}
    assert [vars(owner)[name] for owner, name in places] == plain


def test_another_iterator_is_seen_while_hooks_doze_over_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loaders in turns, as a loop that draws from both: every wait has its loader's number."""
    other = iter(DataLoader(TensorDataset(torch.arange(4.0 * STEPS)), batch_size=1))  # begun before anything is seen
    drawn: list[float] = []
    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, lambda step, model: drawn.append(next(other)[0].item()))
    assert drawn == [float(i) for i in range(STEPS)]
    track, _ = read(tmp_path / "run")
    assert ends(track.codes)[Kind.NEXT] == STEPS


def test_a_loop_that_is_left_while_hooks_doze_lets_go_of_its_iterator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so of its workers: torch ends them when nobody holds it any more."""
    with observed(tmp_path / "run", monkeypatch) as observer:
        doze = observer.recorder.doze
        batches = iter(DataLoader(TensorDataset(torch.arange(9.0)), batch_size=1))
        next(batches)
        doze.may, doze.at, doze._loader = lambda: True, 0, batches._stoker_epoch.loader  # type: ignore[attr-defined]
        doze._period = 1
        next(batches)
        assert doze.asleep[0]
        held = weakref.ref(batches)
        del batches
        assert held() is None


def test_the_hook_on_backward_is_off_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.autograd.backward
    taken_off: set[tuple[bool, bool]] = set()

    def look(_: int, __: torch.nn.Module) -> None:
        taken_off.add((bool(observer.recorder.doze.asleep[0]), torch.autograd.backward is before))

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, look)
        counted = observer.pace.backwards
    assert taken_off == {(True, True), (False, False)}
    assert torch.autograd.backward is before
    assert STEPS - 1 <= counted <= STEPS + 1


def test_what_a_script_puts_around_backward_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def wrap(step: int, _: torch.nn.Module) -> None:
        nonlocal calls
        if step != FIRST // 2:
            return
        inner = torch.autograd.backward

        def theirs(*args: Any, **kwargs: Any) -> None:
            nonlocal calls
            calls += 1
            inner(*args, **kwargs)

        monkeypatch.setattr(torch.autograd, "backward", theirs)

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, wrap)
        assert observer.pace.backwards == STEPS
    assert calls == STEPS - FIRST // 2 - 1


def test_a_section_that_is_no_part_of_every_step_wakes_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validate(step: int, model: torch.nn.Module) -> None:
        if step == FIRST + 100:
            with torch.no_grad():
                for _ in range(7):
                    model(torch.zeros(1, 4))
        if step == FIRST + 130:
            observer.recorder.flush(5.0)

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, validate)
    track, seen = read(tmp_path / "run")
    counts = ends(track.codes)
    # Of the step in which they woke, what had ended by then is filled in at the pace of another step: maybe not all.
    assert counts[Kind.FORWARD] - 7 in (STEPS - 1, STEPS)
    assert counts[Kind.BACKWARD] in (STEPS - 1, STEPS)
    asleep = ends(code for _, code in seen)[Kind.NEXT] - ends(code for _, code in seen)[Kind.BACKWARD]
    assert asleep > DOZING  # they doze again


def test_another_pass_is_seen_from_its_first_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = DataLoader(TensorDataset(torch.zeros(9, 4)), batch_size=1)

    def validate(step: int, model: torch.nn.Module) -> None:
        if step == FIRST + 100:
            for (x,) in other:
                model(x)

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, validate)
    track, _ = read(tmp_path / "run")
    counts = ends(track.codes)
    assert counts[Kind.FORWARD] - 9 in (STEPS - 1, STEPS)  # likewise
    assert counts[Kind.NEXT] == STEPS + 9


def test_nothing_dozes_while_steps_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def now_and_then(step: int, model: torch.nn.Module) -> None:
        if step * step % 7 == 1:
            model(torch.zeros(1, 4))

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, now_and_then)
    _, seen = read(tmp_path / "run")
    assert not any(code >> 1 & KIND == Kind.DOZE for _, code in seen)


def test_nothing_dozes_in_a_slow_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed(tmp_path / "run", monkeypatch) as observer:
        monkeypatch.setattr(doze, "FAST_NS", 0)
        train(observer, lambda step, model: None)
    _, seen = read(tmp_path / "run")
    assert not any(code >> 1 & KIND == Kind.DOZE for _, code in seen)


def test_it_is_noted_where_the_script_asks_for_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(step: int, _: torch.nn.Module) -> None:
        if step < 12:
            gc.collect(0)

    with observed(tmp_path / "run", monkeypatch) as observer:
        train(observer, collect)
    asked = read(tmp_path / "run")[0].collects[0]
    assert asked.place.startswith(__file__)
    assert asked.calls == 10  # the twelfth is not noted any more


# ---- filling in rows -------------------------------------------------------------------------------------


@given(
    waits=st.lists(st.tuples(st.integers(20, 1000), st.booleans()), min_size=1, max_size=30),
    tenths=st.integers(1, 10),
    collated=st.integers(0, 10),
)
def test_a_wait_in_a_doze_has_the_row_that_it_would_have_had(
    waits: list[tuple[int, bool]], tenths: int, collated: int
) -> None:
    """Making a batch takes a share of each wait, collating a share of that: then what is filled in is exact."""
    waits = [(200, False), *waits]
    begin, now, events, rows = Kind.NEXT << 1 | 3 << ARG, SMALLEST_TIME, [], []
    for length, asleep in waits:
        took = length * tenths  # of a wait of ten times its length
        row = array("q", [MADE, now + 10 * length - took, now + 10 * length, 5, took * collated // 10])
        rows.append((row + array("q", [0] * (ROW - 5)), asleep))
        events += [(now, Kind.DOZE << 1 | (1 << ARG if asleep else 1)), (now, begin), (now + 10 * length, begin | 1)]
        now += 20 * length
    seen = [row for row, asleep in rows if not asleep]
    came = with_dozed(seen, [t for t, _ in events], [code for _, code in events], [3])
    assert [row[1:4] for row in came] == [row[1:4] for row, _ in rows]
    assert all(abs(one[4] - row[4]) <= 0.05 * row[4] + 1 for one, (row, _) in zip(came, rows, strict=True))
    assert with_dozed(seen, [t for t, _ in events], [code for _, code in events], [2]) == seen  # that one has workers


# ---- filling in ------------------------------------------------------------------------------------------

BEGIN = Kind.NEXT << 1 | 1 << ARG
PARTS = (Kind.COPY, Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.SYNC, Kind.OPTIMIZER, Kind.ZERO)


def step_at(time_ns: int, lengths: list[int], parts: tuple[Kind, ...] = PARTS) -> tuple[Events, int]:
    """One step: its batch, then each part, with a pause after it."""
    events = [(time_ns, BEGIN), (time_ns + lengths[0], BEGIN | 1)]
    time_ns += lengths[0]
    for kind, length in zip(parts, lengths[1:], strict=True):
        events += [(time_ns, kind << 1), (time_ns + length, kind << 1 | 1)]
        time_ns += length + 1
    return events, time_ns


def run(steps: list[list[int]], parts: tuple[Kind, ...] = PARTS) -> tuple[list[Events], int]:
    now, made = SMALLEST_TIME, []
    for lengths in steps:
        events, now = step_at(now, lengths, parts)
        made.append(events)
    return made, now


def dozing(steps: list[Events], awake: int, over_ns: int | None, period: int = 1) -> Events:
    """The same steps as hooks see them that doze after some; with `over_ns` they wake then."""
    kept = [event for step in steps[:awake] for event in step]
    kept.append((steps[awake][0][0], Kind.DOZE << 1 | period << ARG))
    kept += [event for step in steps[awake:] for event in step if event[1] >> 1 & KIND not in STILL]
    return kept if over_ns is None else [*kept, (over_ns, Kind.DOZE << 1 | 1), (over_ns, BEGIN)]


def filled(events: Events) -> Events:
    return list(zip(*fill([t for t, _ in events], [code for _, code in events]), strict=True))


LENGTHS = st.lists(st.integers(10, 10_000), min_size=8, max_size=8)


@given(lengths=LENGTHS, awake=st.integers(1, 4), asleep=st.integers(1, 5))
def test_steps_that_are_all_alike_come_back_exactly(lengths: list[int], awake: int, asleep: int) -> None:
    steps, end = run([lengths] * (awake + asleep))
    came = filled(dozing(steps, awake, end))
    assert came == [*(event for step in steps for event in step), (end, BEGIN)]


@given(steps=st.lists(LENGTHS, min_size=4, max_size=9), period=st.integers(1, 2), rare=st.booleans())
def test_what_was_seen_stays_where_it_was_and_what_is_filled_in_is_whole(
    steps: list[list[int]], period: int, rare: bool
) -> None:
    made, end = run(steps)
    if rare:  # a collection right after the batch of the last step
        at = made[-1][1][0]
        made[-1][2:2] = [(at, Kind.GC << 1), (at, Kind.GC << 1 | 1)]
    seen = dozing(made, 3, end, period)
    came = filled(seen)
    assert [event for event in came if event[1] >> 1 & KIND not in STILL] == [
        event for event in seen if event[1] >> 1 & KIND not in STILL | {Kind.DOZE}
    ]
    assert came == sorted(came, key=lambda event: event[0])
    counts = Counter(code for _, code in came)
    for kind in STILL:
        assert counts[kind << 1] == counts[kind << 1 | 1] == len(steps)
    for (_, before), (_, after) in pairwise(came):  # parts stand one after the other, as they were
        if not before & 1 and before >> 1 & KIND in STILL:
            assert after == before | 1


def test_places_among_steps_that_repeat_are_kept() -> None:
    long, short = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER), (Kind.FORWARD, Kind.BACKWARD)
    now, steps = SMALLEST_TIME, []
    for number in range(10):
        events, now = step_at(now, [50] * (4 - number % 2), short if number % 2 else long)
        steps.append(events)
    came = filled(dozing(steps, 4, now, period=2))
    assert came == [*(event for step in steps for event in step), (now, BEGIN)]


def test_a_disturbed_step_is_not_stretched() -> None:
    lengths = [100] * 8
    steps, end = run([lengths] * 3 + [[100] * 7 + [100_000]])
    came = filled(dozing(steps, 3, end))
    zero = [t for t, code in came if code >> 1 & KIND == Kind.ZERO]
    assert zero[-1] - zero[-2] == 100  # the last part was not made a thousand times as long


def test_a_step_in_the_middle_of_which_the_hooks_woke_keeps_what_was_over() -> None:
    steps, _ = run([[100] * 8] * 5)
    backward_ended = next(t for t, code in steps[-1] if code == Kind.BACKWARD << 1 | 1)
    cut = [event for event in steps[-1] if event[0] <= backward_ended + 1 and event[1] >> 1 & KIND != Kind.SYNC]
    seen = dozing([*steps[:-1], cut], 3, None)
    woken = [*seen, (backward_ended + 1, Kind.DOZE << 1 | 1), (backward_ended + 5, Kind.NO_GRAD << 1)]
    counts = Counter(code for _, code in filled(woken))
    for kind in (Kind.FORWARD, Kind.LOSS, Kind.BACKWARD):
        assert counts[kind << 1] == counts[kind << 1 | 1] == 5
    assert counts[Kind.OPTIMIZER << 1] == counts[Kind.OPTIMIZER << 1 | 1] == 4


def test_a_run_that_was_killed_while_hooks_dozed_can_be_read() -> None:
    steps, _ = run([[100] * 8] * 6)
    seen = dozing(steps, 3, None)
    for length in range(len(seen)):
        came = filled(seen[:length])
        assert all(code >> 1 & KIND != Kind.DOZE for _, code in came)


def test_progress_counts_the_steps_of_a_doze_too(tmp_path: Path) -> None:
    parts = (Kind.FORWARD, Kind.BACKWARD)
    now, numbers = SMALLEST_TIME, array("q")
    for number in range(40):
        if number == 20:
            numbers.extend((now, Kind.DOZE << 1 | 2 << ARG))
        events, now = step_at(now, [50, 50, 50], parts)
        if number % 2 and number < 20:  # an optimizer steps on every second batch
            events += [(now, Kind.OPTIMIZER << 1 | 1 << ARG), (now, Kind.OPTIMIZER << 1 | 1 | 1 << ARG)]
        numbers.extend(n for event in events for n in event)
    (tmp_path / "process-1-1.events").write_bytes(numbers.tobytes())
    progress = Progress(tmp_path)
    progress.update()
    progress.update()
    assert (progress.batches, progress.steps) == (40, 20)

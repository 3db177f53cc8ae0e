"""What experiments look at in a batch and in the making of one: padding, and text that becomes integers."""

import io
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.observe import probe_text
from stoker.observe.probe_ahead import first_share, weight
from stoker.observe.probe_container import Schedule
from stoker.observe.probe_copies import Own, padding_share
from stoker.observe.probe_inspect import Inspector
from stoker.observe.probe_replay import Timing
from stoker.observe.probe_text import Follower
from stoker.observe.workers import weigh
from stoker.records import Inspection
from stoker.records.codec import decode


def padded(lengths: list[int], length: int) -> torch.Tensor:
    out = torch.zeros(len(lengths), length, dtype=torch.long)
    for row, n in zip(out, lengths, strict=True):
        row[:n] = torch.arange(1, n + 1)
    return out


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Named(Slotted):
    __slots__ = ("y",)

    def __init__(self, x: torch.Tensor, y: bytes) -> None:
        super().__init__(x)
        self.y = y


def test_what_lies_in_slots_weighs_something() -> None:
    batch = Named(torch.zeros(1000), b"12345")
    assert weight([batch, None, {"x": Slotted(torch.zeros(10))}]) == (4045, 0)


def test_tensors_that_are_sent_are_counted_in_objects_too() -> None:
    assert weigh([Slotted(torch.zeros(10)), {"y": (torch.zeros(5), "text", 3)}]) == (60, 2)


def test_the_batch_that_is_inspected_is_weighed_against_the_others() -> None:
    short, long = {"ids": torch.zeros(4, 5)}, {"ids": torch.zeros(4, 20)}
    assert first_share([short, long, long]) == 0.25
    assert first_share([short]) is None
    assert first_share([]) is None
    assert first_share([3, 4]) is None


def test_a_data_set_that_was_read_for_a_look_counts_and_draws_as_before() -> None:
    class Data:
        def __init__(self) -> None:
            self.served, self.file = 0, ""
            self.draws: list[Any] = [np.random.default_rng(0), random.Random(0), torch.Generator()]
            self.first, self.second, self.third = self.draws

        def __getitem__(self, _: int) -> tuple[Any, ...]:
            self.served += 1
            self.file = "open"
            return self.served, self.first.random(), self.second.random(), torch.rand(1, generator=self.third).item()

    data, alone = Data(), Data()
    own = Own(data)
    for index in range(5):
        data[index]
    own.restore()
    assert [data[i] for i in range(3)] == [alone[i] for i in range(3)]
    assert data.file == "open"


@given(st.lists(st.integers(1, 60), min_size=4, max_size=30), st.integers(64, 80))
def test_padding_is_what_lies_behind_the_ends_of_samples(lengths: list[int], length: int) -> None:
    share = padding_share([{"ids": padded(lengths, length)}])
    if float(torch.tensor(lengths, dtype=torch.float32).std()) >= 0.05 * length:
        assert share == pytest.approx(1 - np.mean(lengths) / length)
    else:
        assert share is None


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(16.0)[:, None].remainder(7).expand(16, 50),  # each sample one number, some of them zero
        torch.nn.functional.one_hot(torch.arange(16), 50),
        torch.zeros(16, 50),
        torch.rand(16, 50),
    ],
)
def test_what_is_no_sequence_has_no_padding(batch: torch.Tensor) -> None:
    assert padding_share([batch]) is None


TEXT = "a few words, and then some more of them " * 20
TEXTS = [TEXT[8 * i :].partition(" ")[2] for i in range(3)]
WORD = re.compile(r"\w+")
IDS = {word: i for i, word in enumerate(dict.fromkeys(WORD.findall(TEXT)))}


class Split:
    """Has its text by itself."""

    def __init__(self, fetch: Callable[[int], Any]) -> None:
        self.fetch = fetch

    def __getitem__(self, i: int) -> Any:
        return self.fetch(i)


def given_text(text: str) -> list[int]:
    return [IDS[word] for word in WORD.findall(text)]


def only_words(text: str) -> list[str]:
    return WORD.findall(text)


def saved(array: Any) -> Any:
    """As a file would hold it: with a header that is text."""
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    return np.load(file)


def long(ids: list[int]) -> torch.Tensor:
    return torch.nn.functional.pad(torch.tensor(ids), (0, 100_000))


FRAMES = np.random.default_rng(0).integers(0, 1000, (4, 3, 32, 32), dtype=np.int16)
MAKERS: dict[str, tuple[Callable[[int], Any], bool]] = {
    "a function that is given it": (lambda i: given_text(TEXTS[i]), True),
    "by its methods": (lambda i: torch.tensor([IDS[word.strip(",")] for word in TEXTS[i].split()]), True),
    "by re": (lambda i: torch.tensor([IDS[word] for word in re.findall(r"\w+", TEXTS[i])]), True),
    "words from elsewhere": (lambda i: (torch.tensor([IDS[word] for word in only_words(TEXTS[i])]), 1), True),
    "ids with much padding": (lambda i: long(given_text(TEXTS[i])), True),
    "pixels beside a caption": (lambda i: (torch.zeros(3, 8, 8, dtype=torch.uint8), TEXTS[i].split()), False),
    "no text at all": (lambda _: torch.arange(9), False),
    "text that stays text": (lambda i: TEXTS[i].split(), False),
    "numbers from a file with a header": (lambda _: (saved(FRAMES), 1), False),
    "few numbers from a file with a header": (lambda _: (saved(FRAMES[0, 0, 0]), 1), False),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_text_that_becomes_integers_is_timed_once_wherever_it_happens(maker: str) -> None:
    make, is_text = MAKERS[maker]
    data = Split(make)
    follower = Follower()
    sys.setprofile(follower)
    try:
        for i in range(3):
            data[i]
    finally:
        sys.setprofile(None)
    assert (follower.seconds > 0) is is_text
    assert len(follower.places) == is_text


def test_text_that_a_library_takes_is_shown_at_the_users_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys.py").write_text("def encode(text):\n    return [len(word) for word in text.split()]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe_text, "_LIBRARIES", (*probe_text._LIBRARIES, str(tmp_path)))
    import somebodys  # type: ignore[import-not-found]

    data = Split(lambda i: somebodys.encode(TEXTS[i]))
    follower = Follower()
    sys.setprofile(follower)
    try:
        for i in range(3):
            data[i]
    finally:
        sys.setprofile(None)
    assert follower.place is not None
    assert follower.place.startswith(__file__)


def test_calls_are_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_text, "FOLLOWED_S", 0.0)
    sys.setprofile(Follower())
    try:
        given_text(TEXT)
        assert sys.getprofile() is None
    finally:
        sys.setprofile(None)


# ---- which lines start operations ------------------------------------------------------------------------------


class Steps(torch.nn.Module):
    """A recurrent layer: torch's own, which loops inside torch, or a cell in a loop of Python."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.whole, self.cell = torch.nn.GRU(4, 8, batch_first=True), torch.nn.GRUCell(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_hand:
            return self.whole(x)[1][0]  # type: ignore[no-any-return]
        state = torch.zeros(len(x), 8)
        for i in range(x.shape[1]):
            state = self.cell(x[:, i], state)
        return state


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_loop_inside_torch_is_told_from_one_in_python(by_hand: bool) -> None:
    inspector = Inspector(torch)
    model, x = Steps(by_hand=by_hand), torch.randn(3, 40, 4)
    inspector.enter()
    try:
        model(x).sum().backward()
    finally:
        found = decode(Inspection, inspector.leave())
    line = max(found.lines, key=lambda one: one.in_one_call)
    assert line.in_one_call > 40
    assert (line.entries or 0) >= 40 if by_hand else (line.entries or 0) < 5
    assert f"{line.file}:{line.line}" in found.places


def test_text_that_the_loop_itself_turns_into_integers_is_seen_in_the_inspected_step() -> None:
    embedding = torch.nn.Embedding(len(IDS), 4)
    inspector = Inspector(torch)
    inspector.enter()
    try:
        embedding(torch.tensor([given_text(f"{word} {TEXT}") for word in ("a", "and", "then")])).sum().backward()
    finally:
        found = decode(Inspection, inspector.leave())
    assert sys.getprofile() is None
    assert (found.text_s or 0.0) > 0
    assert (found.text_place or "").endswith(" given_text")


def test_a_profiler_that_is_at_work_stays_while_a_step_is_inspected() -> None:
    inspector = Inspector(torch)
    sys.setprofile(profile := lambda *_: None)
    try:
        inspector.enter()
        inspector.leave()
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("ends", [True, False])
def test_a_replay_with_fewer_threads_gives_torch_its_own_back(ends: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        timing = Timing(torch, Schedule(), 3, None, threads=2)
        assert timing.note == "fewer"
        assert torch.get_num_threads() == 5
        timing.step()
        timing.step()
        assert torch.get_num_threads() == 2
        if ends:
            assert timing.end(0) is not None
        timing.drop()
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)

"""One guarded process of a real script, and what is known of it afterwards."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import LIGHT
from stoker.commands.tune.investigate import Found
from stoker.observe.pace import TRIAL_STEPS
from stoker.records import DeviceProfile, Value, encode
from stoker.trial import cold
from stoker.trial.command import Command
from stoker.trial.epochs import making_s
from stoker.trial.journal import Entry, Journal
from stoker.trial.limits import choose
from stoker.trial.measure import LOSSES, Manner, Sample, measure, opened_files

SCRIPT = (
    LIGHT
    + """
import sys, time, numpy, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self):
        self.rows = numpy.load("rows.npy", mmap_mode="r")
    def __len__(self):
        return 400
    def __getitem__(self, i):
        return torch.randn(8) + float(self.rows[i]), i % 2

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
device = "cpu"
if "--sim" in sys.argv:
    from stoker import sim
    device = sim.Device(forward=0.03, backward=0.05, optimizer=0.02)
    device.place(model, optimizer)
steps = 0
for epoch in range(1000):
    for x, y in DataLoader(Data(), batch_size=4, shuffle=True):
        x, y = x.to(device), y.to(device)
        if "--slow" in sys.argv:
            time.sleep(0.03)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        steps += 1
        if "--short" in sys.argv and steps == 6:
            sys.exit()
"""
)


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *words: str, manner: Manner | None = None,
    **knobs: Value,
) -> Sample:  # fmt: skip
    import numpy as np

    np.save(tmp_path / "rows.npy", np.zeros(400))
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    command = Command([sys.executable, "train.py", *words])
    return measure(command, knobs, tmp_path / name, choose(seconds=120), manner or Manner(0.5))


def test_runs_are_alike_to_the_last_bit_though_the_script_seeds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (run(tmp_path, monkeypatch, name, manner=Manner(0.5, files=True)) for name in ("a", "b"))
    assert first.step_s is not None
    assert not first.ended_itself
    seen = min(len(first.losses), len(second.losses))
    assert TRIAL_STEPS <= seen <= LOSSES
    assert first.losses[:seen] == second.losses[:seen]
    assert tmp_path / "rows.npy" in set(opened_files(tmp_path / "a"))
    assert first.pipeline is not None
    assert first.pipeline.main_bytes > 50 << 20
    other = run(tmp_path, monkeypatch, "c", batch_size=8)
    assert (other.batch_size, other.before["batch_size"]) == (8, 4)
    assert other.losses[:TRIAL_STEPS] != first.losses[:TRIAL_STEPS]


def test_a_script_that_ends_after_six_steps_has_only_the_rate_of_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = run(tmp_path, monkeypatch, "a", "--short")
    assert sample.ended_itself
    assert sample.is_short
    caution = Found(first=sample).caution
    assert caution is not None
    assert f"after {sample.steps} steps" in caution
    assert Found(first=replace(sample, steps=TRIAL_STEPS)).caution is None


def test_a_run_that_fails_is_told_with_its_last_words_which_mean_nothing_elsewhere(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "raise ValueError('no `data` [/red] | <b>here</b>')"])
    sample = measure(command, {}, tmp_path / "run", choose(seconds=60), Manner(0.5))
    assert sample.step_s is None
    assert sample.outcome.reason == "it ended with exit code 1 (`ValueError: no  data   /red    <b>here</b>`)"


def test_a_knob_that_nothing_of_the_script_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = SCRIPT.replace("DataLoader(Data(), batch_size=4, shuffle=True)", "by_hand(Data())").replace(
        "model =", "def by_hand(data):\n    for i in range(100):\n"
        "        yield torch.stack([data[j][0] for j in range(4)]), torch.zeros(4, dtype=int)\n\nmodel =",
    )  # fmt: skip
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", words)
    sample = run(tmp_path, monkeypatch, "a", num_workers=2, threads=1)
    assert sample.steps >= TRIAL_STEPS
    assert set(sample.before) == {"threads"}
    assert sample.refused == ("num_workers was set nowhere: the script made no loader that takes it",)


def test_steps_that_are_only_queued_take_what_the_device_takes_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = run(tmp_path, monkeypatch, "a", "--sim")
    assert sample.step_s is not None
    assert sample.step_s >= 0.0999  # queuing one takes a few milliseconds


DEEP = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        time.sleep(0.05)
        return torch.zeros(2)

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, x in enumerate(DataLoader(Data(), batch_size=1, num_workers=1, prefetch_factor=64)):
    time.sleep(0.02 if step else 3)
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_batches_that_lay_ready_do_not_make_an_epoch_shorter_than_making_them_takes(tmp_path: Path) -> None:
    """After its slow first step the loop finds sixty batches, and a short trial sees no others."""
    (tmp_path / "train.py").write_text(LIGHT + DEEP)
    command = Command([sys.executable, str(tmp_path / "train.py")])
    sample = measure(command, {}, tmp_path / "deep", choose(seconds=120), Manner(0.2))
    assert sample.steps < 60
    assert sample.step_s is not None
    assert sample.step_s > 0.045  # a worker sleeps 0.05 s for each


@given(
    cycles=st.lists(st.floats(0.1, 20), min_size=1, max_size=9),
    watched=st.floats(1, 5),
    offset=st.floats(0, 1),
    together=st.booleans(),
)
def test_the_pace_of_workers_does_not_depend_on_when_watching_ends(
    cycles: list[float], watched: float, offset: float, together: bool
) -> None:
    """All at once or one after the other; the last look may come just after a burst, or just before the next."""
    cycles = [cycles[0]] * len(cycles) if together else cycles
    last_s = (watched + 1) * max(cycles)
    made: list[list[tuple[int, int]]] = []
    for number, cycle_s in enumerate(cycles):
        first_s = cycle_s * (1 if together else 1 - offset * number / len(cycles))
        ends_s = [first_s + n * cycle_s for n in range(int((last_s - first_s) / cycle_s) + 1)]
        made.append([(round((end_s - cycle_s) * 1e9), round(end_s * 1e9)) for end_s in ends_s])
    came_ns = min(own[0][1] for own in made)
    rate = sum(1 / cycle_s for cycle_s in cycles)
    assert making_s(made, came_ns, 100_000) == pytest.approx(100_000 / rate, rel=0.01)
    seen = sum(map(len, made))
    assert making_s(made, came_ns, seen) == (max(own[-1][1] for own in made) - came_ns) / 1e9, "a whole epoch"


def test_workers_that_made_one_batch_have_no_pace_yet() -> None:
    assert making_s([[(1, 5)], [(1, 6)]], 5, 100) is None
    assert making_s([], 5, 100) is None


def test_workers_that_deliver_all_at_once_are_as_fast_as_their_rounds(tmp_path: Path) -> None:
    """Eight of them, a second for each batch: the first eight come at once, and a trial sees little more."""
    slow = DEEP.replace("time.sleep(0.05)", "time.sleep(1)").replace("if step else 3", "")
    slow = slow.replace("num_workers=1, prefetch_factor=64", "num_workers=8, prefetch_factor=1")
    (tmp_path / "train.py").write_text(LIGHT + slow)
    command = Command([sys.executable, str(tmp_path / "train.py")])
    sample = measure(command, {}, tmp_path / "rounds", choose(seconds=120), Manner(0.5))
    assert sample.steps < 40
    assert sample.step_s is not None
    assert sample.pipeline is not None
    assert sample.step_s > 0.12  # eight batches a second
    loop_s = sample.pipeline.loop_cpu_s + sample.pipeline.loop_wait_s
    assert 8 * sample.step_s < 1.4 * (sample.pipeline.make_s + 8 * loop_s)  # by the batches of one round it was 1.5


COLD = """
import os, sys, time, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, Dataset

kept = Path(f"kept-{os.getpid()}")
kept.mkdir()

class Data(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, i):
        if not (kept / str(i)).exists():
            time.sleep(0.03)
            (kept / str(i)).touch()
        return torch.zeros(2)

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
valid = DataLoader(Data(), batch_size=1)
loader = DataLoader(Data(), batch_size=1, shuffle=True, num_workers=int(sys.argv[1]))
for epoch in range(1000):
    for x in loader:
        model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    with torch.no_grad():
        by_hand = iter(valid)
        for _ in range(20):
            model(next(by_hand))
"""


def test_a_first_epoch_that_fills_a_cache_is_not_held_against_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it takes 0.6 s, with four workers a quarter of that; after that nobody waits for anything."""
    (tmp_path / "train.py").write_text(LIGHT + COLD)
    monkeypatch.chdir(tmp_path)
    slow, fast = (
        measure(Command([sys.executable, "train.py", n]), {}, tmp_path / f"{n}", choose(seconds=120), Manner(3.0))
        for n in ("0", "4")
    )
    for one in (slow, fast):
        assert one.is_later
        assert one.epochs > 1
        assert one.step_s is not None
        assert one.first_step_s is not None
        assert one.step_s < one.first_step_s
    assert slow.first_step_s is not None
    assert slow.first_step_s >= 0.03
    assert slow.pipeline is not None
    assert median(slow.pipeline.wait_s) < 0.03, "what is simulated is a later epoch too"
    cut = replace(fast, is_later=False, step_s=fast.first_step_s)
    assert slow.step_beside(fast) == slow.step_s
    assert (slow.step_beside(cut), cut.step_beside(slow)) == (slow.first_step_s, fast.first_step_s)


def test_a_validation_before_all_training_does_not_end_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its batches by hand, so it must not be cut, and lasts longer than any validation is watched."""
    before = "with torch.no_grad():\n    by_hand = iter(valid)\n    for _ in range(20):\n        model(next(by_hand))\n"
    script = COLD.replace("sleep(0.03)", "sleep(0.2)").replace("for epoch in", before + "for epoch in")
    (tmp_path / "train.py").write_text(LIGHT + script)
    monkeypatch.chdir(tmp_path)
    sample = measure(Command([sys.executable, "train.py", "0"]), {}, tmp_path / "a", choose(seconds=120), Manner(0.3))
    assert sample.step_s is not None


def test_a_recorded_device_takes_the_place_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = DeviceProfile("A100", 4, (0.02,), (0.06,), (0.02,), None)
    (tmp_path / "profile.json").write_text(json.dumps(encode(profile)))
    manner = Manner(1.5, device_profile=str(tmp_path / "profile.json"))
    sample = run(tmp_path, monkeypatch, "a", manner=manner)
    assert sample.step_s is not None
    assert sample.step_s >= 0.09
    assert sample.device == "replayed"
    assert sample.pipeline is not None
    assert sample.pipeline.loop_wait_s > 0


def test_a_journal_tells_what_was_measured_and_forgets_what_does_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = run(tmp_path, monkeypatch, "a", "--slow")
    journal = Journal(tmp_path)
    entries = [Entry(str(i), {"num_workers": i}, 1.0, sample) for i in range(3)]
    for entry in entries:
        journal.add(entry)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"place": "torn')
    Journal(tmp_path).next({"num_workers": 0})
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 3, "a torn line is cut off"
    again = Journal(tmp_path)
    assert again.is_replaying
    assert again.next({"num_workers": 0}) == entries[0]
    assert again.next({"num_workers": 7}) is None
    assert not again.is_replaying
    assert Journal(tmp_path).next({"num_workers": 0}) == entries[0]
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


def test_the_files_that_a_command_names_are_dropped_from_memory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(3):
        (data / f"{i}.bin").write_bytes(bytes(1 << 16))
    command = ["python", "train.py", f"--data={data}", "--lr", "0.1", str(data / "0.bin")]
    files = set(cold.named_files(command))
    assert files == {data / f"{i}.bin" for i in range(3)}
    assert cold.drop([*files, tmp_path / "none"]) == 3

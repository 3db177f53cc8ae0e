"""What a process costs while it does nothing: a fork, and threads that spin after a piece of work."""

import os
import sys
from array import array
from pathlib import Path

import pytest

from scripts import LIGHT
from stoker.observe.idling import fork_s, spun_s
from stoker.observe.readback import _batch, read
from stoker.observe.workers import ROW
from stoker.predict.whatif import _share_of_a_core
from stoker.records.observed import WorkerBatch
from stoker.trial.command import Command
from stoker.trial.limits import choose
from stoker.trial.measure import Manner, measure

WAITING = (
    'import os; os.environ.pop("OMP_WAIT_POLICY", None)\n'  # threads that wait spin a while, unless tests say otherwise
    + LIGHT
    + """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(2)
class Data(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.zeros(512)
model = nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for x in DataLoader(Data(), batch_size=8):
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
        x = torch.zeros(1 << 18) + 1  # by two threads, whatever the model is
"""
)


def test_a_fork_is_timed_and_leaves_no_child() -> None:
    found = fork_s()
    assert found is not None
    assert 0 < found < 10
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_one_thread_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert spun_s() == 0.0


def test_a_run_without_workers_says_what_starting_one_would_take(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    command = Command([sys.executable, str(tmp_path / "train.py")])
    sample = measure(command, {}, tmp_path / "trial", choose(seconds=60.0), Manner(1.5))
    assert sample.pipeline is not None
    track = read(tmp_path / "trial").tracks[0]
    assert track.fork_s is not None
    assert sample.pipeline.worker_start_s > track.fork_s


@pytest.mark.parametrize(("all_ms", "work_ms"), [(9, 1), (30, 22), (1, 1), (0, 0)])
def test_threads_that_spin_while_a_loop_waits_for_its_data_do_none_of_its_work(all_ms: int, work_ms: int) -> None:
    """Of 9 ms of CPU that a process had while a batch was made the thread that made it had 1; 8 were spun."""
    row = array("q", [0] * ROW)
    row[2], row[3], row[5], row[14] = 20_000_000, 8, min(all_ms, 1) * 1_000_000, all_ms * 1_000_000
    assert _batch(row, None, 8_000_000).process_cpu_s == work_ms / 1e3


@pytest.mark.parametrize(("user_s", "blocked_s", "share"), [(0.0005, 0.016, 1.0), (0.016, 0.0, 16 / 19)])
def test_waking_up_now_and_then_is_no_sign_of_strangers(user_s: float, blocked_s: float, share: float) -> None:
    queued_s = 0.0005 if blocked_s else 0.003
    batch = WorkerBatch(0, 20, 8, 0.02, 0.0, 0.0, user_s, 0.0, blocked_s, queued_s, 0, 0, 0, 0, 0, 0)
    assert _share_of_a_core([batch]) == pytest.approx(share)

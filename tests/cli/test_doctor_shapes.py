"""Loops differ. Each shape is found, or honestly not."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cli.doctor_program import WATCHING, Done, doctor, script
from scripts import LIGHT

STEPS = 30
HARD = (
    LIGHT
    + """
import os, threading
def train():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in torch.utils.data.DataLoader(torch.randn(800, 8), batch_size=8):
        model(x).sum().backward()
        optimizer.step()
if sys.argv[1:]:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
os._exit(0)
"""
)


def run(tmp_path: Path, shape: str, *options: str) -> Done:
    done = doctor(tmp_path, *script("plain.py", shape), options=options)
    if done.report:
        assert sum(phase["share"] for phase in done.report["phases"]) == pytest.approx(1, abs=1e-3)
    return done


@pytest.mark.parametrize(
    "shape",
    ["plain", "by_hand", "thread", "hard_exit", "fork", "accumulation", "two_optimizers", "two_loaders", "scaler"],
)
def test_a_step_is_a_step_in_every_loop(tmp_path: Path, shape: str) -> None:
    done = run(tmp_path, shape)
    assert done.code == 0, done.stderr
    assert abs(done.report["steps"] - STEPS) <= 1
    assert done.seconds("backward") > 0
    assert done.seconds("forward") > 0
    assert done.report["steps_per_epoch"] == STEPS


@pytest.mark.parametrize("waits", [True, False], ids=["thread", "main"])
def test_what_comes_after_a_hard_exit_is_shutdown(tmp_path: Path, waits: bool) -> None:
    (tmp_path / "hard.py").write_text(HARD)
    done = doctor(tmp_path, sys.executable, "hard.py", *(["thread"] if waits else []))
    assert done.code == 0, done.stderr
    assert done.seconds("shutdown") > 0
    assert done.report["unaccounted_share"] <= 0.02


def test_a_loop_with_its_own_loader_waits_in_the_gap_before_forward(tmp_path: Path) -> None:
    done = run(tmp_path, "own_loader")
    assert done.code == 0, done.stderr
    assert abs(done.report["steps"] - STEPS) <= 1
    assert done.seconds("data_wait") >= 0.9 * (STEPS - 1) * 0.02
    assert "gap before the forward pass" in done.stderr
    assert done.report["steps_per_epoch"] is None
    assert done.report["prediction"] is None


def test_what_a_loop_without_a_loader_does_after_a_step_is_no_wait_for_data(tmp_path: Path) -> None:
    done = run(tmp_path, "logged_by_hand")
    assert done.code == 0, done.stderr
    assert done.seconds("other") > 5 * done.seconds("data_wait")
    assert done.report["verdict"] == "logging-stall"


def test_a_loop_without_a_loader_that_validates_with_one_ends_when_the_budget_is_spent(tmp_path: Path) -> None:
    done = run(tmp_path, "own_loader_checked", "--budget", "3s")
    assert done.code == 0, done.stderr
    assert done.report["steps"] > 2 * STEPS


BY_HAND = (
    LIGHT
    + """
import time
torch.manual_seed(0)
table, weights = torch.randn(640, 64), torch.nn.Parameter(torch.zeros(64))
first, second = torch.optim.SGD([weights], 0.01), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.01)
model = torch.nn.Linear(64, 64)
for step in range(90):
    x = table[torch.randint(640, (8,))]
    loss = sum((model(x)[:, i] * weights[i]).sum() + x[:, i].square().mean() for i in range(64))
    loss.backward()
    first.step()
    if step % 2:
        second.step()
    time.sleep(0.05)
    print(step, float(loss), flush=True)
"""
)


def test_a_loop_that_fetches_by_hand_is_timed_and_inspected_and_gets_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "hand.py"
    path.write_text(BY_HAND)
    alone = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    done = doctor(tmp_path, sys.executable, str(path))
    assert done.code == 0, done.stderr
    assert done.stdout == alone.stdout
    probes = done.report["probes"]
    assert probes["replays"]
    assert [window["name"] for window in probes["windows"]] == ["inspection"]
    assert max(line["in_one_call"] for line in probes["inspection"]["lines"]) >= 128
    assert done.report["steps"] in (44, 45)  # of the optimizer that steps every second time


ZIPPED = (
    LIGHT
    + """
import time
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.full((16,), float(i))
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
quick = DataLoader(torch.randn(400, 16), batch_size=4)
for _ in range(2):
    for x, y in zip(quick, DataLoader(Slow(), batch_size=4, num_workers=1)):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
)


def test_waiting_for_the_other_of_two_loaders_is_not_computing(tmp_path: Path) -> None:
    (tmp_path / "zipped.py").write_text(ZIPPED)
    done = doctor(tmp_path, sys.executable, "zipped.py")
    assert done.code == 0, done.stderr
    assert done.share("data_wait") > 0.2
    assert done.report["ceilings"]["compute_samples_per_s"] > 3 * done.report["samples_per_s"]
    finding = done.report["findings"][0]
    workers = [one["value"] for one in finding["evidence"] if one["name"] == "workers"]
    assert workers in ([], [1.0]), finding  # of the loader that is waited for
    assert done.report["verdict"] not in ("compute-bound", "healthy")


def test_validation_is_known_without_no_grad(tmp_path: Path) -> None:
    done = run(tmp_path, "eval_without_no_grad")
    assert done.report["steps"] == 2 * STEPS
    assert done.seconds("validation") >= 2 * 15 * 0.01
    roles = [loader["role"] for loader in done.report["loaders"]]
    assert roles.count("train") == 1
    assert set(roles) == {"train", "validation"}


@pytest.mark.slow
def test_a_compiled_model_stays_one_graph(tmp_path: Path) -> None:
    done = run(tmp_path, "compiled")  # fullgraph=True would raise on a break
    assert done.code == 0, done.stderr
    assert done.report["steps"] == STEPS
    assert done.seconds("forward") > 0


def test_a_daemon_is_followed(tmp_path: Path) -> None:
    done = run(tmp_path, "daemon")
    assert done.code == 0, done.stderr
    assert done.report["steps"] == STEPS


@pytest.mark.parametrize("shape", ["stubborn", "forever"])
def test_a_script_without_an_end_is_ended(tmp_path: Path, shape: str) -> None:
    done = run(tmp_path, shape, "--budget", "8", *WATCHING)
    assert done.code == 0, done.stderr
    assert done.report["steps"] > STEPS
    assert "ended when enough" in done.stderr


def test_workers_that_are_ended_with_the_run_leave_no_folder_behind(tmp_path: Path) -> None:
    words, options = script("plain.py", "hired"), ("--budget", "4", *WATCHING)
    with tempfile.TemporaryDirectory() as folder:  # a short name: a socket's whole path has 107 letters at most
        done = doctor(tmp_path, *words, options=options, env={"TMPDIR": folder})
        left = [path.name for path in Path(folder).iterdir() if path.name.startswith("pymp-")]
    assert done.code == 0, done.stderr
    assert "ended when enough" in done.stderr
    assert left == []


FALLS_AT_THE_END = (
    LIGHT
    + """
import multiprocessing.util, os

def start(_):  # as a worker does whose thread is inside C++ code while it ends
    multiprocessing.util.Finalize(None, os.abort, exitpriority=0)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.zeros(100_000, 4))
loader = torch.utils.data.DataLoader(data, 8, num_workers=1, worker_init_fn=start)
for epoch in range(2):
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
    print("epoch", flush=True)
for (x,) in loader:
    model(x).sum().backward()
"""
)


def test_a_worker_that_dies_while_an_epoch_is_cut_short_does_not_stop_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FALLS_AT_THE_END)
    done = doctor(tmp_path, sys.executable, "train.py", options=("--steps", "10", "--budget", "4", *WATCHING))
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("epoch\nepoch\n")
    assert "killed by signal" not in done.stderr


def test_steps_cut_every_epoch(tmp_path: Path) -> None:
    done = run(tmp_path, "forever", "--steps", "10", "--budget", "8", *WATCHING)
    assert done.code == 0, done.stderr
    assert done.report["steps_per_epoch"] == STEPS
    epochs = done.report["epochs"]
    assert 10 * (epochs - 1) < done.report["steps"] <= 10 * epochs  # the budget may end the last one earlier
    prediction = done.report["prediction"]
    assert prediction["low_s"] <= prediction["epoch_s"] <= prediction["high_s"]
    assert prediction["epoch_s"] > 0.9 * STEPS * 0.002


def test_a_loop_that_calls_next_by_hand_is_left_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "by_hand", "--steps", "10")
    assert done.code == 0, done.stderr
    assert done.stdout == "all by hand\n"
    assert done.report["steps"] in (STEPS - 1, STEPS)

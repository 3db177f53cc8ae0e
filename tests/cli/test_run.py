"""`stoker run` on real scripts: the knobs arrive, and everything else stays the script's own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import LIGHT

SCRIPT = (
    LIGHT
    + """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Mine(DataLoader):
    pass

data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
loaders = [DataLoader(data, 6, True), Mine(data, batch_size=6, num_workers=0)]
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for loader in loaders:
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out.float(), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
print([(l.num_workers, l.batch_size, l.prefetch_factor) for l in loaders], out.dtype, sys.argv[1:])
sys.exit(7)
"""
)


def run(tmp_path: Path, *arguments: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "stoker", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)


def test_knobs_arrive_and_output_and_exit_code_are_the_scripts(tmp_path: Path) -> None:
    knobs = ["--set", "prefetch_factor=3", "--set", "num_workers=1", "--set", "batch_size=8", "--set", "amp=bf16"]
    done = run(tmp_path, *knobs, "--", sys.executable, "train.py", "--lr", "1")
    assert done.returncode == 7
    assert done.stdout == "[(1, 8, 3), (1, 8, 3)] torch.bfloat16 ['--lr', '1']\n"
    assert "running with prefetch_factor=3, num_workers=1" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [".stoker", "train.py"]


THREADS = """
import torch
from torch.utils.data import DataLoader

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return torch.get_num_threads()

torch.set_num_threads(3)
print(torch.get_num_threads(), [int(x) for x in DataLoader(Data(), num_workers=1)])
"""


def test_threads_hold_though_the_script_sets_its_own_and_workers_have_theirs(tmp_path: Path) -> None:
    assert run(tmp_path, "--set", "threads=2", "train.py", script=THREADS).stdout == "2 [1, 1]\n"
    assert run(tmp_path, "--set", "pin_memory=false", "train.py", script=THREADS).stdout == "3 [1, 1]\n"


def test_a_knob_that_cannot_be_set_is_said_once_and_the_script_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, "--set", "prefetch_factor=3", "train.py")
    assert done.returncode == 7
    assert done.stdout.startswith("[(0, 6, None), (0, 6, None)] torch.float32")
    assert done.stderr.count("prefetch_factor is 3, but num_workers is 0") == 1


def test_a_file_of_knobs_is_read_and_a_typed_knob_wins(tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text("[knobs]\nnum_workers = 1\nbatch_size = 12\n")
    done = run(tmp_path, "--with", "stoker.toml", "--set", "batch_size=4", "train.py")
    assert done.stdout.startswith("[(1, 4, 2), (1, 4, 2)]")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.py"], "no knob was given; write --set num_workers=4"),
        (["--set", "num_workers", "train.py"], "--set num_workers has no value"),
        (["--set", "num_worker=2", "train.py"], "did you mean num_workers?"),
        (["--set", "num_workers=-1", "train.py"], "num_workers is -1; expected 0 or more"),
        (["--with", "absent.toml", "train.py"], "absent.toml cannot be read"),
        (["--with", "train.py", "train.py"], "train.py cannot be read"),
        (["--set", "num_workers=1", "absent.py"], "absent.py does not exist"),
        (["--set", "num_workers=1"], "no command was given"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_run(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_signals_reach_the_script_itself(tmp_path: Path) -> None:
    script = """
import signal, sys, torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(33))
print("ready", flush=True)
signal.pause()
"""
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "stoker", "run", "--set", "num_workers=1", "train.py"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == 33


def test_what_was_kept_for_places_and_config_goes_there_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1], open(sys.argv[2]).read())\n")
    (tmp_path / "exp.yaml").write_text("lr: 1  # rate\n")
    (tmp_path / "stoker.toml").write_text('[knobs]\n[placeholders]\n"batch" = 64\n[config."exp.yaml"]\n"lr" = 2\n')
    words = [sys.executable, "-m", "stoker", "run", "--with", "stoker.toml", "train.py"]
    done = subprocess.run([*words, "{batch}", "exp.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "64 lr: 2  # rate\n\n"), done.stderr
    assert (tmp_path / "exp.yaml").read_text() == "lr: 1  # rate\n"
    done = subprocess.run([*words, "exp.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "batch has no place in the command" in done.stderr


def test_where_nothing_was_kept_the_script_just_runs(tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text("[knobs]\n")
    done = run(tmp_path, "--with", "stoker.toml", "--", sys.executable, "train.py")
    assert done.returncode == 7
    assert "no knob was kept" in done.stderr

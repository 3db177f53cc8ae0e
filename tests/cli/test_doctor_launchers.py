"""However a training is started, it is found."""

import os
import sys
from pathlib import Path

import pytest

from cli.doctor_program import WATCHING, doctor, script
from scripts import SCRIPTS

DISTRIBUTED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(4000, 4), torch.randint(0, 2, (4000,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
print("rank done", flush=True)
"""


@pytest.fixture(autouse=True)
def _beside_the_script(tmp_path: Path) -> None:
    """What the scripts import, for copies of them."""
    (tmp_path / "light.py").write_text((SCRIPTS / "light.py").read_text())


def test_a_bare_script_is_started_with_python(tmp_path: Path) -> None:
    done = doctor(tmp_path, str(SCRIPTS / "plain.py"), "plain")
    assert done.code == 0, done.stderr
    assert done.report["steps"] == 30


def test_a_module_is_started(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    text = (SCRIPTS / "plain.py").read_text()
    (tmp_path / "mine" / "__main__.py").write_text(text)
    done = doctor(tmp_path, sys.executable, "-m", "mine", "plain")
    assert done.code == 0, done.stderr
    assert done.report["steps"] == 30


def test_a_console_script_is_started(tmp_path: Path) -> None:
    program = tmp_path / "train-it"
    program.write_text(f"#!{sys.executable}\n" + (SCRIPTS / "plain.py").read_text())
    program.chmod(0o755)
    done = doctor(tmp_path, str(program), "plain")
    assert done.code == 0, done.stderr
    assert done.report["steps"] == 30


def test_a_training_behind_a_shell_is_found(tmp_path: Path) -> None:
    done = doctor(tmp_path, "sh", "-c", " ".join(script("plain.py", "plain")))
    assert done.code == 0, done.stderr
    assert done.report["steps"] == 30


@pytest.mark.slow
def test_spawned_workers_are_seen(tmp_path: Path) -> None:
    text = (SCRIPTS / "known_times.py").read_text()
    text = text.replace("num_workers=workers)", 'num_workers=workers, multiprocessing_context="spawn")')
    text = text.replace("EPOCHS = 0.004, 0.003, 40, 2", "EPOCHS = 0.004, 0.003, 40, 1")
    (tmp_path / "train.py").write_text(text)
    done = doctor(tmp_path, sys.executable, "train.py", "1", options=WATCHING)
    assert done.code == 0, done.stderr
    seen = [worker for worker in done.report["workers"] if worker["stages"]["send"] is not None]
    assert len(seen) == 2  # of training and of validation
    assert all(worker["stages"]["read"] > 0 for worker in seen)


@pytest.mark.slow
def test_ranks_of_torchrun_stop_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py"]
    done = doctor(tmp_path, *torchrun, options=("--steps", "20"), env={"OMP_NUM_THREADS": "1", **os.environ})
    assert done.code == 0, done.stderr
    assert done.stdout.count("rank done") == 2
    assert "2 ranks trained" in done.stderr
    assert 40 <= done.report["steps"] <= 60
    assert done.report["steps_per_epoch"] == 500


@pytest.mark.slow
def test_ranks_that_the_script_starts_itself_stop_together(tmp_path: Path) -> None:
    """As in PyTorch's own tutorial: no environment says how many there are."""
    lines = DISTRIBUTED.replace('dist.init_process_group("gloo")', "GROUP").splitlines()
    body = "\n".join(f"    {line}" for line in lines[lines.index("GROUP") :]).replace(
        "GROUP", 'dist.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2)'
    )
    head = "\n".join(lines[: lines.index("GROUP")])
    main = (
        'if __name__ == "__main__":\n    torch.multiprocessing.spawn(main, args=(os.path.abspath("group"),), nprocs=2)'
    )
    (tmp_path / "train.py").write_text(f"import os\n{head}\n\ndef main(rank, place):\n{body}\n\n{main}\n")
    words = (sys.executable, "train.py")
    done = doctor(tmp_path, *words, options=("--steps", "20"), env={"OMP_NUM_THREADS": "1", **os.environ})
    assert done.code == 0, done.stderr
    assert done.stdout.count("rank done") == 2
    assert 40 <= done.report["steps"] <= 60

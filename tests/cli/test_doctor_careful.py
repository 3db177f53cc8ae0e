"""Scripts whose own objects object to being looked at train as they would alone, and so do those that save."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cli.doctor_program import doctor
from scripts import LIGHT

SCRIPT = (
    LIGHT
    + """
import pickle
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

data = TensorDataset(torch.randn(64, 4))


def train(name, loader, take=lambda batch: batch, model=None):
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps, max_epochs = 0, float("inf")  # its number of epochs has no end
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(take(batch)).square().mean().backward()
            optimizer.step()
            steps += 1
    print(name, steps)


train("plain", DataLoader(data, 8), lambda batch: batch[0])

rows = [torch.randn(i % 5 + 1, 4) for i in range(64)]
train("nested", DataLoader(rows, 8, collate_fn=torch.nested.nested_tensor), lambda batch: torch.cat(batch.unbind()))


class Net(nn.Linear):
    def parameters(self):
        return [p for p in super().parameters() if p.requires_grad]

    def modules(self):
        raise ValueError("no")


train("parameters as a list", DataLoader(data, 8), lambda batch: batch[0], Net(4, 1))


class Doubled(DataLoader):
    def _get_iterator(self):
        return (x * 2 for (x,) in super(Doubled, self)._get_iterator())


train("an iterator of its own", Doubled(data, 8))


class Late(DataLoader):
    def _get_iterator(self):
        for (x,) in super()._get_iterator():
            yield x * 2


train("an iterator made late", Late(data, 8))


class Stream(IterableDataset):
    def __len__(self):
        raise ValueError("a stream has none")

    def __iter__(self):
        return iter(torch.randn(64, 4))


train("a length that raises", DataLoader(Stream(), 8))


class Batch:
    def __init__(self, rows):
        self.x = torch.stack([x for (x,) in rows])

    def shape(self):
        return self.x.shape


train("a shape that is a method", DataLoader(data, 8, collate_fn=Batch), lambda batch: batch.x)


class Same(DataLoader):
    __hash__ = None

    def __eq__(self, other):
        raise ValueError("never compare")


train("a loader without a hash", Same(data, 8), lambda batch: batch[0])


class Slots:
    __slots__ = ("x",)

    def __init__(self, rows):
        self.x = torch.stack([x for (x,) in rows])


train("batches with slots", DataLoader(data, 8, collate_fn=Slots), lambda batch: batch.x)


for function in (torch.save, torch.load, nn.utils.clip_grad_norm_, torch.autograd.backward):
    assert pickle.loads(pickle.dumps(function)) is function
"""
)
LOOPS = (
    "plain",
    "nested",
    "parameters as a list",
    "an iterator of its own",
    "an iterator made late",
    "a length that raises",
    "a shape that is a method",
    "a loader without a hash",
    "batches with slots",
)


@pytest.mark.parametrize("options", [(), ("--whole",)], ids=["short", "whole"])
def test_they_train_as_they_would_alone(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    done = doctor(tmp_path, "own.py", options=options)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} 16" for name in LOOPS]
    assert done.report["steps"] >= 16
    assert done.seconds("data_wait") > 0


SAVING = (
    LIGHT
    + """
import glob, io, json, os, shutil, subprocess, tempfile, time
from pathlib import Path
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def link(make, source, name):
    if os.path.lexists(name):
        os.unlink(name)
    make(source, name)


def pack(epoch, **how):
    buffer = io.BytesIO()
    torch.save({"epoch": epoch}, buffer, **how)
    return buffer.getvalue()


before = Path("ck/003.pt").read_bytes()
Path("pretrained.pth").write_bytes(before)  # as one that is downloaded
time.sleep(0.1)
start = torch.load(sorted(glob.glob("ck/*.pt"))[-1])["epoch"] + 1
print("resume at", start)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(160, 4)), 8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.save({"epoch": epoch}, "model.pt")
    link(os.symlink, "model.pt", "latest.pt")
    link(os.symlink, "model.pt", "new-latest.pt")
    link(os.link, "model.pt", "hard.pt")
    link(os.link, "model.pt", "new-hard.pt")
    shutil.copyfile("model.pt", "best.pt")
    read = subprocess.run(["cat", "model.pt"], capture_output=True, check=True).stdout
    names = ("model.pt", "latest.pt", "new-latest.pt", "hard.pt", "new-hard.pt", "best.pt", io.BytesIO(read))
    print(*(torch.load(name)["epoch"] for name in names))
    with open("linked/part.tmp", "wb") as file:
        torch.save({"epoch": start + epoch}, file)
    os.replace("linked/part.tmp", f"linked/{start + epoch:03d}.pt")
    fd, part = tempfile.mkstemp()
    with os.fdopen(fd, "wb") as file:
        file.write(pack(epoch))
    shutil.move(part, f"bytes-{epoch}.ckpt")
    fd, part = tempfile.mkstemp(dir=".")
    with os.fdopen(fd, "wb") as file:
        torch.save({}, file, _use_new_zipfile_serialization=False)
    os.rename(part, "descriptor.bin")
    Path("legacy.pth").write_bytes(pack(epoch, _use_new_zipfile_serialization=False, pickle_protocol=4))
    folder = f"out/checkpoint-{epoch}"
    os.makedirs(folder + ".part/more")
    save_file(model.state_dict(), f"{folder}.part/model.safetensors")
    torch.save({}, f"{folder}.part/optimizer.pt")
    Path(f"{folder}.part/state.json").write_text("{}")
    shutil.copy2("own.py", f"{folder}.part/more")
    os.symlink(os.path.abspath("ck"), f"{folder}.part/all")
    os.rename(folder + ".part", folder)
    link(os.symlink, f"checkpoint-{epoch}", "out/last")
    os.makedirs("figures", exist_ok=True)
    Path("figures/loss.png").write_text("PK")
    Path("metrics.json").write_text(json.dumps(epoch))
    print(sorted(os.listdir("ck")), sorted(os.listdir(folder)))
"""
)


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file and folder but Stoker's own; of a link, where it leads."""
    paths = [path for path in folder.rglob("*") if not {".stoker", "report.json"} & set(path.relative_to(folder).parts)]
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else ""
        for path in paths
    }


def saved_before(folder: Path, script: str) -> dict[str, bytes | str]:
    """A folder in which somebody has trained."""
    (folder / "ck").mkdir()
    (folder / "linked").symlink_to("ck")
    torch.save({"epoch": 3}, folder / "ck" / "003.pt")
    torch.save({"epoch": 99}, folder / "model.pt")
    (folder / "latest.pt").symlink_to("model.pt")
    (folder / "hard.pt").hardlink_to(folder / "model.pt")
    (folder / "own.py").write_text(script)
    time.sleep(0.05)  # files are stamped more coarsely than that
    return contents(folder)


@pytest.mark.slow
def test_checkpoints_are_what_they_would_be_and_are_gone_afterwards(tmp_path: Path) -> None:
    before = saved_before(tmp_path, SAVING)
    done = doctor(tmp_path, "own.py")
    assert done.code == 0, done.stderr
    saved = ["all", "model.safetensors", "more", "optimizer.pt", "state.json"]
    assert done.stdout.splitlines() == [
        "resume at 4",
        "0 0 0 0 0 0 99",  # only another program finds what was there before, which is never touched
        f"['003.pt', '004.pt'] {saved}",
        "1 1 1 1 1 1 99",
        f"['003.pt', '004.pt', '005.pt'] {saved}",
    ]
    assert done.seconds("checkpoint") > 0
    after = contents(tmp_path)
    others = {name: after.pop(name, None) for name in set(after) - set(before)}
    assert after == before
    assert others == {
        "pretrained.pth": before["ck/003.pt"],
        "figures": "",
        "figures/loss.png": b"PK",
        "metrics.json": b"1",
    }
    assert "3 new files" in " ".join(done.report["notes"])
    assert (tmp_path / "model.pt").stat().st_nlink == 2


@pytest.mark.slow
def test_after_kill_9_of_everybody_checkpoints_are_as_they_were_and_the_next_command_removes_new_ones(
    tmp_path: Path,
) -> None:
    hangs = "\nimport os, time\ntorch.save({}, 'model.pt')\nos.mkdir('out')\nopen('out/a.json', 'w').close()\n"
    hangs += "torch.save({}, open('out/a.pt', 'wb'))\nprint('now', flush=True)\ntime.sleep(60)\n"
    before = saved_before(tmp_path, LIGHT + hangs)
    command = [sys.executable, "-m", "stoker", "doctor", "--", sys.executable, "own.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killed = contents(tmp_path)
    assert set(killed) - set(before) == {"out", "out/a.json", "out/a.pt"}
    assert {name: killed[name] for name in before} == before
    doctor(tmp_path, sys.executable, "-c", "")
    assert contents(tmp_path) == before


MAKES_FILES = (
    LIGHT
    + """
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for i in range(60):
    with open(f"made-{i}.txt", "w") as file:
        file.write("a row")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), 4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
)


def test_sixty_new_files_are_sixty_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MAKES_FILES)
    done = doctor(tmp_path, sys.executable, "train.py")
    assert any(note.startswith("the script itself wrote 60 new files") for note in done.report["notes"]), done

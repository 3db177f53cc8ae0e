"""What was there before a diagnostic run is there after it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.doctor_program import doctor, script
from scripts import LIGHT
from stoker.observe.originals import JOURNAL, open_journal, recover

BEFORE = {
    "weights.bin": "precious",
    "metrics.json": "best",
    "stale.txt": "kept",
    "old/a/deep.txt": "deep",
    "log.txt": "begin\n",
}


def fill(folder: Path) -> None:
    for name, text in BEFORE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def found(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text(errors="replace") if (folder / name).exists() else "" for name in BEFORE}


@pytest.mark.slow
def test_what_a_shortened_run_overwrote_removed_or_replaced_is_put_back(tmp_path: Path) -> None:
    fill(tmp_path)
    done = doctor(tmp_path, *script("overwrites.py"))
    assert done.code == 0, done.stderr
    assert "DONE" in done.stdout  # the script itself saw what it wrote
    assert found(tmp_path) == {**BEFORE, "log.txt": "begin\nepoch\nepoch\n"}  # what is added to overwrites nothing
    assert not list(tmp_path.rglob(".stoker-original*"))
    assert not list(tmp_path.rglob(JOURNAL))
    assert "new.txt" in " ".join(done.report["notes"])


SLY = (
    LIGHT
    + """
import os, shutil
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.rename("runs", "runs_before")
os.makedirs("runs", exist_ok=True)
Path("runs/a.txt").write_text("NEW")
Path("touched").touch()
Path("touched").write_text("NEW")
os.rename("rotated", "rotated.1")
Path("rotated.1").write_text("NEW")
with open("added", "a") as file:
    file.write("more")
os.chmod("mode", 0o600)
Path("mode").write_text("NEW")
file = os.open("in_place", os.O_WRONLY | os.O_TRUNC)
os.write(file, b"NEW")
os.close(file)
os.truncate("cut", 2)
assert Path("cut").read_text() == "OL"
Path("out_put").write_text("NEW")  # its name begins as that of the run's own folder
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(80, 4)), 8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for name in ("last.pt", "kept.pt"):  # one is new, one was there
        torch.save({"epoch": epoch}, name)
        shutil.copyfile(name, f"best-{name}")
        with open(name, "rb") as file:
            assert torch.load(file) == torch.load(f"best-{name}") == torch.load(name) == {"epoch": epoch}
        assert name in os.listdir(".")
torch.save({}, "part.pt")
os.replace("part.pt", "replaced.pt")
torch.save({}, "part.pt")
os.replace("part.pt", "fresh.pt")
Path("added").write_text("NEW")
torch.jit.save(torch.jit.script(model), "scripted")
print("DONE")
"""
)
THERE = ("touched", "rotated", "added", "mode", "in_place", "cut", "out_put", "scripted", "kept.pt", "replaced.pt")


@pytest.mark.slow
def test_whatever_happened_to_a_file_before_it_was_overwritten(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    names = [*THERE, "runs/a.txt", "runs/b.txt"]
    for name in names:
        (tmp_path / name).write_text("OLD")
    (tmp_path / "own.py").write_text(SLY)
    done = doctor(tmp_path, "own.py", options=("--out", "out"))
    assert done.code == 0, done.stderr
    assert "DONE" in done.stdout
    assert {name: (tmp_path / name).read_text()[:8] for name in names} == dict.fromkeys(names, "OLD") | {
        "added": "OLDmore"  # what is added to overwrites nothing
    }
    left = {path.name for path in tmp_path.iterdir()} - {*THERE, "runs", "own.py", "report.json", "out", ".stoker"}
    assert left == {"rotated.1", "runs_before", "best-last.pt", "best-kept.pt"}  # no checkpoint of the run's own
    assert not list(tmp_path.rglob(".stoker-*"))


@pytest.mark.slow
def test_a_whole_run_writes_what_it_writes(tmp_path: Path) -> None:
    fill(tmp_path)
    done = doctor(tmp_path, *script("overwrites.py"), options=("--whole",))
    assert done.code == 0, done.stderr
    assert found(tmp_path)["metrics.json"] == '{"epoch": 1}'
    assert not (tmp_path / "old").exists()


@pytest.mark.slow
def test_after_kill_9_of_everybody_the_next_command_puts_it_back(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("precious")
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time\nopen('weights.bin', 'w').write('half')\nprint('now', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "stoker", "doctor", "--", sys.executable, str(hangs)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "weights.bin").read_text() == "half"
    done = doctor(tmp_path, sys.executable, "-c", "")
    assert "put back" in done.stderr
    assert (tmp_path / "weights.bin").read_text() == "precious"


def test_nobody_puts_back_what_a_living_run_has_moved(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "kept").write_text("precious")
    open_journal(run)
    with (run / JOURNAL).open("a") as journal:
        journal.write(json.dumps({"path": str(tmp_path / "x"), "kept": str(run / "kept")}) + "\n")
    assert recover(tmp_path) == []
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    text = (run / JOURNAL).read_text().splitlines()
    (run / JOURNAL).write_text("\n".join([json.dumps({"owner": owner.pid, "born": "1"}), *text[1:], '{"torn']))
    deadline = time.monotonic() + 20
    while recover(tmp_path) != [str(tmp_path / "x")] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "x").read_text() == "precious"
    assert not (run / JOURNAL).exists()

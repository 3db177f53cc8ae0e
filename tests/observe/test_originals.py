"""What was there before a diagnostic run is there after it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cli.doctor_program import doctor, script
from scripts import LIGHT
from stoker.observe.leftovers import holds_checkpoint
from stoker.observe.originals import Originals
from stoker.observe.restore import JOURNAL, open_journal, recover, restore

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
torch.save({}, "runs/model.pt")  # where there is none now, and one was before
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
torch.save({}, "renamed.pt")
os.rename("renamed.pt", "renamed_1.pt")
torch.load("renamed_1.pt")
assert not os.path.exists("renamed.pt") and "renamed_1.pt" in os.listdir(".")
torch.save({}, "removed.pt")
os.remove("removed.pt")
assert not os.path.exists("removed.pt")
torch.save({"v": 1}, "twice.pt")
with open("twice.tmp", "wb") as file:
    torch.save({"v": 2}, file)
os.replace("twice.tmp", "twice.pt")
assert torch.load(f="twice.pt") == {"v": 2} and os.path.exists(b"twice.pt")
torch.save({}, "part.pt")
os.replace("part.pt", "replaced.pt")
torch.save({}, "part.pt")
os.replace("part.pt", "fresh.pt")
Path("added").write_text("NEW")
torch.jit.save(torch.jit.script(model), "scripted")
print("DONE")
"""
)
THERE = (
    *("touched", "rotated", "added", "mode", "in_place", "cut", "out_put", "scripted"),
    *("kept.pt", "replaced.pt", "renamed.pt", "removed.pt", "twice.pt"),
)


@pytest.mark.slow
def test_whatever_happened_to_a_file_before_it_was_overwritten(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    names = [*THERE, "runs/a.txt", "runs/b.txt", "runs/model.pt"]
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
    assert left == {"runs_before"}  # no checkpoint of the run's own
    assert (tmp_path / "rotated").stat().st_nlink == 1
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


def test_a_restore_that_dies_in_the_middle_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, before, after = tmp_path / "run", tmp_path / "a", tmp_path / "b"
    for folder in (run, before, after):
        folder.mkdir()
    (after / "model.pt").write_text("precious")
    (before / "model.pt").write_text("of the run")
    lines = [{"made": str(tmp_path / "x")}, {"moved": [str(before), str(after)]}, {"made": str(before / "model.pt")}]
    (run / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    unlink = Path.unlink

    def die(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "x":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        restore(run)
    monkeypatch.undo()
    for _ in range(2):
        restore(run)
        assert (before / "model.pt").read_text() == "precious"
    assert not (run / JOURNAL).exists()


def test_two_runs_in_one_folder_leave_it_as_it_was(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.json"
    metrics.write_text("precious")
    time.sleep(0.05)  # files are stamped more coarsely than that
    runs = []
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        open_journal(tmp_path / "runs" / name)
        runs.append(Originals(tmp_path / "runs" / name, time.time()))
        time.sleep(0.05)
        runs[-1].saving(metrics)
        metrics.write_text(f"of {name}")
        time.sleep(0.05)
    restore(tmp_path / "runs" / "a")
    assert metrics.read_text() == "precious"
    runs[1].saving(metrics)
    metrics.write_text("of b again")
    restore(tmp_path / "runs" / "b")
    assert metrics.read_text() == "precious"


def test_what_was_written_after_a_killed_run_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "kept").write_text("of last month")
    (run / "kept2").write_text("precious")
    paths = {name: tmp_path / name for name in ("metrics.json", "model.pt", "weights.bin", "last.pt")}
    lines = [
        {"owner": 1, "born": "never"},
        {"path": str(paths["metrics.json"]), "kept": str(run / "kept")},
        {"made": str(paths["model.pt"])},
        {"path": str(paths["weights.bin"]), "kept": str(run / "kept2")},
        {"made": str(paths["last.pt"])},
    ]
    (run / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, path in paths.items():
        path.write_text(f"{name} of the run")
    an_hour_ago = time.time() - 3600
    for path in [*run.iterdir(), *paths.values()]:
        os.utime(path, (an_hour_ago, an_hour_ago))
    for name in ("metrics.json", "model.pt"):  # a real training, since then
        paths[name].write_text("real")
    assert recover(tmp_path) == [str(paths["weights.bin"])]
    found = {name: path.read_text() for name, path in paths.items() if path.exists()}
    assert found == {"metrics.json": "real", "model.pt": "real", "weights.bin": "precious"}
    assert (run / "kept").read_text() == "of last month"
    assert str(run / "kept") in capsys.readouterr().err
    assert recover(tmp_path) == []


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


def test_an_original_that_cannot_be_moved_aside_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = tmp_path / "run", tmp_path / "model.pt"
    run.mkdir()
    model.write_text("precious")
    time.sleep(0.05)
    originals = Originals(run, time.time())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "link", refuse)
    originals.saving(model)
    model.write_text("of the run")
    restore(run)
    assert model.read_text() == "precious"
    model.touch()
    monkeypatch.setattr("shutil.copy2", refuse)
    with pytest.raises(OSError, match=r"model\.pt is not written"):
        Originals(run, time.time() + 1).saving(model)


def test_nothing_is_removed_that_the_run_did_not_make(tmp_path: Path) -> None:
    run, new, other = tmp_path / "run", tmp_path / "new", tmp_path / "other"
    other.mkdir()
    torch.save({}, tmp_path / "mine.pt")
    torch.save({}, other / "x.pt")
    time.sleep(0.05)
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"started_s": time.time()}))
    new.mkdir()
    for name in ("a.pt", "unheard.json"):
        torch.save({}, new / name)
    (tmp_path / "mine.pt").rename(new / "mine.pt")  # by another program: nobody heard of it
    (tmp_path / "led").symlink_to(other)
    lines = [
        {"folder": str(new)},
        {"saved": str(new / "a.pt"), "at": time.time() - 1},
        *({"new": str(path)} for path in (new / "a.pt", tmp_path / "led" / "x.pt", other / "x.pt", other)),
    ]
    (run / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    restore(run)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"run", "run/run.json", "new", "new/mine.pt", "other", "other/x.pt", "led"}


WRITES = """
import os, shutil, sys, time, zipfile
from pathlib import Path
from stoker.observe.originals import Originals

originals = Originals(Path("run").absolute(), float(sys.argv[1]))
originals.start()


def save(name):  # what torch.save does, without torch
    originals.saving(name)
    with zipfile.ZipFile(name, "w") as file:
        file.writestr("archive/data.pkl", "new")


save("model.pt")
os.unlink("latest")
os.symlink("model.pt", "latest")
os.rename("old", "older")
os.mkdir("old")
save("old/a.pt")
os.rename("best.pt", "old/best.pt")
save("best.pt")
save("part")
os.replace("part", "last.pt")
os.makedirs("out/1.part")
save("out/1.part/w.pt")
Path("out/1.part/state.json").write_text("new")
os.rename("out/1.part", "out/1")
shutil.rmtree("gone")
os.mkdir("gone")
save("gone/b.pt")
Path("log.txt").write_text("stays")
"""


def files(folder: Path) -> dict[str, str]:
    """Of every file its bytes, of every link where it leads."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    return {
        name: str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
        for name, path in paths.items()
        if not name.startswith("run/")
    }


@pytest.mark.slow
def test_whenever_putting_back_is_killed_the_next_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = {name: getattr(os, name) for name in ("unlink", "replace", "rename", "truncate", "rmdir")}
    kills = 0
    for at in range(200):
        place = tmp_path / f"{at}"
        before = overwritten(place)
        calls = iter(range(200))

        def act(*args: object, name: str, kill: int = at, calls: Iterator[int] = calls, **kwargs: object) -> None:
            if next(calls) == kill:
                raise KeyboardInterrupt
            acts[name](*args, **kwargs)

        for name in acts:
            monkeypatch.setattr(os, name, partial(act, name=name))
        with suppress(KeyboardInterrupt):
            restore(place / "run")
        monkeypatch.undo()
        kills += (is_killed := next(calls) > at)
        restore(place / "run")
        assert files(place) == {**before, "log.txt": "stays"}, f"killed before act {at}"
        if not is_killed:
            break
    assert kills > 20


def overwritten(place: Path) -> dict[str, str]:
    """A place where a run has ended, and nothing was put back; returns what was there before."""
    for name in ("run/x", "old/a.pt", "gone/b.pt", "model.pt", "best.pt", "last.pt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"precious {name}")
    (place / "latest").symlink_to("old/a.pt")
    before = files(place)
    time.sleep(0.02)
    began_s = time.time()
    (place / "run" / "run.json").write_text(json.dumps({"started_s": began_s}))
    subprocess.run([sys.executable, "-c", WRITES, str(began_s)], cwd=place, check=True)
    return before


def test_a_checkpoint_is_known_by_what_it_holds(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    torch.save(model.state_dict(), tmp_path / "archive")
    torch.save({}, tmp_path / "legacy", _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), tmp_path / "tensors")
    (tmp_path / "link").symlink_to("archive")
    assert {path.name for path in tmp_path.iterdir() if not holds_checkpoint(str(path))} == set()
    others = tmp_path / "others"
    others.mkdir()
    np.savez(others / "arrays.npz", a=np.ones(3))
    (others / "torn.zip").write_bytes((tmp_path / "archive").read_bytes()[:100])
    (others / "state.pkl").write_bytes(pickle.dumps({"a": 1}))
    (others / "text.json").write_text('{"a": 1}')
    (others / "empty").touch()
    (others / "nowhere").symlink_to("nothing")
    os.mkfifo(others / "pipe")
    assert [path.name for path in others.iterdir() if holds_checkpoint(str(path))] == []

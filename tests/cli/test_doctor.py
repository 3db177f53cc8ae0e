import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cli.doctor_program import WATCHING, Done, doctor, script

CONTRACT = {
    "wall_s", "steps", "epochs", "steps_per_epoch", "samples_per_s", "startup_s", "first_batch_s", "steady_step_s",
    "mean_step_s", "phases", "unaccounted_share", "hot_lines", "ceilings", "prediction", "workers", "memory", "device",
    "findings", "verdict", "overhead_share",
}  # fmt: skip
PHASES = [
    "startup", "first_batch", "data_wait", "transfer", "forward", "loss", "backward", "optimizer", "zero_grad",
    "sync", "validation", "checkpoint", "logging", "gc", "shutdown", "other",
]  # fmt: skip


def names_all_time(done: Done) -> None:
    phases = done.report["phases"]
    assert [phase["name"] for phase in phases] == PHASES
    assert sum(phase["share"] for phase in phases) == pytest.approx(1, abs=1e-3)
    assert sum(phase["seconds"] for phase in phases) == pytest.approx(done.report["wall_s"], rel=1e-3)
    assert all(phase["seconds"] >= 0 for phase in phases)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_every_second_has_its_name(tmp_path: Path, workers: int) -> None:
    done = doctor(tmp_path, *script("known_times.py", str(workers)), options=WATCHING)
    assert done.code == 0, done.stderr
    assert set(done.report) >= CONTRACT
    names_all_time(done)
    assert (done.report["steps"], done.report["epochs"], done.report["steps_per_epoch"]) == (80, 2, 40)
    assert len(done.report["first_batch_s"]) == 2
    assert done.report["unaccounted_share"] <= 0.02
    # What the script sleeps is the least each part can take; nothing of it may be billed to another part.
    assert done.seconds("other") >= 80 * 0.004
    assert done.seconds("validation") >= 2 * 10 * 0.003
    assert done.seconds("checkpoint") > 0
    if not workers:
        assert done.seconds("data_wait") + done.seconds("first_batch") >= 80 * 4 * 0.001
        assert done.seconds("validation") >= 2 * 10 * (0.003 + 4 * 0.001)
    for phase in ("startup", "first_batch", "forward", "loss", "backward", "optimizer", "zero_grad", "shutdown"):
        assert done.seconds(phase) > 0, phase
    assert done.seconds("sync") == 0  # a CPU has nobody to wait for


@pytest.mark.slow
def test_the_scripts_own_lines_are_named(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("known_times.py"), options=WATCHING)
    own = [line for line in done.report["hot_lines"] if line["function"] == "own_work"]
    assert own, done.report["hot_lines"]
    assert own[0]["file"].endswith("known_times.py")
    assert own[0]["phase"] == "other"


@pytest.mark.slow
def test_workers_are_seen_from_inside(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("known_times.py", "2"), options=WATCHING)
    workers = done.report["workers"]
    assert len(workers) == 8  # two for each of two passes over two loaders
    stages = [worker["stages"] for worker in workers]
    # The dataset sleeps a millisecond for each of its samples: that is waiting, which `read` is made of.
    assert sum(stage["read"] for stage in stages) >= 0.9 * 2 * (160 + 40) * 0.001
    for worker, stage in zip(workers, stages, strict=True):
        assert min(stage["collate"], stage["send"]) > 0
        assert stage["transform"] >= 0  # it does next to nothing here: less than collating took, seen by another clock
        assert worker["cpu_s"] < stage["read"] + stage["transform"] + stage["collate"]


@pytest.mark.slow
def test_steps_and_meters_are_kept_as_tables(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("known_times.py"), options=WATCHING)
    run = next((tmp_path / ".stoker" / "runs").iterdir())
    with pa.OSFile(str(run / "steps.arrow")) as file:
        steps = pa.ipc.open_file(file).read_all()
    assert steps.num_rows == done.report["steps"]
    parts = [name for name in steps.column_names if name.endswith("_s") and name not in ("start_s", "end_s")]
    apart = {"validation_s", "checkpoint_s", "first_batch_s"}  # not part of a step's own seconds
    for row in steps.to_pylist():
        assert sum(row[name] for name in parts if name not in apart) == pytest.approx(row["seconds"], abs=1e-6)
        assert row["end_s"] > row["start_s"]
    with pa.OSFile(str(run / "meters.arrow")) as file:
        meters = pa.ipc.open_file(file).read_all()
    assert meters.num_rows > 0
    assert meters.column("private_bytes").null_count < meters.num_rows


@pytest.mark.slow
def test_the_users_checkpoint_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("precious")
    done = doctor(tmp_path, *script("known_times.py"))
    assert done.code == 0
    assert (tmp_path / "checkpoint.pt").read_text() == "precious"
    assert "checkpoints are untouched" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stoker", "checkpoint.pt", "report.json"]
    assert not list(tmp_path.rglob("*scratch*"))


@pytest.mark.parametrize(("workers", "code"), [("0", "0"), ("2", "7")])
@pytest.mark.slow
def test_a_whole_run_is_the_users_own_in_every_bit(tmp_path: Path, workers: str, code: str) -> None:
    env = {"WORKERS": workers, "CODE": code}
    plain_dir, watched_dir = tmp_path / "a", tmp_path / "b"
    plain_dir.mkdir()
    watched_dir.mkdir()
    words = script("deterministic.py", "--lr", "0.1")
    plain = subprocess.run(
        words, cwd=plain_dir, env={**os.environ, **env}, input="typed", capture_output=True, text=True, check=False
    )
    done = doctor(watched_dir, *words, options=("--whole",), env=env, text="typed")
    assert plain.returncode == int(code)
    assert plain.stdout.replace(str(plain_dir), "X") == done.stdout.replace(str(watched_dir), "X")
    assert done.code == (3 if code != "0" else 0)
    assert (plain_dir / "weights.pt").read_bytes() == (watched_dir / "weights.pt").read_bytes()


def test_the_report_comes_again(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("plain.py", "plain"))
    assert done.code == 0, done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "stoker", "report", "last"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "all of the run" in again.stdout
    for form in ("--json", "--md"):
        words = [sys.executable, "-m", "stoker", "report", form, "-"]
        text = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert "startup" in text


def test_an_unknown_run_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "stoker", "report", "nothing"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no run is called nothing" in done.stderr

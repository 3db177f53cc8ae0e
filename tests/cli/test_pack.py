"""`stoker pack`, the real program."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from loader.sources import check, records
from stoker.loader.front import Loader


def pack(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from stoker.commands import main; main()", "pack", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"{number}.npy", records(number * 50, 50))
    return folder


def test_it_estimates_packs_and_knows_what_it_did(tmp_path: Path, source: Path) -> None:
    dry = pack(source, tmp_path / "dst", "--shuffle", "--dry-run")
    assert dry.returncode == 0
    assert "3 files, 0.0 MB, 150 rows" in dry.stdout
    assert "shuffled (seed 0)" in dry.stdout
    assert not list(tmp_path.glob("dst*"))
    done = pack(source, tmp_path / "dst", "--shuffle", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is whole: see its manifest.json" in done.stdout
    with Loader(stoker.open(tmp_path / "dst"), 10) as loader:
        got = [i for batch in loader for i in check(batch)]
    assert sorted(got) == list(range(150))
    assert got != list(range(150))
    again = pack(source, tmp_path / "dst", "--shuffle")
    assert "already holds this, whole" in again.stdout


def test_a_plan_is_written_and_carried_out(tmp_path: Path, source: Path) -> None:
    planned = pack(source, tmp_path / "dst", "--plan", tmp_path / "plan.json")
    assert "carry it out with: stoker pack" in planned.stdout
    assert not (tmp_path / "dst").exists()
    assert pack(tmp_path / "plan.json", tmp_path / "dst").returncode == 0
    assert len(list((tmp_path / "dst").glob("*.npy"))) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["src"], "Missing argument"),
        (["none", "dst"], "none does not exist"),
        (["src", "dst", "--compress"], "records are mapped"),
        (["src", "dst", "--memory", "much"], "--memory is 'much', which is not a size"),
        (["src", "dst", "--shard-size", "0"], "--shard-size is '0', which is not a size"),
        (["src", "dst", "--patch", "a,b"], "'a,b' is no size"),
        (["src", "dst", "--patch", "4,4,4"], "no volume matches src"),
        (["src", "src"], "holds something else"),
        (["src", "dst", "--plan", "none/plan.json"], "the plan cannot be written"),
        (["src", "dst", "--row-group", "5"], "--row-group has no meaning for records; leave it out"),
        (["src", "dst", "--quality", "50"], "--quality has no meaning for records; leave it out"),
        (["src", "src/0.npy/dst"], "cannot be made (Not a directory); choose another destination"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path: Path, source: Path, arguments: list[str], says: str) -> None:
    done = pack(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["src"]


def test_the_folder_that_it_runs_in_is_no_destination(tmp_path: Path, source: Path) -> None:
    (tmp_path / "here").mkdir()
    done = pack(source, ".", cwd=tmp_path / "here")
    assert done.returncode == 2
    assert "is the current folder" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "src"]
    assert pack(source, tmp_path / "here").returncode == 0
    assert "already holds this, whole" in pack(source, ".", cwd=tmp_path / "here").stdout


def test_an_option_that_a_plan_has_settled_is_refused_not_ignored(tmp_path: Path, source: Path) -> None:
    assert pack(source, "dst", "--shuffle", "--plan", "plan.json", cwd=tmp_path).returncode == 0
    done = pack("plan.json", "dst", "--seed", "5", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("--seed was settled when the plan was made; leave it out, or make a new plan\n")
    assert not (tmp_path / "dst").exists()
    assert pack("plan.json", "dst", "--memory", "2GiB", "--verify", cwd=tmp_path).returncode == 0


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    for text in (b"\xff\xfe", b"\x80abc", b"{}"):
        (tmp_path / "plan.json").write_bytes(text)
        done = pack("plan.json", "dst", cwd=tmp_path)
        assert done.returncode == 2
        assert "plan.json is no plan" in done.stderr
        assert done.stderr.count("\n") == 1


def test_ctrl_c_leaves_no_half_result_and_the_next_run_finishes(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    for number in range(40):
        np.save(folder / f"{number:02}.npy", records(number * 50_000, 50_000))
    code = "from stoker.commands import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "pack",
        str(folder),
        str(tmp_path / "dst"),
        "--shard-size",
        "2MB",
        "--shuffle",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        journal = tmp_path / "dst.packing" / "done.jsonl"
        deadline = time.monotonic() + 100
        while not journal.exists() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(running.pid, signal.SIGINT)
        _, told = running.communicate(timeout=100)
    assert running.returncode == 130, told
    assert "run the same command again to go on" in told
    assert not (tmp_path / "dst").exists()
    done = pack(*command[4:])
    assert done.returncode == 0, done.stderr
    with Loader(stoker.open(tmp_path / "dst"), 50_000) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(2_000_000))

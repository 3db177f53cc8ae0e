"""Each make_data.py, as a program: deterministic, whole or not there, and clear about wrong input."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.cases import CASES, EXAMPLES, TINY, make_data

pytestmark = pytest.mark.timeout(1000)  # real programs: a busy machine takes minutes over seconds


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_and_scale_give_the_same_bytes(case: str, data_of: Callable[[str], Path], tmp_path: Path) -> None:
    first = digest(data_of(case))
    done = make_data(case, tmp_path / "again", "--scale", TINY)
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path / "again") == first
    assert len(first) > 2
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


@pytest.mark.parametrize("case", ["records", "text"])
def test_another_seed_gives_other_data(case: str, data_of: Callable[[str], Path], tmp_path: Path) -> None:
    make_data(case, tmp_path / "other", "--scale", TINY, "--seed", "1")
    ours, theirs = digest(data_of(case)), digest(tmp_path / "other")
    assert ours.keys() == theirs.keys()
    same = {name for name in ours if ours[name] == theirs[name]}
    assert same <= {"tokenizer.json"}  # the vocabulary is the same for every seed


@pytest.mark.parametrize("case", CASES)
def test_the_room_it_announces_is_near_the_room_it_takes(case: str, data_of: Callable[[str], Path]) -> None:
    told = json.loads((data_of(case) / "dataset.json").read_text())
    taken = sum(path.stat().st_size for path in data_of(case).rglob("*") if path.is_file())
    assert 0.3 * taken < told["bytes"] < 3 * taken


@pytest.mark.parametrize(
    ("case", "scale"), [*((case, "0") for case in CASES), *(("text", scale) for scale in ("-1", "nan", "inf", "big"))]
)
def test_a_wrong_scale_is_one_line_and_exit_code_2(case: str, scale: str, tmp_path: Path) -> None:
    done = make_data(case, tmp_path / "data", "--scale", scale)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"--scale is {scale}; expected a number above 0" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--seed", "-1"], ["--sclae", "1"]])
def test_other_wrong_input_is_one_line_and_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    done = make_data("records", tmp_path / "data", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_scale_that_does_not_fit_the_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = make_data("records", tmp_path / "data", "--scale", "1e9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "GB free" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_same_data_set_is_not_made_twice(data_of: Callable[[str], Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in data_of("records").iterdir()}
    done = make_data("records", data_of("records"), "--scale", TINY)
    assert done.returncode == 0
    assert "already holds this data set" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in data_of("records").iterdir()} == before


def test_what_is_there_already_is_not_overwritten(data_of: Callable[[str], Path], tmp_path: Path) -> None:
    other_scale = make_data("records", data_of("records"), "--scale", "0.03")
    assert other_scale.returncode == 2
    assert "holds records at scale 0.02" in other_scale.stderr
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("precious")
    mine = make_data("records", tmp_path / "data", "--scale", TINY)
    assert (mine.returncode, mine.stderr.count("\n")) == (2, 1)
    assert (tmp_path / "data" / "thesis.txt").read_text() == "precious"


def start_and_wait_for_files(out: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "records" / "make_data.py", "--out", out, "--scale", "5"], stderr=subprocess.DEVNULL
    )
    partial = out.with_name(f"{out.name}.partial-{process.pid}")
    until = time.monotonic() + 60
    while not list(partial.glob("shard-0*.npy")):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.005)
    return process


def test_a_killed_run_leaves_no_data_set_and_the_next_one_sweeps_up(tmp_path: Path) -> None:
    out = tmp_path / "data"
    process = start_and_wait_for_files(out)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"data.partial-{process.pid}"]
    assert make_data("records", out, "--scale", TINY).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = start_and_wait_for_files(tmp_path / "data")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_still_at_work_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / f"data.partial-{os.getpid()}"
    theirs.mkdir()
    assert make_data("records", tmp_path / "data", "--scale", TINY).returncode == 0
    assert theirs.exists()

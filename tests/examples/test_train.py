"""Each train.py, as a program: trains on the simulated device and on the CPU, and needs Stoker only for the first."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from examples.cases import CASES, EXAMPLES, QUICK, run, train

pytestmark = pytest.mark.timeout(1000)  # real programs: a busy machine takes minutes over seconds

# Runs the script as __main__ and then tells which modules of ours it brought in.
WATCHED = """
import runpy, sys
script, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_path(script, run_name="__main__")
print("loaded:", [name for name in sys.modules if name.partition(".")[0] == "stoker"])
"""
COUNTING = """
import runpy, sys, pyarrow.parquet as pq
script, sys.argv = sys.argv[1], sys.argv[1:]
reads, read_table = [], pq.read_table
pq.read_table = lambda path: reads.append(path) or read_table(path)
runpy.run_path(script, run_name="__main__")
print("reads:", len(reads))
"""


def check(out: Path) -> None:
    checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in checkpoint["model"].values())
    metrics = json.loads((out / "metrics.json").read_text())
    shares = [row["wait_share"] for row in metrics["epochs"]] if "epochs" in metrics else [metrics["wait_share"]]
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("case", CASES)
def test_it_trains_on_the_simulated_device(case: str, data_of: Callable[[str], Path], tmp_path: Path) -> None:
    done = train(case, data_of(case), tmp_path / "run", *QUICK[case])
    assert done.returncode == 0, done.stderr
    assert "it/s" in done.stdout
    check(tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["device_busy_s"] > 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint.pt", "metrics.json"]


@pytest.mark.parametrize("case", CASES)
def test_it_trains_on_the_cpu_without_stoker(case: str, data_of: Callable[[str], Path], tmp_path: Path) -> None:
    watch = tmp_path / "watch.py"
    watch.write_text(WATCHED)
    script = str(EXAMPLES / case / "train.py")
    where = ["--data", str(data_of(case)), "--out", str(tmp_path / "run"), "--device", "cpu"]
    done = run(watch, script, *where, *QUICK[case], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("loaded: []")
    check(tmp_path / "run")


@pytest.mark.parametrize("case", CASES)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    case: str, data_of: Callable[[str], Path], tmp_path: Path
) -> None:
    done = train(case, data_of(case), tmp_path / "run", "--batch-size", "0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "--batch-size is 0; expected 1 or more" in done.stderr
    done = train(case, tmp_path / "nowhere", tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "make_data.py --out" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_events_read_a_file_for_nearly_every_shuffled_event_and_seldom_in_order(
    data_of: Callable[[str], Path], tmp_path: Path
) -> None:
    counting = tmp_path / "counting.py"
    counting.write_text(COUNTING)
    reads = {}
    for order in ("--shuffle", "--no-shuffle"):
        where = ["--data", str(data_of("events")), "--out", str(tmp_path / "run"), "--device", "cpu"]
        done = run(counting, str(EXAMPLES / "events" / "train.py"), *where, *QUICK["events"], order, cwd=tmp_path)
        reads[order] = int(done.stdout.rpartition("reads: ")[2])
    assert reads["--shuffle"] > 25  # of 32 events in two batches, over 16 files
    assert reads["--no-shuffle"] <= 4


def test_the_second_patch_does_not_fit_the_simulated_memory_of_the_volumes_case(
    data_of: Callable[[str], Path], tmp_path: Path
) -> None:
    done = train("volumes", data_of("volumes"), tmp_path / "run", *QUICK["volumes"], "--batch-size", "2")
    assert done.returncode == 1
    assert "out of memory" in done.stderr.lower()


def test_the_images_cache_spares_the_store_requests_in_later_epochs(
    data_of: Callable[[str], Path], tmp_path: Path
) -> None:
    requests = []
    for share in ("0", "1"):
        out = tmp_path / f"run-{share}"
        assert train("images", data_of("images"), out, *QUICK["images"], "--cache-share", share).returncode == 0
        requests.append(json.loads((out / "metrics.json").read_text())["requests"])
    # 100 training images, of which an epoch leaves out an incomplete batch of four, and 100 for validation.
    assert requests[0] >= 2 * 196
    assert requests[1] < 1.25 * 200


def test_ctrl_c_leaves_no_process_and_no_cache(data_of: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    where = ["--data", str(data_of("images")), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "images" / "train.py", *where, "--workers", "2", "--epochs", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # two workers and the store
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 1
    until = time.monotonic() + 20
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not list(out.glob("mount-cache-*"))

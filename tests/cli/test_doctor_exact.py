"""Experiments take nothing from the loop: it gets every batch of its epochs once and in order."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.doctor_program import doctor, script
from scripts import SCRIPTS

ALONE = """
import contextlib, io, json, sys
import exact
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exact.main(json.loads(line))
    print(json.dumps(said.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[..., str]]:
    """What the script prints without the doctor; one process for all, since each would have to import torch."""
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE], cwd=SCRIPTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(*words: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        return str(json.loads(process.stdout.readline()))

    with process:
        yield ask


@pytest.mark.parametrize(
    ("shape", "workers"), [("for", 0), ("for", 2), ("zip", 2), ("stream", 0), ("check", 2), ("hand", 0), ("bad", 2)]
)
@pytest.mark.slow
def test_the_loop_gets_what_it_would_get_alone(
    tmp_path: Path, alone: Callable[..., str], shape: str, workers: int
) -> None:
    words = ("--shape", shape, "--workers", str(workers))
    done = doctor(tmp_path, *script("exact.py", *words), options=("--budget", "60"))
    assert done.code == 0, done.stderr
    assert done.stdout == alone(*words)
    windows = done.report["probes"]["windows"]
    # On a busy machine not every experiment fits in.
    assert "replay" in {window["name"] for window in windows if window["batches"]}, windows
    assert done.report["steps"] == 3 * 48
    assert done.report["epochs"] == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_the_scripts_own_count_of_steps_is_right(tmp_path: Path, alone: Callable[..., str], workers: int) -> None:
    words = ("--workers", str(workers), "--steps", "110")
    done = doctor(tmp_path, *script("exact.py", *words), options=("--budget", "60"))
    assert done.code == 0, done.stderr
    assert done.stdout == alone(*words)
    assert done.report["steps"] - 110 in (0, 1)  # the batch with which it left is one too, if it came in an experiment


@pytest.mark.slow
def test_a_strict_zip_is_never_cut_short(tmp_path: Path, alone: Callable[..., str]) -> None:
    """An early end of one loader would break it, so the run goes on until it may end as a whole."""
    words = ("--shape", "zip", "--epochs", "2")
    done = doctor(tmp_path, *script("exact.py", *words), options=("--budget", "60", "--steps", "8"))
    assert done.code == 0, done.stderr
    assert "ValueError" not in done.stderr
    assert done.stdout == alone(*words)

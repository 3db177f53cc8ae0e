"""The five cases as programs: where they are and how to run them small and quickly."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

# How to train for a few steps on the tiny data set of each case.
QUICK = {
    "records": ["--steps", "4", "--batch-size", "64", "--workers", "1", "--val-steps", "1"],
    "volumes": ["--steps", "3", "--workers", "0", "--val-steps", "1"],
    "events": ["--steps", "2", "--batch-size", "16"],
    "images": ["--epochs", "2", "--workers", "2", "--latency-ms", "1"],
    "text": ["--epochs", "1"],
}
CASES = sorted(QUICK)
TINY = "0.02"


def run(script: Path, *arguments: str | Path, cwd: Path, timeout_s: float = 500) -> "subprocess.CompletedProcess[str]":
    # The scripts are run as a user runs them, so with a user's warnings: only ours are errors.
    environment = {**os.environ, "PYTHONWARNINGS": "default", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def make_data(case: str, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    out.parent.mkdir(parents=True, exist_ok=True)
    return run(EXAMPLES / case / "make_data.py", "--out", out, *arguments, cwd=out.parent)


def train(case: str, data: Path, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run(EXAMPLES / case / "train.py", "--data", data, "--out", out, *arguments, cwd=out.parent)

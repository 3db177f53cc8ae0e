"""The five cases as programs: where they are and how to run them small and quickly."""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

from planted.launch import Launcher

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


@cache
def launcher() -> Launcher:
    """Starts the scripts, with torch imported already."""
    # As a user runs them, so with a user's warnings: only ours are errors.
    return Launcher(PYTHONWARNINGS="default", PYTHONDONTWRITEBYTECODE="1")


def stop() -> None:
    """No process is left for the tests of others to count."""
    if launcher.cache_info().currsize:
        launcher().close()
        launcher.cache_clear()


def run(script: Path, *arguments: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as folder:
        said, errors = Path(folder, "said"), Path(folder, "errors")
        job = {"script": str(script), "arguments": words, "cwd": str(cwd), "output": str(said), "errors": str(errors)}
        code = launcher()(**job)["code"]
        return subprocess.CompletedProcess([str(script), *words], code, said.read_text(), errors.read_text())


def make_data(case: str, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    out.parent.mkdir(parents=True, exist_ok=True)
    return run(EXAMPLES / case / "make_data.py", "--out", out, *arguments, cwd=out.parent)


def train(case: str, data: Path, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run(EXAMPLES / case / "train.py", "--data", data, "--out", out, *arguments, cwd=out.parent)

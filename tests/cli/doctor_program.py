"""The real program, as a user starts it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import SCRIPTS

WATCHING = ("--observe-only",)
"""Experiments are cut out of a run's time, so a test of how long a part takes in all only watches."""


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    def seconds(self, phase: str) -> float:
        return float(next(p["seconds"] for p in self.report["phases"] if p["name"] == phase))

    def share(self, phase: str) -> float:
        return float(next(p["share"] for p in self.report["phases"] if p["name"] == phase))


def doctor(
    cwd: Path, *words: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None, text: str = ""
) -> Done:
    """Run `stoker doctor` to its end and read the JSON it wrote, if any; experiments and all, as a user starts it."""
    report = cwd / "report.json"
    command = [sys.executable, "-m", "stoker", "doctor", "--no-html", "--json", str(report), *options, "--", *words]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, input=text, capture_output=True, text=True, check=False
    )
    found = json.loads(report.read_text()) if report.exists() else {}
    return Done(done.returncode, done.stdout, done.stderr, found)


def script(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(SCRIPTS / name), *words)

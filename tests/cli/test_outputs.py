"""Where nothing can be written, or what lies there is damaged: one line before anything is run, and no traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.ledger import Ledger


def stoker(cwd: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stoker", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


SCRIPT = ("--", sys.executable, "-c", "open('was_run', 'w')")


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--json", "folder", *SCRIPT),
        ("doctor", "--html", "file/report.html", *SCRIPT),
        ("watch", "--json", "file/deeper/live.json", *SCRIPT),
        ("tune", "--json", "folder", *SCRIPT),
        ("report", "--md", "file/report.md"),
        ("report", "--trace", "folder"),
        ("compare", "a", "b", "--json", "folder"),
        ("predict", "--json", "folder"),
        ("bench", "--json", "file/bench.json", "."),
    ],
)
def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    done = stoker(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is a directory" in done.stderr or "is a file" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("words", [("report",), ("doctor", *SCRIPT), ("watch", *SCRIPT), ("compare", "a", "b")])
@pytest.mark.parametrize("home", ["a damaged ledger", "a file"])
def test_a_home_that_is_none_is_said(tmp_path: Path, words: tuple[str, ...], home: str) -> None:
    place = tmp_path / ".stoker"
    if home == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "ledger.db").write_bytes(b"no database at all" * 100)
    done = stoker(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert ".stoker" in done.stderr
    assert not (tmp_path / "was_run").exists()
    assert place.read_text() == "mine" if home == "a file" else (place / "ledger.db").stat().st_size == 1800


@pytest.mark.parametrize("damage", ["run.json", "samples", "notes"])
def test_damaged_records_are_said_or_read_as_far_as_they_go(tmp_path: Path, damage: str) -> None:
    row = Ledger(tmp_path / ".stoker").open_run(["python", "train.py"])
    about = {"command": ["python", "train.py"], "started_s": 1.0, "start_ns": 0, "whole": False}
    (row.directory / "run.json").write_text("{}" if damage == "run.json" else json.dumps(about))
    stem = row.directory / "process-7-1"
    stem.with_suffix(".notes").write_text('[1, 2]\n{"no": "note"}\n{"note": "process", "t": 1}\n{"torn')
    stem.with_suffix(".samples").write_bytes(bytes(range(256)) * 3)
    stem.with_suffix(".events").write_bytes(bytes(range(255, 0, -1)) * 3)
    done = stoker(tmp_path, "report", row.run)
    assert done.returncode in (0, 2, 4), done.stderr
    assert "Traceback" not in done.stderr

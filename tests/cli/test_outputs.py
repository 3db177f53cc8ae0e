"""Where nothing can be written, or what lies there is damaged: one line before anything is run, and no traceback."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from planted import suite
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


# ---- disks -----------------------------------------------------------------------------------------------

RAN = ("--", sys.executable, "-c", "print('ran')")
FILL = "{ cat /dev/zero > filled 2>/dev/null || true; }"


def on_a_disk(tmp_path: Path, before: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """The program in a small disk of its own, made ready `before`; what it leaves is listed on stdout."""
    if (why := suite.no_namespace()) is not None:
        pytest.skip(why)
    disk = tmp_path / "disk"
    disk.mkdir()
    program = shlex.join([sys.executable, "-m", "stoker", *words])
    ready = f"mount -t tmpfs -o size=1m none {disk} && cd {disk} && {before}"
    text = f"{ready} && {{ {program}; code=$?; find .stoker 2>/dev/null; exit $code; }}"
    command = ["unshare", "--mount", "sh", "-c", text]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


def kept(place: str) -> str:
    """Shell: a home in which a run was kept already."""
    code = f"from stoker.ledger import Ledger; from pathlib import Path; Ledger(Path({place!r})).open_run(['x'])"
    return shlex.join([sys.executable, "-c", code])


@pytest.mark.parametrize("before", [FILL, f"{kept('.stoker')} && {FILL}"])
@pytest.mark.parametrize("verb", ["doctor", "watch"])
def test_a_full_disk_is_said_in_one_line_before_anything_is_run(tmp_path: Path, before: str, verb: str) -> None:
    done = on_a_disk(tmp_path, before, verb, *RAN)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "No space left on device" in done.stderr
    assert "--out DIR" in done.stderr
    assert "ran\n" not in done.stdout
    assert done.stdout.count("/runs/") == before.count("open_run")  # nothing new was left


def test_a_disk_that_a_run_fills_costs_its_records_only(tmp_path: Path) -> None:
    crowd = "for _ in range(80): subprocess.Popen(['sleep', '3'])"  # a meter's line of them is longer than a page
    code = (
        f"import os, subprocess, time, torch\nos.system('cat /dev/zero > filled')\n{crowd}\ntime.sleep(3)\nprint('ran')"
    )
    done = on_a_disk(tmp_path, "true", "doctor", "--no-html", "--json", "-", "--", sys.executable, "-c", code)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "the report could not be kept" in done.stderr
    assert "no training loop was seen" in done.stderr
    assert done.stdout.startswith("ran\n{\n")
    assert "diagnosis.json" not in done.stdout  # in the list of what is left


@pytest.mark.parametrize(
    "before",
    [
        f"{kept('.stoker')} && {FILL}",
        "mount -o remount,ro .",
        f"{kept('.stoker')} && mount -o remount,ro .",
        "touch .stoker",
    ],
)
def test_records_that_have_a_place_need_no_index(tmp_path: Path, before: str) -> None:
    out = tmp_path / "out"
    done = on_a_disk(tmp_path, before, "doctor", "--out", str(out), *RAN)
    assert done.stdout.startswith("ran\n"), done.stderr
    assert done.returncode == 4  # no training, and that is all that is wrong
    assert done.stderr.count("no index of runs") == 1
    assert "Traceback" not in done.stderr
    assert json.loads((out / "diagnosis.json").read_text())["steps"] == 0


@pytest.mark.parametrize("before", ["true", kept(".stoker")])
def test_where_nothing_can_be_written_out_is_named(tmp_path: Path, before: str) -> None:
    done = on_a_disk(tmp_path, f"{before} && mount -o remount,ro .", "doctor", *RAN)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Read-only file system" in done.stderr
    assert "--out DIR" in done.stderr


def test_runs_can_be_listed_on_a_disk_that_is_full_or_read_only(tmp_path: Path) -> None:
    for name, then in {"full": FILL, "read-only": "mount -o remount,ro ."}.items():
        (tmp_path / name).mkdir()
        done = on_a_disk(tmp_path / name, f"{kept('.stoker')} && {then}", "report", "nope")
        assert "no run is called nope; known runs: 2" in done.stderr, done.stderr

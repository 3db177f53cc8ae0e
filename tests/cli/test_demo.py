"""`stoker demo`, as a user runs it, in an empty directory."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from stoker.commands.demo import ABOUT, examples

ROOT = Path(__file__).parents[2]
# Whole trainings under the doctor, in several processes: a machine that is busy with other things takes minutes.
PATIENCE_S = 500.0
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
TINY_TEXT = ["text", "--scale", "0.2", "--tune-budget", "0"]


def stoker(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "stoker", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONWARNINGS": "default", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a plain `pip install` of the wheel puts on the path."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)
    (wheel,) = (place / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def test_the_wheel_carries_the_cases(installed: Path) -> None:
    (wheel,) = (installed.parent / "dist").glob("*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    for case in ABOUT:
        assert {f"stoker/_examples/{case}/{name}" for name in ("make_data.py", "train.py", "README.md")} <= carried
    assert not any("__pycache__" in name for name in carried)


def test_once_installed_records_is_made_diagnosed_trained_fixed_and_compared(tmp_path: Path, installed: Path) -> None:
    environment = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": ""}
    done = stoker("demo", "--scale", "0.1", "--tune-budget", "0", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert str(installed / "stoker" / "_examples" / "records" / "README.md") in done.stdout.replace("\n", "")
    home = tmp_path / "stoker-demo" / "records"
    rates = [json.loads((home / run / "metrics.json").read_text())["samples_per_s"] for run in ("before", "after")]
    assert f"{rates[1] / rates[0]:.1f} times as fast" in done.stdout
    assert "ceiling of the device" in done.stdout
    diagnosis = json.loads((home / "doctor.json").read_text())
    assert sum(phase["share"] for phase in diagnosis["phases"]) == pytest.approx(1, abs=1e-3)
    assert sorted(path.name for path in home.iterdir()) == ["after", "before", "data", "doctor.json", "report.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stoker", "stoker-demo"]


def test_a_checkout_prefers_its_own_cases() -> None:
    assert examples() == ROOT / "examples"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "record"], "'record' is not one of 'records', 'volumes', 'events', 'images', 'text'"),
        (["demo", "--scale", "0"], "0.0 is not in the range x>0"),
        (["demo", "--out", "file"], "'file' is a file"),
        (["demo", "--scale", "big"], "'big' is not a number"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "file").write_text("")
    done = stoker(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert complaint in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "stoker-demo" / "records" / "data"
    data.mkdir(parents=True)
    (data / "thesis.txt").write_text("precious")
    done = stoker("demo", cwd=tmp_path)
    assert done.returncode == 2
    assert "not a data set of ours" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


def test_a_missing_extra_is_named_before_anything_is_made(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'tokenizers' else find(name, *rest)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    (tmp_path / "empty").mkdir()
    done = stoker("demo", "text", cwd=tmp_path / "empty", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.strip() == "stoker: tokenizers is not installed; run: pip install 'stoker[text]'"
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_script_that_fails_shows_its_own_traceback_and_gives_exit_code_3(tmp_path: Path) -> None:
    data = tmp_path / "stoker-demo" / "text" / "data"
    made = [sys.executable, str(ROOT / "examples" / "text" / "make_data.py"), "--out", str(data), "--scale", "0.2"]
    subprocess.run(made, check=True, capture_output=True, timeout=PATIENCE_S)
    (data / "train.jsonl").write_text("not JSON\n")
    done = stoker("demo", *TINY_TEXT, cwd=tmp_path)
    assert done.returncode == 3
    assert "JSONDecodeError" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("stoker: train.py of text ended with code 1")


def test_ctrl_c_ends_the_children(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "stoker", "demo"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the first line of the training
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2  # the script and its worker
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaints.strip().endswith("stoker: stopped")
    until = time.monotonic() + 20
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family):
        assert time.monotonic() < until
        time.sleep(0.05)

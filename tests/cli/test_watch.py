"""`stoker watch` as people use it: on terminals of several widths, piped, interrupted, attached."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.terminal import Terminal, interrupt, stoker
from scripts import SCRIPTS

SCRIPT = str(SCRIPTS / "watched.py")
ESCAPE = re.compile(rb"\x1b")
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-9]\b[0-9;]*m|\x1b\[[0-9;]*m")

pytestmark = pytest.mark.slow


def train(*words: str) -> list[str]:
    return [sys.executable, SCRIPT, *words]


def has(*parts: str) -> "object":
    return lambda lines: all(any(part in line for line in lines) for part in parts)


def piped(cwd: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    return subprocess.run(stoker(*words), cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_the_picture_stands_below_the_scripts_own_lines(tmp_path: Path, columns: int) -> None:
    with Terminal(stoker("watch", "--", *train("held", "3")), tmp_path, columns=columns, rows=24) as terminal:
        lines = terminal.until(
            lambda lines: (
                any("it/s" in line for line in lines) and any(line.startswith("process  2 of 2") for line in lines)
            )
        )
        top = next(i for i, line in enumerate(lines) if line.startswith("── stoker"))
        assert lines[top].endswith("─")
        assert [line.split()[0] for line in lines[top + 1 : top + 3]] == ["epoch", "speed"]
        assert not any("step " in line for line in lines[top:] if line.startswith("epoch 0"))
        assert all(len(line) < columns for line in lines[top:])
        (tmp_path / "go").touch()
        assert terminal.to_the_end() == 0
        shown = terminal.all_lines()
    # Every line of the script is there, whole and once, and nothing of the picture is left.
    joined = "".join(line.ljust(columns) if len(line) == columns else line + "\n" for line in shown)
    said = re.findall(r"epoch (\d) step (\d+) loss [\d.]+ x{30} end-of-line", joined)
    assert said == [(str(epoch), str(step)) for epoch in range(3) for step in range(0, 40, 10)]
    assert not any(line.startswith(("── stoker", "speed ")) for line in shown)
    assert any(line.startswith("stoker: ended with code 0") for line in shown)
    assert (tmp_path / "weights.pt").exists()


GROWING = """
import sys
from rich.text import Text
from stoker.report.screen import Below
below = Below(sys.stdout)
for i in range(40):
    print(f"line {i} ", end="", flush=True)
    below.draw([Text(f"ours {row}") for row in range(1 + i // 8)])
    print("end", flush=True)
below.close()
"""


def test_a_picture_that_grows_leaves_the_scripts_lines_whole(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", GROWING], tmp_path, columns=60, rows=24) as terminal:
        assert terminal.to_the_end() == 0
        assert [line for line in terminal.all_lines() if line] == [f"line {i} end" for i in range(40)]


def test_without_colours_where_the_user_wants_none(tmp_path: Path) -> None:
    env = {"NO_COLOR": "1"}
    with Terminal(stoker("watch", "--", *train("well")), tmp_path, columns=80, env=env) as terminal:
        assert terminal.to_the_end() == 0
        assert b"it/s" in terminal.raw
        assert not COLOUR.search(terminal.raw)


def test_a_terminal_that_can_do_nothing_gets_plain_lines(tmp_path: Path) -> None:
    with Terminal(stoker("watch", "--", *train("well")), tmp_path, columns=80, env={"TERM": "dumb"}) as terminal:
        assert terminal.to_the_end() == 0
        assert not ESCAPE.search(terminal.raw)
        assert b"it/s" in terminal.raw


def alarms(live: dict[str, Any]) -> list[str]:
    """The names of all alarms, but of the one a busy machine can raise by itself: there the loop may indeed wait."""
    names = [alarm["name"] for alarm in live["past"] + live["alarms"]]
    return [name for name in names if name != "loader-starving"]


def test_piped_it_is_plain_lines_on_stderr_and_the_script_keeps_stdout(tmp_path: Path) -> None:
    done = piped(tmp_path, "watch", "--every", "0.5", "--json", "live.json", "--", *train("well", "2"))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stderr
    assert len(done.stdout.splitlines()) == 9
    assert done.stdout.splitlines()[-1] == "all done"
    lines = done.stderr.splitlines()
    assert all(line.startswith("stoker: ") for line in lines)
    assert any("epoch 2 of 2" in line and "it/s" in line and "left" in line for line in lines)
    assert any(line.startswith("stoker: ended with code 0") for line in lines[-2:])
    live = json.loads((tmp_path / "live.json").read_text())
    assert (live["state"], live["steps"], live["exit_code"]) == ("ended", 80, 0)
    assert [epoch["batches"] for epoch in live["epochs"]] == [40, 40]  # whole epochs, not the doctor's short ones
    assert live["workers"]["gone"] == []
    assert alarms(live) == []
    assert set(torch.load(tmp_path / "weights.pt")) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize(("what", "code"), [("fail", 7), ("signal", 128 + signal.SIGTERM)])
def test_the_exit_code_is_the_scripts_own(tmp_path: Path, what: str, code: int) -> None:
    done = piped(tmp_path, "watch", "--", *train(what, "1"))
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_worker_that_is_killed_is_told(tmp_path: Path) -> None:
    done = piped(tmp_path, "watch", "--json", "live.json", "--", *train("kill", "2"))
    # The script's own. Its words depend on where torch's signal handler raised; now and then Python prints none.
    assert done.returncode == 1
    assert re.search(r"a worker has died: .*pid \d+", done.stderr)
    live = json.loads((tmp_path / "live.json").read_text())
    assert alarms(live) == ["worker-died"]
    assert live["alarms"] == []  # told, and over


def test_a_loss_that_is_no_number_is_told_with_its_line(tmp_path: Path) -> None:
    done = piped(tmp_path, "watch", "--", *train("nan", "3"))
    assert done.returncode == 0
    assert "alarm: a value is no number: read nan, at " in done.stderr
    assert re.search(r"watched\.py:\d+", done.stderr)


def test_a_starving_loop_is_told(tmp_path: Path) -> None:
    done = piped(tmp_path, "watch", "--", *train("starving", "2"))
    assert "alarm: the loop waits for its data: waiting for data" in done.stderr


def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on(tmp_path: Path) -> None:
    line = shlex.join(stoker("watch", "--", *train("held", "2")))
    with Terminal(["bash", "--norc", "--noprofile", "-i"], tmp_path, columns=100, env={"PS1": "$ "}) as terminal:
        terminal.type(f"{line}\n".encode())
        terminal.until(lambda lines: any(row.startswith("speed ") for row in lines))
        terminal.type(b"\x1a")
        stopped = terminal.until(lambda lines: any("Stopped" in row for row in lines))
        assert not any(row.startswith(("── stoker", "speed ")) for row in stopped)
        terminal.type(b"fg\n")
        terminal.until(lambda lines: any(row.startswith("speed ") for row in lines))
        (tmp_path / "go").touch()
        terminal.until(lambda lines: any(row.startswith("stoker: ended with code 0") for row in lines))
        terminal.type(b"exit\n")
        assert terminal.to_the_end() == 0


def test_a_terminal_that_is_resized_gets_a_picture_that_fits(tmp_path: Path) -> None:
    with Terminal(stoker("watch", "--", *train("held", "2")), tmp_path, columns=100, rows=30) as terminal:
        terminal.until(lambda lines: any(row.startswith("speed ") for row in lines))
        for columns, rows in ((60, 30), (120, 40)):
            terminal.resize(columns, rows)
            title = terminal.until(
                lambda lines, columns=columns: any(  # type: ignore[misc]
                    row.startswith("── stoker") and len(row) == columns - 1 for row in lines
                )
            )
            assert sum(row.startswith("speed ") for row in title) == 1
        (tmp_path / "go").touch()
        assert terminal.to_the_end() == 0
        assert not any(row.startswith(("── stoker", "speed ")) for row in terminal.lines())
        assert "all done" in terminal.all_lines()


def test_ctrl_c_reaches_the_script_and_the_terminal_is_given_back(tmp_path: Path) -> None:
    with Terminal(stoker("watch", "--", *train("well", "1000")), tmp_path, columns=80) as terminal:
        terminal.until(lambda lines: any("it/s" in line for line in lines))
        assert terminal.interrupt() == 128 + signal.SIGINT
        shown = terminal.all_lines()
    assert any("KeyboardInterrupt" in line for line in shown)
    assert any(line.startswith("stoker: ended by signal 2") for line in shown)
    assert terminal.raw.count(b"\x1b[r") >= 1  # the whole terminal scrolls again
    assert list((tmp_path / ".stoker").glob("runs/*/end.json"))


def test_a_run_that_goes_on_is_attended_and_left_as_it_was(tmp_path: Path) -> None:
    command = stoker("watch", "--", *train("well", "1000"))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        try:
            until_it_trains(tmp_path)
            before = training.poll()
            with Terminal(stoker("watch", "last"), tmp_path, columns=60) as terminal:
                lines = terminal.until(lambda lines: any("it/s" in line for line in lines))
                assert all(len(line) < 60 for line in lines)
                terminal.type(b"\x03")
                assert terminal.to_the_end() == 0
            assert before is None
            assert training.poll() is None
            once = piped(tmp_path, "watch", "--once", "last")
            assert once.returncode == 0
            assert "it/s" in once.stdout
            assert "\x1b" not in once.stdout
        finally:
            interrupt(training)
    ended = piped(tmp_path, "watch", "last")
    assert ended.returncode == 0
    assert ended.stdout.startswith("stoker: ended by signal 2")


def test_the_training_goes_on_if_the_watch_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        stoker("watch", "--", *train("well", "4")), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as watching:
        until_it_trains(tmp_path)
        watching.kill()
    saved = tmp_path / "weights.pt"
    deadline = time.monotonic() + 90
    (pid,) = {int(path.name.split("-")[1]) for path in tmp_path.glob(".stoker/runs/*/*.notes") if main_of(path)}
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert saved.exists()
    live = json.loads(
        piped(tmp_path, "watch", "--once", "--json", "-", "last").stdout.partition("{")[2].join(["{", ""])
    )
    assert live["steps"] == 160


def main_of(notes: Path) -> bool:
    return '"note": "worker"' not in notes.read_text()


def until_it_trains(cwd: Path) -> None:
    deadline = time.monotonic() + 90
    while not any(path.stat().st_size > 8000 for path in cwd.glob(".stoker/runs/*/*.events")):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-run"], "no run is called no-such-run"),
        (["--once", "--", "python", "x.py"], "--once is for a RUN"),
        ([], "no command was given"),
        (["missing.py"], "missing.py does not exist"),
    ],
)
def test_wrong_usage_is_said_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = piped(tmp_path, "watch", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1

"""Whoever is killed, tuner, supervisor or both, no orphan is left."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.records import Limits
from stoker.trial import guard
from stoker.trial.protocol import NAME_VARIABLE
from stoker.trial.shm import DIRECTORY
from stoker.trial.sweep import new_name, sweep, sweep_orphans
from stoker.trial.tree import process
from trial.conftest import MARK, MIB, Run, marked, wait_until

# A trial with a worker and a daemon that hears nothing; it says who its supervisor is when all are there.
TRIAL = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
pathlib.Path(sys.argv[1] + ".new").write_text(str(os.getppid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
TUNER = """
import sys
from stoker.records import Limits
from stoker.trial import guard
code, ready, use_cgroup, grace_s = sys.argv[1:]
command = [sys.executable, "-c", code, ready]
try:
    guard.run(command, Limits(400 << 20), grace_s=float(grace_s), use_cgroup=use_cgroup == "True")
except KeyboardInterrupt:
    print("KeyboardInterrupt goes on", flush=True)
    sys.exit(130)
"""


@pytest.fixture
def tuner(
    tmp_path: Path, use_cgroup: bool, mark: str, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """A process that guards a trial, which is up; all of them carry the mark."""
    grace_s = getattr(request, "param", "0.3")
    arguments = [sys.executable, "-c", TUNER, TRIAL, str(tmp_path / "ready"), str(use_cgroup), grace_s]
    started = subprocess.Popen(arguments, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True)
    try:
        wait_until((tmp_path / "ready").exists)
        yield started
    finally:
        started.kill()
        started.communicate()


def supervisor(tmp_path: Path) -> int:
    return int((tmp_path / "ready").read_text())


def test_kill_9_of_the_tuner_leaves_no_orphan(tuner: subprocess.Popen[str], mark: str) -> None:
    assert len(marked(mark)) == 5
    tuner.kill()
    tuner.wait()
    wait_until(lambda: not marked(mark))


def test_kill_9_of_the_supervisor_leaves_no_orphan(tuner: subprocess.Popen[str], mark: str, tmp_path: Path) -> None:
    os.kill(supervisor(tmp_path), signal.SIGKILL)
    assert tuner.wait(60) == 0
    assert marked(mark) == set()


def test_kill_9_of_the_supervisor_is_an_outcome(use_cgroup: bool, mark: str) -> None:
    segment = DIRECTORY / f"psm_{mark}"
    code = f"""
import os, pathlib, time
if os.fork() == 0:
    file = open({str(segment)!r}, "wb")
    time.sleep(600)
while not os.path.exists({str(segment)!r}):
    time.sleep(0.01)
os.kill(os.getppid(), 9)
time.sleep(600)
"""
    outcome = guard.run(
        [sys.executable, "-c", code], Limits(400 * MIB), environment={MARK: mark}, use_cgroup=use_cgroup
    )
    assert marked(mark) == set()
    assert outcome.ending == "interrupted"
    assert outcome.exit_code is None
    assert outcome.host_peak_bytes is None
    assert not segment.exists()


def test_sigterm_of_the_supervisor_is_an_outcome(run: Run) -> None:
    outcome = run("import os, time; os.kill(os.getppid(), 15); time.sleep(600)")
    assert outcome.ending == "interrupted"
    assert "SIGTERM" in outcome.reason


def test_kill_9_of_both_is_mended_by_the_next_trial(
    tuner: subprocess.Popen[str], mark: str, tmp_path: Path, use_cgroup: bool
) -> None:
    boss = supervisor(tmp_path)
    os.kill(boss, signal.SIGSTOP)
    tuner.kill()
    tuner.wait()
    os.kill(boss, signal.SIGKILL)
    wait_until(lambda: process(boss) is None or process(boss).is_zombie)  # type: ignore[union-attr]
    # A trial of a test that runs beside this one may be the next.
    assert guard.run(["true"], Limits(400 * MIB), use_cgroup=use_cgroup).ending == "finished"
    assert marked(mark) == set()


def test_ctrl_c_ends_the_trial_and_goes_on(tuner: subprocess.Popen[str], mark: str) -> None:
    tuner.send_signal(signal.SIGINT)
    out, _ = tuner.communicate(timeout=60)
    assert out == "KeyboardInterrupt goes on\n"
    assert tuner.returncode == 130
    assert marked(mark) == set()


@pytest.mark.parametrize("tuner", ["600"], indirect=True)
def test_a_second_ctrl_c_does_not_wait_for_the_grace(tuner: subprocess.Popen[str], mark: str) -> None:
    tuner.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        tuner.wait(1)  # the trial ignores SIGTERM and has ten minutes
    tuner.send_signal(signal.SIGINT)
    assert tuner.wait(60) == 130
    assert marked(mark) == set()


def test_guards_in_two_threads_at_once_work(use_cgroup: bool, mark: str) -> None:
    endings: list[str] = []

    def run() -> None:
        command, limits = [sys.executable, "-c", "pass"], Limits(1024 * MIB, seconds=60)
        endings.append(guard.run(command, limits, environment={MARK: mark}, use_cgroup=use_cgroup).ending)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert endings == ["finished", "finished"]
    assert marked(mark) == set()


def test_sweeping_spares_trials_whose_tuner_lives(mark: str) -> None:
    name = new_name()
    environment = {**os.environ, NAME_VARIABLE: name, MARK: mark}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(child.wait)
        cleanup.callback(child.kill)
        sweep_orphans()
        time.sleep(0.1)
        assert child.poll() is None
        assert sweep(name) == 1
        assert child.wait(60) == -signal.SIGKILL


def test_a_strange_name_in_the_environment_is_nobodys_trial(mark: str) -> None:
    environment = {**os.environ, NAME_VARIABLE: "1-x", MARK: mark}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(child.wait)
        cleanup.callback(child.kill)
        sweep_orphans()
        assert child.poll() is None

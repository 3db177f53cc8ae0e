"""What a trial does is a result; what it takes is bounded; what it leaves is nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.records import Limits
from stoker.trial import cgroup, guard
from stoker.trial.protocol import Usage
from trial.conftest import MIB, Run, marked

SLEEP = "import time; time.sleep(600)"


@pytest.mark.parametrize(("code", "ending"), [(0, "finished"), (3, "failed")])
def test_an_exit_code_is_a_result(run: Run, code: int, ending: str) -> None:
    outcome = run(f"import sys; sys.exit({code})")
    assert (outcome.ending, outcome.exit_code) == (ending, code)
    assert outcome.ending == "finished" or str(code) in outcome.reason


def test_a_command_that_ends_at_once_was_guarded_all_the_same(use_cgroup: bool) -> None:
    """The kernel shows what has ended in no group, which had been taken for a group that could not be joined."""
    by = [guard.run(["true"], Limits(400 * MIB), use_cgroup=use_cgroup).guarded_by for _ in range(20)]
    assert {one.startswith("cgroup") for one in by} == {use_cgroup}


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGILL])
def test_a_death_by_signal_is_a_result(run: Run, number: signal.Signals) -> None:
    outcome = run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert (outcome.ending, outcome.exit_code) == ("failed", -number)
    assert number.name in outcome.reason


def test_a_command_that_is_not_there_is_a_result(use_cgroup: bool, tmp_path: Path) -> None:
    outcome = guard.run(["no-such-command"], Limits(100 * MIB), use_cgroup=use_cgroup)
    assert (outcome.ending, outcome.exit_code) == ("failed", 127)
    assert "no-such-command" in outcome.reason
    (tmp_path / "plain").write_text("not a program")
    assert guard.run([str(tmp_path / "plain")], Limits(100 * MIB), use_cgroup=use_cgroup).exit_code == 126


def test_four_times_the_limit_at_once_is_ended(run: Run, use_cgroup: bool) -> None:
    limits = Limits(300 * MIB, seconds=60)
    outcome = run("x = b'x' * (1200 << 20)\n" + SLEEP, limits=limits)
    assert outcome.ending == "ram"
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.host_peak_bytes is not None
    assert outcome.host_peak_bytes >= limits.host_bytes
    if use_cgroup:  # the kernel holds the limit to the page
        assert outcome.host_peak_bytes == limits.host_bytes


def test_a_slow_leak_is_ended(run: Run) -> None:
    code = "import time\nkept = []\nwhile True:\n    kept.append(b'x' * (4 << 20))\n    time.sleep(0.01)"
    outcome = run(code, limits=Limits(150 * MIB, seconds=60))
    assert outcome.ending == "ram"
    assert outcome.host_peak_bytes is not None
    assert outcome.host_peak_bytes >= 150 * MIB


def test_a_worker_that_takes_too_much_ends_the_trial_also_if_its_parent_goes_on(run: Run) -> None:
    code = "import os\nif os.fork() == 0:\n    x = b'x' * (1200 << 20)\n    import time; time.sleep(600)\n" + SLEEP
    assert run(code, limits=Limits(300 * MIB, seconds=60)).ending == "ram"


def test_many_small_processes_together_pass_the_limit(run: Run) -> None:
    code = (
        "import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        x = b'x' * (40 << 20)\n        break\n"
    )
    assert run(code + SLEEP, limits=Limits(250 * MIB, seconds=60)).ending == "ram"


def test_a_hang_is_ended(run: Run) -> None:
    outcome = run(SLEEP, limits=Limits(300 * MIB, seconds=0.5))
    assert (outcome.ending, outcome.exit_code) == ("time", -signal.SIGTERM)
    assert outcome.seconds >= 0.5


def test_a_trial_may_save_what_it_wants_before_it_ends(run: Run, tmp_path: Path) -> None:
    code = f"""
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path({str(tmp_path / "saved")!r}).write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path({str(tmp_path / "ready")!r}).touch()
time.sleep(600)
"""
    limits = Limits(300 * MIB, seconds=2)
    assert run(code, limits=limits, grace_s=30.0).ending == "time"
    assert (tmp_path / "saved").exists() or not (tmp_path / "ready").exists()


@pytest.mark.parametrize("main_ends", [False, True])
def test_the_limits_hold_while_a_trial_is_told_to_end(run: Run, main_ends: bool) -> None:
    """The grace would be ten minutes: only the limit of memory can end it before this test's time is over."""
    code = f"""
import os, signal, time
kept = []
signal.signal(signal.SIGTERM, lambda *_: kept.append(b"x" * (1200 << 20)))
if {main_ends} and os.fork():
    os._exit(0)
while True:
    time.sleep(600)
"""
    outcome = run(code, limits=Limits(300 * MIB, seconds=1.5), grace_s=600.0)
    assert outcome.ending == ("finished" if main_ends else "time")


def test_a_child_that_ignores_sigterm_is_ended(run: Run) -> None:
    code = "import signal\nfor n in (15, 2, 1):\n    signal.signal(n, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    outcome = run(code + SLEEP, limits=Limits(300 * MIB, seconds=1.5))
    assert (outcome.ending, outcome.exit_code) == ("time", -signal.SIGKILL)


def test_a_stopped_child_is_ended(run: Run) -> None:
    code = "import os, signal\nos.fork()\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    assert run(code + SLEEP, limits=Limits(300 * MIB, seconds=0.7)).ending == "time"


def test_two_hundred_idle_children_pass_the_limit_of_processes(run: Run) -> None:
    code = "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        break\n" + SLEEP
    outcome = run(code, limits=Limits(500 * MIB, seconds=60, processes=100))
    assert outcome.ending == "processes"
    assert outcome.processes_peak is not None
    assert outcome.processes_peak > 100


def test_two_hundred_idle_children_are_all_ended(run: Run) -> None:
    code = "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(600)\n" + "os._exit(0)"
    outcome = run(code)
    assert outcome.ending == "finished"
    assert "200 process(es) it left running were ended" in outcome.reason


def test_a_daemon_cannot_escape(run: Run, tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path({str(tmp_path / "daemon")!r}).write_text(str(os.getpid()))
        os.close(0); os.close(1); os.close(2)
        time.sleep(600)
    os._exit(0)
os.wait()
while not pathlib.Path({str(tmp_path / "daemon")!r}).exists():
    time.sleep(0.01)
"""
    outcome = run(code)
    assert outcome.ending == "finished"
    assert "1 process(es) it left running were ended" in outcome.reason
    assert not Path("/proc", (tmp_path / "daemon").read_text()).exists()


@pytest.mark.parametrize("new_session", [False, True])
def test_a_child_that_forks_all_the_time_is_ended(run: Run, new_session: bool) -> None:
    """Its pid is another one at every look: each process forks the next and ends."""
    code = f"""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    import time; time.sleep(600)
while True:
    if os.fork():
        os._exit(0)
    if {new_session}:
        os.setsid()
"""
    assert run(code, limits=Limits(500 * MIB, seconds=0.7)).ending == "time"


def test_no_cgroup_is_left(run: Run) -> None:
    seen: set[str] = set()
    outcome = run(SLEEP, limits=Limits(400 * MIB, seconds=1), progress=lambda _: seen.update(_groups_of_mine()))
    assert bool(seen) == outcome.guarded_by.startswith("cgroup")
    assert _groups_of_mine() == set()


def _groups_of_mine() -> set[str]:
    return {name for name in cgroup.names() if name.startswith(f"{os.getpid()}-")}


def test_cwd_environment_and_output_are_as_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_GONE", "1")
    code = """
import os, sys
print(os.getcwd(), os.environ.get("STOKER_TEST_GONE"), os.environ["STOKER_TEST_NEW"])
print(open("/proc/self/oom_score_adj").read().strip(), sys.stdin.read() == "")
print("to stderr", file=sys.stderr)
"""
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        changes = {"STOKER_TEST_GONE": None, "STOKER_TEST_NEW": "é"}
        outcome = run(code, cwd=tmp_path, environment=changes, stdout=out, stderr=err)
    assert outcome.ending == "finished"
    assert (tmp_path / "out").read_text().split() == [str(tmp_path), "None", "é", "1000", "True"]
    assert (tmp_path / "err").read_text() == "to stderr\n"


def test_progress_is_told_and_an_error_in_it_ends_the_trial(run: Run, mark: str) -> None:
    heard: list[Usage] = []
    run("import time; time.sleep(1.5)", progress=heard.append)
    assert len(heard) >= 2
    assert heard[-1].seconds > heard[0].seconds
    assert heard[-1].processes == 1

    def fail(_: Usage) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        run(SLEEP, progress=fail)
    assert marked(mark) == set()


def test_the_supervisor_imports_nothing_heavy() -> None:
    code = "import sys, stoker.trial.supervise; print({'torch', 'numpy', 'psutil', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

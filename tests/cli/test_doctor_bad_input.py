import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.doctor_program import doctor, script
from planted import suite
from scripts import SCRIPTS
from stoker.ledger import Ledger


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.py",), "missing.py does not exist"),
        ((sys.executable, "missing.py"), "missing.py does not exist"),
        (("no-such-program-at-all",), "no-such-program-at-all is no command that can be run"),
        ((), "no command was given"),
        (("--bogus", "python", "x.py"), "no option is called --bogus"),
    ],
)
def test_a_command_that_cannot_start_is_wrong_usage(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = doctor(tmp_path, *words)
    assert done.code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / ".stoker").exists()


def test_a_script_that_dies_shows_its_traceback_first_and_exits_with_3(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise RuntimeError('no data today')\n")
    done = doctor(tmp_path, sys.executable, "train.py")
    assert done.code == 3
    assert done.stderr.index("no data today") < done.stderr.index("the script ended with exit code 1")


def test_a_script_that_shared_memory_ended_hears_of_that_after_its_traceback(tmp_path: Path) -> None:
    if (why := suite.no_namespace()) is not None:
        pytest.skip(why)
    done = doctor(tmp_path, *script("full_shm.py"))
    assert done.code == 3
    assert done.stderr.index("unable to allocate shared memory") < done.stderr.index("shm-small")
    assert done.report["verdict"] == "shm-small"
    evidence = {item["name"]: item["value"] for item in done.report["findings"][0]["evidence"]}
    assert evidence["shared memory there is"] == 1 << 20


def test_a_script_that_kills_itself_exits_with_3(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = doctor(tmp_path, sys.executable, "train.py")
    assert done.code == 3
    assert "was ended by SIGKILL" in done.stderr


def test_no_training_loop_is_exit_code_4(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("plain.py", "no_training"))
    assert done.code == 4
    assert done.stdout == "3.0\n"
    assert "no training loop was seen" in done.stderr
    assert done.report["steps"] == 0
    assert done.report["startup_s"] is None


def test_too_few_steps_are_counted_not_judged_and_exit_code_4(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("plain.py", "few_steps"))
    assert done.code == 4
    assert "3 steps in 1 epoch were seen; at least 4 are needed" in done.stderr
    assert (done.report["verdict"], done.report["findings"]) == (None, [])
    again = subprocess.run(
        [sys.executable, "-m", "stoker", "report"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    for text in (done.stderr, again):
        assert "not judged: 3 steps are too few" in text
        assert "healthy" not in text
    assert Ledger(tmp_path / ".stoker").runs()[0].verdict is None


def test_as_many_steps_as_were_asked_for_are_enough_to_judge(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("plain.py", "few_steps"), options=("--steps", "3"))
    assert (done.code, done.report["steps"]) == (0, 3)
    assert done.report["verdict"] is not None
    assert "not judged" not in done.stderr


def test_too_few_steps_inside_a_script_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import stoker, torch\n"
        "model = torch.nn.Linear(5, 5)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with stoker.watch('few') as w:\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(2, 5)).sum().backward()\n"
        "        optimizer.step()\n"
        "w.report()\n"
    )
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "not judged: 3 steps are too few" in done.stdout
    assert "healthy" not in done.stdout


def test_a_dash_writes_the_report_to_stdout_after_what_the_script_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", "doctor", "--json", "-", "--no-html", "--"]
    words = script("plain.py", "no_training")
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    said, _, report = done.stdout.partition("\n")
    assert said == "3.0"
    assert json.loads(report)["steps"] == 0
    assert [path.name for path in tmp_path.iterdir()] == [".stoker"]


def test_a_page_is_not_written_to_a_file_called_dash(tmp_path: Path) -> None:
    done = doctor(tmp_path, *script("plain.py", "no_training"), options=("--html", "-"))
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "expected a file" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_script_runs_also_where_nothing_can_attach(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('still here')\n")
    done = doctor(tmp_path, sys.executable, "-I", "train.py")
    assert done.stdout == "still here\n"
    assert done.code == 4
    assert "could not attach" in done.stderr


def test_a_script_runs_also_if_the_observer_breaks(tmp_path: Path) -> None:
    """A torch that lacks what the hooks need: each part that fails is said, and the script goes on."""
    (tmp_path / "torch.py").write_text("__version__ = '99'\n")
    (tmp_path / "train.py").write_text("import torch\nprint('trained with', torch.__version__)\n")
    done = doctor(tmp_path, sys.executable, "train.py")
    assert done.stdout == "trained with 99\n"
    assert done.code == 4


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text("print('mine')\n")
    (tmp_path / "train.py").write_text("import sitecustomize\nprint(sitecustomize.__file__)\n")
    path = os.pathsep.join(filter(None, [str(tmp_path / "lib"), os.environ.get("PYTHONPATH")]))
    done = doctor(tmp_path, sys.executable, "train.py", env={"PYTHONPATH": path})
    # Once in Stoker's own interpreter, once in the script's.
    assert done.stdout == f"mine\nmine\n{tmp_path / 'lib' / 'sitecustomize.py'}\n"


def start(tmp_path: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stoker", "doctor", "--no-html", "--json", "report.json", *options, "--", *words]
    return subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for_epochs(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline() == "epoch\n"


@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_gives_the_report_of_what_was_seen(tmp_path: Path, to_group: bool) -> None:
    process = start(tmp_path, *script("plain.py", "forever"), options=("--whole",))
    wait_for_epochs(process, 3)
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the run was interrupted" in stderr
    assert "all of the run" in stderr
    assert (tmp_path / "report.json").exists()


def test_ctrl_c_that_comes_when_the_script_has_ended_leaves_the_report(tmp_path: Path) -> None:
    process = start(tmp_path, *script("plain.py", "plain"), options=("--whole",))
    while process.poll() is None and not list(tmp_path.glob(".stoker/runs/*/end.json")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "all of the run" in stderr
    assert process.returncode == 0
    assert json.loads((tmp_path / "report.json").read_text())["steps"]


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in found.split()]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_kill_9_loses_at_most_the_last_second(tmp_path: Path, victim: str) -> None:
    process = start(tmp_path, *script("plain.py", "forever"), options=("--whole",))
    wait_for_epochs(process, 4)
    child = children(process.pid)[0]
    time.sleep(1.0)  # what is older than this must be there
    os.kill(child if victim == "child" else process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(child), "an orphan was left"
    words = [sys.executable, "-m", "stoker", "report", "last", "--json", "-"]
    report = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert json.loads(report)["steps"] >= 3 * 30


def test_a_full_disk_stops_the_recording_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import resource, signal, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"  # every file is full after 4 KiB
        f"sys.argv = ['plain.py', 'plain']\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"runpy.run_path({script('plain.py')[1]!r}, run_name='__main__')\n"
        "print('trained')\n"
    )
    done = doctor(tmp_path, sys.executable, "train.py")
    assert done.stdout == "trained\n"
    assert "recording stopped" in done.stderr

import dataclasses
import os
import signal
import subprocess
import sys
import time

from stoker.trial.tree import Tree, process, send
from trial.conftest import wait_until

SLEEP = [sys.executable, "-c", "import os, time\nos.fork()\ntime.sleep(600)"]


def test_a_look_finds_the_descendants_and_forgets_those_that_ended() -> None:
    tree = Tree(os.getpid())
    child = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        wait_until(lambda: child.pid in tree.look() and any(_parent(pid) == child.pid for pid in tree.look()))
        assert {one.pid for one in tree.look_again()} == tree.members
        assert os.getpid() not in tree.members
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    wait_until(lambda: child.pid not in tree.look())
    assert child.pid in tree.seen


def test_a_signal_does_not_reach_another_process_that_took_the_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        one = process(child.pid)
        assert one is not None
        send(dataclasses.replace(one, born=one.born - 1), signal.SIGKILL)
        time.sleep(0.1)
        assert child.poll() is None
        send(one, signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_a_name_with_brackets_is_read() -> None:
    rename = "import pathlib, time; pathlib.Path('/proc/self/comm').write_text('a) Z 1 (b')"
    code = rename + "; print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        one = process(child.pid)
        assert one is not None
        assert (one.parent, one.is_zombie) == (os.getpid(), False)
    finally:
        child.kill()
        child.communicate()


def _parent(pid: int) -> int | None:
    one = process(pid)
    return one.parent if one else None

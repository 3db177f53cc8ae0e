"""A script may fork at any moment, also while it is being sampled."""

import os
import signal
import subprocess
import sys
from pathlib import Path

FORKS = """
import _thread, gc, os, sys, time
from pathlib import Path
from stoker.observe import recorder as module
recorder = module.Recorder(Path(sys.argv[1]))
os.register_at_fork(
    before=recorder.before_fork, after_in_parent=recorder.after_fork_here, after_in_child=recorder.after_fork
)
gc.callbacks.append(lambda *_: time.sleep(0))  # lets another thread run in the middle of a collection
gc.set_threshold(1)


def sample():
    while True:
        recorder._sample()


def fork(depth):
    if depth:
        return fork(depth - 1)  # new frames each time, so that a sample has to make objects of them
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


_thread.start_new_thread(sample, ())
for _ in range(300):
    fork(5)
print("done", flush=True)
os._exit(0)
"""


def test_a_fork_in_the_middle_of_a_sample_does_not_hang(tmp_path: Path) -> None:
    """Looking at other threads' frames takes a lock of the interpreter, which a child would inherit as taken."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=150)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert out.strip() == "done"

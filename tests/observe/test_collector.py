"""Walking the stack of another thread must never hurt it, whenever garbage is collected."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.observe.collector import COLLECTS_ANYWHERE, Pause
from stoker.observe.patches import Patches

WALKED = """
import _thread, gc, random, sys, time
from pathlib import Path
from stoker.observe.recorder import Recorder


def small(depth):
    return choose(depth)


def large(depth, a=1, b=2, c=3, d=4, e=5, f=6, g=7):
    return choose(depth)


def choose(depth):
    return random.choice([small, large])(depth - 1) if depth else sum(range(100))


def sample():
    try:
        for _ in range(300):
            recorder._sample()
        ended.append("well")
    finally:
        ended.append("so")


def let_the_script_run(*_):
    if _thread.get_ident() != script:
        time.sleep(0.0002)


script, ended = _thread.get_ident(), []
recorder = Recorder(Path(sys.argv[1]))
gc.callbacks.append(let_the_script_run)
gc.set_threshold(1)
_thread.start_new_thread(sample, ())
while not ended:
    small(random.randrange(20))  # frames of other sizes at the same place
print(ended[0])
"""


def test_a_collection_in_the_middle_of_a_sample_does_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WALKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "well"), done.stderr[-2000:]


@pytest.fixture
def pause() -> Iterator[Pause]:
    patches = Patches()
    pause = Pause()
    pause.install(patches)
    yield pause
    patches.restore()
    gc.enable()


def test_the_collector_is_as_it_was_after_a_pause(pause: Pause) -> None:
    for set_it, wanted in ((gc.disable, False), (gc.enable, True)):
        set_it()
        with pause:
            assert not COLLECTS_ANYWHERE or not pause._is_on()
        assert gc.isenabled() is wanted


@pytest.mark.skipif(not COLLECTS_ANYWHERE, reason="nothing is paused")
def test_a_script_neither_sees_a_pause_nor_loses_what_it_sets_in_one(pause: Pause) -> None:
    inside, leave, seen = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        with pause:
            inside.set()
            leave.wait()

    def script() -> None:
        seen.append(gc.isenabled())
        gc.disable()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    asking = threading.Thread(target=script)
    asking.start()
    asking.join(0.2)
    assert seen == []
    leave.set()
    holder.join()
    asking.join()
    assert seen == [True]
    assert not gc.isenabled()


def test_what_a_signal_handler_asks_inside_does_not_hang(pause: Pause) -> None:
    with pause:
        assert gc.isenabled() is not COLLECTS_ANYWHERE

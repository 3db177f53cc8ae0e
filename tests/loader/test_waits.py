"""Ctrl-C ends a wait of the main thread also where the system hands the signal to another thread."""

import subprocess
import sys
from concurrent.futures import Future
from threading import Event

import pytest

from stoker.loader import waits

SCRIPT = """
import signal, threading, time
from concurrent.futures import Future
from stoker.loader import waits

def interrupt():
    time.sleep(0.3)  # the main thread waits by then
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(60)

threading.Thread(target=interrupt, daemon=True).start()
try:
    {wait}
except KeyboardInterrupt:
    print("heard")
"""


@pytest.mark.parametrize("wait", ["waits.for_event(threading.Event())", "waits.for_all([Future()])"])
def test_ctrl_c_is_heard(wait: str) -> None:
    words = [sys.executable, "-c", SCRIPT.format(wait=wait)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=50, check=False).stdout == "heard\n"


def test_what_is_over_is_not_waited_for() -> None:
    event = Event()
    event.set()
    waits.for_event(event)
    good, bad, never = Future[None](), Future[None](), Future[None]()
    good.set_result(None)
    bad.set_exception(ValueError())
    assert waits.for_all([good])
    assert not waits.for_all([good, bad, never])

"""Closing leaves nothing: no thread, process, descriptor or shared memory, however a loop ends."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from loader.sources import check, npy
from stoker import errors
from stoker.loader.front import Loader


def left() -> dict[str, Any]:
    """All that a loader could leave behind."""
    process = psutil.Process()
    return {
        "threads": {thread.name for thread in threading.enumerate()},
        "os threads": process.num_threads(),
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "shm": _segments({process.pid, *(child.pid for child in process.children(recursive=True))}),
        "mappings": sum(".npy" in mapping.path for mapping in process.memory_maps()),
    }


BEFORE = {path.name for path in Path("/dev/shm").glob("torch_*")}


def _segments(ours: set[int]) -> list[str]:
    """Shared memory of this process, of its children, and of processes that are gone; others may have theirs."""
    names = {path.name for path in Path("/dev/shm").glob("torch_*")} - BEFORE
    pids = {name: int(name.split("_")[1]) for name in names}
    return sorted(name for name, pid in pids.items() if pid in ours or not psutil.pid_exists(pid))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    torch.zeros(1)
    gc.collect()
    before = left()
    yield
    gc.collect()
    deadline = time.monotonic() + 5  # a thread's end takes the system a moment
    while (now := left()) != before and time.monotonic() < deadline:
        if now | {"os threads": before["os threads"]} == before and now["os threads"] < before["os threads"]:
            return  # torch ends a thread of its own after a fork
        time.sleep(0.01)
    assert now == before


pytestmark = pytest.mark.usefixtures("nothing_left")


def test_after_close(tmp_path: Path) -> None:
    loader = Loader(npy(tmp_path, [200, 100]), 10, True, threads=3)
    for _ in range(3):
        assert sum(len(check(batch)) for batch in loader) == 300
    assert "stoker-fetch" in {thread.name for thread in threading.enumerate()}
    loader.close()
    assert "stoker-fetch" not in {thread.name for thread in threading.enumerate()}
    loader.close()
    with pytest.raises(errors.ClosedError, match="the loader is closed"):
        iter(loader)


def test_after_garbage_collection(tmp_path: Path) -> None:
    loader = Loader(npy(tmp_path, [200]), 10, True, threads=3)
    next(iter(loader))
    list(loader)
    assert "stoker-fetch" in {thread.name for thread in threading.enumerate()}
    del loader
    gc.collect()
    deadline = time.monotonic() + 20
    while (names := {thread.name for thread in threading.enumerate()}) and time.monotonic() < deadline:
        if "stoker-fetch" not in names:
            break
        time.sleep(0.01)
    assert "stoker-fetch" not in names


def test_after_an_exception_in_the_loop(tmp_path: Path) -> None:
    def train() -> None:
        for batch in Loader(npy(tmp_path, [200]), 10, True):
            check(batch)
            raise ValueError("the training failed")

    with pytest.raises(ValueError, match="the training failed"):
        train()


def test_after_an_iterator_abandoned_half_way(tmp_path: Path) -> None:
    loader = Loader(npy(tmp_path, [200]), 10, True)
    for _ in loader:
        break
    assert "stoker-fetch" not in {thread.name for thread in threading.enumerate()}
    assert sorted(i for batch in loader for i in check(batch)) == list(range(200))
    loader.close()


def test_after_two_iterators_at_once_which_each_deliver_a_whole_epoch(tmp_path: Path) -> None:
    loader = Loader(npy(tmp_path, [90]), 10, True)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    for side in (0, 1):
        assert sorted(i for pair in pairs for i in check(pair[side])) == list(range(90))
    loader.close()


def test_batches_outlive_the_loader_and_its_source(tmp_path: Path) -> None:
    kept = list(Loader(npy(tmp_path, [90]), 10, True))
    gc.collect()
    assert sorted(i for batch in kept for i in check(batch)) == list(range(90))


def test_closing_wakes_a_consumer_that_waits(tmp_path: Path) -> None:
    go_on = threading.Event()

    def slow(batch: Any) -> Any:
        go_on.wait(20)
        return batch

    loader = Loader(npy(tmp_path, [90]), 10, map=slow)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except errors.ClosedError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not loader._open.streams:
        time.sleep(0.01)
    time.sleep(0.05)
    threading.Timer(0.2, go_on.set).start()
    loader.close()
    consumer.join(10)
    assert len(caught) == 1


def test_after_a_fork_the_child_iterates_anew_and_an_old_iterator_says_why_not(tmp_path: Path) -> None:
    loader = Loader(npy(tmp_path, [200]), 10, True, threads=2)
    iterator = iter(loader)
    before = check(next(iterator))
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is a failure, not an orphan
        code = 1
        try:
            try:
                next(iterator)
            except errors.ForkedError:
                code = 0 if sorted(i for batch in loader for i in check(batch)) == list(range(200)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(before + [i for batch in iterator for i in check(batch)]) == list(range(200))
    del iterator
    loader.close()


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_while_waiting_for_a_batch_ends_the_program_at_once(tmp_path: Path) -> None:
    npy(tmp_path, [200])
    child = run(
        """
        import os, sys, time, stoker
        def slow(batch):
            time.sleep(0.5)
            os.write(1, b"working\\n")  # in one piece: several threads do
            return batch
        for _ in stoker.Loader(stoker.open(sys.argv[1]), 2, True, map=slow): pass
        """,
        tmp_path,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_program_that_never_closes_its_loader_ends_cleanly(tmp_path: Path) -> None:
    npy(tmp_path, [200])
    child = run(
        """
        import sys, stoker
        loader = stoker.Loader(stoker.open(sys.argv[1]), 2, True)
        iterator = iter(loader)
        next(iterator)
        """,
        tmp_path,
    )
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 0

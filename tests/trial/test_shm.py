"""/dev/shm is a budget too, and what an ended trial left there is removed; nobody else's is."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.records import Limits
from stoker.trial.protocol import Usage
from stoker.trial.shm import DIRECTORY, held
from trial.conftest import MIB, Run

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def name() -> Iterator[str]:
    """Part of a name in /dev/shm; whatever has it after the test is removed."""
    part = f"stokertest{uuid.uuid4().hex}"
    yield part
    for path in DIRECTORY.glob(f"*{part}*"):
        with contextlib.suppress(OSError):
            path.unlink()


@pytest.mark.parametrize("unlinked", [False, True])
def test_filling_dev_shm_is_ended_and_removed(run: Run, name: str, unlinked: bool) -> None:
    code = f"""
import os, time
file = open("/dev/shm/psm_{name}", "wb")
if {unlinked}:
    os.unlink(file.name)
for _ in range(200):
    file.write(b"x" * (1 << 20))
    file.flush()
    time.sleep(0.005)
time.sleep(600)
"""
    outcome = run(code, limits=Limits(400 * MIB, shm_bytes=40 * MIB, seconds=60))
    assert outcome.ending == "shm"
    assert outcome.shm_peak_bytes is not None
    assert outcome.shm_peak_bytes > 40 * MIB
    assert list(DIRECTORY.glob(f"*{name}*")) == []


def test_shared_memory_counts_as_ram(run: Run, name: str) -> None:
    code = f"""
import mmap, os, time
file = open("/dev/shm/{name}", "w+b")
file.truncate(200 << 20)
x = mmap.mmap(file.fileno(), 0)
for at in range(0, 200 << 20, 1 << 20):
    x[at:at + (1 << 20)] = b"x" * (1 << 20)
time.sleep(600)
"""
    assert run(code, limits=Limits(100 * MIB, seconds=60)).ending == "ram"


def test_segments_that_an_ended_trial_held_are_removed(run: Run, name: str) -> None:
    code = f"""
import os, time
from multiprocessing import resource_tracker, shared_memory
x = shared_memory.SharedMemory("psm_{name}", create=True, size=20 << 20)
resource_tracker.unregister("/psm_{name}", "shared_memory")
x.buf[:] = b"x" * len(x.buf)
time.sleep(600)
"""
    outcome = run(code, limits=Limits(400 * MIB, seconds=8.0))
    assert outcome.ending == "time"
    assert "1 segment(s) it left in /dev/shm were removed" in outcome.reason
    assert list(DIRECTORY.glob(f"*{name}*")) == []


def test_segments_are_seen_although_others_give_more_back(run: Run, name: str) -> None:
    others, ours = DIRECTORY / f"others{name}", DIRECTORY / f"psm_{name}"
    others.write_bytes(b"x" * (64 * MIB))
    code = f"""
import os, time
while os.path.exists({str(others)!r}):
    time.sleep(0.01)
file = open({str(ours)!r}, "wb")
file.write(b"x" * (20 << 20))
file.flush()
time.sleep(600)
"""

    def give_back(_: Usage) -> None:
        others.unlink(missing_ok=True)
        if ours.exists() and ours.stat().st_size == 20 * MIB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(code, limits=Limits(400 * MIB, seconds=120), progress=give_back)
    assert not ours.exists()


def test_segments_named_after_a_process_of_the_trial_are_removed(run: Run, name: str) -> None:
    code = f"import os; open(f'/dev/shm/torch_{{os.getpid()}}_{name}', 'wb').write(b'x' * 4096); os._exit(1)"
    outcome = run(code)
    assert outcome.exit_code == 1
    assert list(DIRECTORY.glob(f"*{name}*")) == []


def test_what_belongs_to_others_stays(run: Run, name: str) -> None:
    before, during = DIRECTORY / f"before{name}", DIRECTORY / f"torch_1_{name}"
    before.write_bytes(b"x")

    def make(_: Usage) -> None:
        during.write_bytes(b"x")

    with contextlib.ExitStack() as kept:
        shared = DIRECTORY / f"shared{name}"
        kept.enter_context(shared.open("wb"))
        code = f"a = open({str(before)!r}, 'ab'); b = open({str(shared)!r}, 'ab'); b.write(b'x' * 9999); b.flush()\n"
        outcome = run(code + "import time; time.sleep(0.8)", progress=make)
    assert outcome.ending == "finished"
    assert before.exists()
    assert during.exists()
    assert shared.exists()


def test_a_segment_that_another_process_still_holds_stays(run: Run, name: str) -> None:
    path = DIRECTORY / f"psm_{name}"
    opened: list[object] = []

    def join(_: Usage) -> None:
        if not opened and path.exists():
            opened.append(path.open("rb"))

    run(
        f"x = open({str(path)!r}, 'wb'); x.write(b'x' * 9999); x.flush()\n" + SLEEP,
        limits=Limits(400 * MIB, seconds=2.5),
        progress=join,
    )
    assert opened
    assert path.exists()
    opened[0].close()  # type: ignore[attr-defined]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a /dev/shm of its own")
def test_a_containers_own_dev_shm_is_another_one() -> None:
    code = """
import ctypes, mmap, sys, time
SHM = b"/dev/shm"
libc = ctypes.CDLL(None)
if any([libc.unshare(0x20000), libc.mount(None, b"/", None, 0x44000, None), libc.mount(b"t", SHM, b"tmpfs", 0, b"")]):
    sys.exit("no")
kept = open("/dev/shm/here", "w+b")
kept.truncate(4096)
mapped = mmap.mmap(kept.fileno(), 4096)
print("yes", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "yes\n":
                pytest.skip("no mount namespace here")
            assert "/dev/shm/here" in Path(f"/proc/{process.pid}/maps").read_text()
            assert held(process.pid, DIRECTORY.stat().st_dev) == []
        finally:
            process.kill()


def test_a_trial_without_shared_memory_reports_none_held(run: Run) -> None:
    outcome = run("pass")
    assert outcome.shm_peak_bytes is not None
    assert outcome.shm_peak_bytes < MIB
    assert Path("/dev/shm").is_dir()

"""The numbers are right: what is private is counted, what is shared is counted once, page cache is not."""

import os
from pathlib import Path

import pytest

from stoker.records import Limits, Outcome
from stoker.trial import memory
from trial.conftest import MIB, Run

HOLD = "\nimport time; time.sleep(0.8)"
# An idle Python interpreter, and pages that the allocator keeps.
SLACK = 25 * MIB


def host_peak(outcome: Outcome) -> int:
    assert outcome.ending == "finished", outcome
    assert outcome.host_peak_bytes is not None
    return outcome.host_peak_bytes


@pytest.mark.parametrize("size", [150])
def test_private_memory_is_what_was_allocated(run: Run, size: int) -> None:
    peak = host_peak(run(f"x = b'x' * ({size} << 20)" + HOLD))
    assert size * MIB <= peak <= size * MIB + SLACK


def test_memory_shared_by_fork_is_counted_once(run: Run) -> None:
    code = "import os\nx = b'x' * (100 << 20)\nfor _ in range(5):\n    if os.fork() == 0:\n        break" + HOLD
    outcome = run(code)
    assert outcome.processes_peak == 6
    assert 100 * MIB <= host_peak(outcome) <= 100 * MIB + 2 * SLACK


def test_memory_shared_by_fork_does_not_pass_the_limit(run: Run) -> None:
    code = "import os\nx = b'x' * (100 << 20)\nfor _ in range(5):\n    if os.fork() == 0:\n        break" + HOLD
    assert run(code, limits=Limits(250 * MIB, seconds=60)).ending == "finished"


def test_memory_that_becomes_private_after_the_fork_passes_the_limit(run: Run) -> None:
    """Resident sizes do not change when a worker writes to pages that it shares with its parent; memory does."""
    code = """
import os, time
x = bytearray(b'x' * (100 << 20))
for _ in range(5):
    if os.fork() == 0:
        time.sleep(0.7)
        for at in range(0, len(x), 4096):
            x[at] = 1
        break
time.sleep(600)
"""
    assert run(code, limits=Limits(250 * MIB, seconds=60)).ending == "ram"


def test_shared_anonymous_memory_is_counted_once(run: Run) -> None:
    code = (
        """
import mmap, os
x = mmap.mmap(-1, 100 << 20)
x[:] = b'x' * (100 << 20)
for _ in range(3):
    if os.fork() == 0:
        sum(x[::4096])
        break
"""
        + HOLD
    )
    assert 100 * MIB <= host_peak(run(code)) <= 200 * MIB + 2 * SLACK  # the source of the copy is private for a moment


def test_page_cache_is_not_counted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "data"
    with file.open("wb") as out:
        for _ in range(15):
            out.write(b"x" * (10 * MIB))
    code = (
        """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(data[::4096])
    while file.read(1 << 20):
        pass
"""
        + HOLD
    )
    outcome = run(code, str(file), limits=Limits(100 * MIB, seconds=60))
    assert host_peak(outcome) <= SLACK


def test_the_bound_is_never_below_the_exact_reading() -> None:
    reader = memory.Reader()
    mine = [os.getpid()]
    kept = b"x" * (20 * MIB)
    found = memory.exact(mine)
    bound = reader.bound(mine)
    reader.close()
    assert found is not None
    assert len(kept) <= found[0] <= bound + 4 * MIB  # the kernel keeps resident counters per core, some pages apart


def test_a_process_that_has_ended_holds_nothing() -> None:
    reader = memory.Reader()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    reader.bound([pid])
    os.waitpid(pid, 0)
    assert reader.bound([pid]) == 0
    assert memory.exact([pid]) is None
    reader.close()

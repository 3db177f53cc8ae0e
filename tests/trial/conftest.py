"""Real processes, marked in their environment, so that a test knows its own and leaves none behind."""

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.records import Limits, Outcome
from stoker.trial import cgroup, guard

MIB = 1 << 20
MARK = "STOKER_TEST_MARK"


def marked(mark: str) -> set[int]:
    """The living processes that carry a mark."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            entries = (path / "environ").read_bytes().split(b"\0")  # empty for a zombie
            if f"{MARK}={mark}".encode() in entries:
                found.add(int(path.name))
    return found


def wait_until(holds: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return value


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark; whatever still carries it after the test is ended."""
    name = uuid.uuid4().hex
    yield name
    for pid in marked(name):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["cgroup", "watch"])
def use_cgroup(request: pytest.FixtureRequest) -> bool:
    """Both ways of holding the limits; the first only where the kernel lets us."""
    if request.param == "watch":
        return False
    probe = cgroup.create(f"probe{uuid.uuid4().hex}", 100 * MIB)
    if probe is None:
        pytest.skip("no memory cgroup can be written here")
    assert probe.remove()
    return True


Run = Callable[..., Outcome]


@pytest.fixture
def run(use_cgroup: bool, mark: str) -> Run:
    """Run Python code under the guard, and hold the law that nothing of it is left, whatever happened."""

    def run_code(code: str, *arguments: str, limits: Limits | None = None, **options: Any) -> Outcome:
        outcome = guard.run(
            [sys.executable, "-c", code, *arguments],
            limits or Limits(1024 * MIB, seconds=60),
            environment={**options.pop("environment", {}), MARK: mark},
            use_cgroup=use_cgroup,
            **{"grace_s": 0.3, **options},
        )
        assert marked(mark) == set()
        assert outcome.guarded_by.startswith("cgroup") == use_cgroup
        return outcome

    return run_code

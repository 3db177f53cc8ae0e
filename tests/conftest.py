import os

# bf16 matmuls of some CPUs die with SIGILL in oneDNN's newest kernels; must be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Threads of torch that wait for each other give their core to the other tests meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gc
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

# No test may depend on how fast the machine is. CI draws the same examples every time, so that a commit is judged by
# what it changed; everywhere else they are new ones each time, which is how rare faults are found.
settings.register_profile("stoker", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("stoker")


def pytest_collection_finish() -> None:
    """Leave all that was imported out of garbage collections: torch's modules alone take 0.1 s of each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """One Chromium for all tests that look at pages; a second Playwright in the same process would not start."""
    from playwright.sync_api import sync_playwright

    names = [os.environ.get("STOKER_CHROMIUM", "chromium"), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "no Chromium is installed; run .ci/chromium, or set STOKER_CHROMIUM to its path"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()

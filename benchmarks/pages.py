"""How large the page of a long run is, how long it takes to make, and how long a browser needs to show it.

python benchmarks/pages.py [--steps 5000] [--repeat 5]

A real training of that many steps under the doctor, then its page: made several times, opened several times in a
headless Chromium from a file, until every chart is drawn.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from playwright.sync_api import sync_playwright

from stoker.commands.doctor import depict
from stoker.report import page, run_page

T = TypeVar("T")
TRAIN = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    steps = int(sys.argv[1])
    data = TensorDataset(torch.randn(steps * 4, 8), torch.randint(0, 2, (steps * 4,)))
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, num_workers=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(Path(scratch), asked.steps, asked.repeat)


def measure(home: Path, steps: int, repeat: int) -> None:
    (home / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "stoker", "doctor", "--whole", "--no-html", "--out", str(home / "run")]
    command += ["--", sys.executable, str(home / "train.py"), str(steps)]
    subprocess.run(command, cwd=home, env=os.environ, check=True, capture_output=True)
    read_s, (seen, diagnosis, went) = timed(lambda: depict(home / "run"))
    page.library(home)  # kept from the page before, as in everyday use
    made_s, text = timed(lambda: run_page.html(diagnosis, went, seen.run, seen.command, kept=home))
    path = home / "page.html"
    page.write(text, path)
    opened_s = [opened(path) for _ in range(repeat)]
    print("| steps | read and judged | page made | size | opened, median | opened, longest |")
    print("|---|---|---|---|---|---|")
    size = path.stat().st_size / 1e6
    print(
        f"| {diagnosis.steps:,} | {read_s:.1f} s | {made_s:.2f} s | {size:.2f} MB "
        f"| {statistics.median(opened_s):.2f} s | {max(opened_s):.2f} s |"
    )


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def opened(path: Path) -> float:
    """Seconds from asking for the page to its last chart, in a browser that has not seen it."""
    found = shutil.which(os.environ.get("STOKER_CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        start = time.perf_counter()
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-drawn=light]", timeout=60_000)
        took = time.perf_counter() - start
        browser.close()
    return took


if __name__ == "__main__":
    main()

"""How well the simulated accelerator keeps the time it was asked for, with idle and with busy cores.

python benchmarks/sim.py [--json F]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import sim

SPIN = "import time\nend = time.time() + 120\nwhile time.time() < end: pass"


def step_seconds(step_s: float, steps: int) -> float:
    """Seconds a step of a plain loop that reads its loss every time, the hardest case for the clock."""
    device: Any = sim.Device(forward=step_s * 0.4, backward=step_s * 0.4, optimizer=step_s * 0.2, copy_s=0.0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device.place(model, optimizer)
    x: Any = torch.randn(16, 4)
    y: Any = torch.randint(0, 2, (16,))
    start = 0.0
    for step in range(steps + 5):
        if step == 5:
            start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return (time.perf_counter() - start) / steps


def measure(step_s: float, busy: bool) -> dict[str, Any]:
    hogs = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range((os.cpu_count() or 1) if busy else 0)]
    try:
        windows = [step_seconds(step_s, max(10, int(0.4 / step_s))) / step_s for _ in range(9)]
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    return {
        "asked_ms": step_s * 1e3,
        "cores": "busy" if busy else "idle",
        "median_ratio": round(statistics.median(windows), 4),
        "worst_ratio": round(1 + max((ratio - 1 for ratio in windows), key=abs), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(step_s, busy) for step_s in (0.005, 0.0238, 0.05) for busy in (False, True)]
    print("| asked, ms a step | cores | measured ÷ asked, median of 9 windows | worst window |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['asked_ms']:g} | {row['cores']} | {row['median_ratio']:.4f} | {row['worst_ratio']:.4f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

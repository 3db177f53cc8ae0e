"""What `stoker watch` costs a training: the same script with and without it, in fresh processes that take turns.

    python benchmarks/watch.py [--rounds N] [--json F]

Each process times its own steps after a warm-up and prints their medians, by the wall and by the CPU time of its main
thread, which others on the machine disturb less; printed are ratios of medians, watched over plain, as the median over
the rounds with the lowest and the highest. Steps are short on purpose: the shorter, the dearer a hook.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = """
import statistics, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())], nn.Linear(width, 2))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(steps * 32, width), torch.randint(0, 2, (steps * 32,)))
wall, cpu = [], []
before = time.perf_counter(), time.thread_time()
for x, y in DataLoader(data, batch_size=32):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    loss.item()
    now = time.perf_counter(), time.thread_time()
    wall.append(now[0] - before[0])
    cpu.append(now[1] - before[1])
    before = now
print(statistics.median(wall[steps // 4:]), statistics.median(cpu[steps // 4:]))
"""
LOOPS = {"short": (64, 2000), "longer": (512, 400)}
"""Width of the layers and number of steps."""


CLOCKS = ("wall", "cpu")


def run(place: Path, width: int, steps: int, *, watched: bool) -> dict[str, float]:
    """The median step of one process in seconds, by each clock."""
    words = [sys.executable, "train.py", str(width), str(steps)]
    if watched:
        words = [sys.executable, "-m", "stoker", "watch", "--", *words]
    done = subprocess.run(words, cwd=place, env=os.environ, capture_output=True, text=True, check=True)
    return dict(zip(CLOCKS, map(float, done.stdout.split()), strict=True))


def measure(place: Path, width: int, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Plain and watched in turns, in random order."""
    pairs = []
    for _ in range(rounds):
        order = [False, True]
        random.shuffle(order)
        pairs.append({watched: run(place, width, steps, watched=watched) for watched in order})
    found = {}
    for clock in CLOCKS:
        ratios = [took[True][clock] / took[False][clock] for took in pairs]
        plain_s = statistics.median(took[False][clock] for took in pairs)
        spread = {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        found[clock] = {"plain_step_s": plain_s, **spread}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "train.py").write_text(TRAIN)
        for name, (width, steps) in LOOPS.items():
            found[name] = measure(place, width, steps, chosen.rounds)
            for clock, one in found[name].items():
                plain = f"{one['plain_step_s'] * 1e3:.2f} ms a step"
                spread = f"{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
                print(f"{name:7} {clock:5} {plain}  watched ÷ plain {spread}", flush=True)
        sizes = [path.stat().st_size for path in place.glob(".stoker/runs/*/*.events")]
        steps_all = sum(steps for _, steps in LOOPS.values()) * chosen.rounds
        print(f"events  {sum(sizes) / steps_all:.0f} bytes a step")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

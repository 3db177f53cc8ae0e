"""A training to be watched: its first argument says what happens to it."""

import os
import signal
import sys
import time
from pathlib import Path

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 40


class Points(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.delay_s)
        return torch.full((8,), index / 100), index % 2


def main() -> None:
    light.started()
    what = sys.argv[1]
    torch.manual_seed(0)
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    loader = DataLoader(Points(0.15 if what == "starving" else 0.0), batch_size=4, num_workers=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        batches = iter(loader)
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(0.02)
            if what == "nan" and step == 5:
                loss = loss * float("nan")
            while what == "held" and epoch == epochs - 1 and step == STEPS - 1 and not Path("go").exists():
                time.sleep(0.05)
            if what == "kill" and epoch and step == 5:
                os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {'x' * 30} end-of-line", flush=True)
            elif what == "nan":
                loss.item()
        torch.save(model.state_dict(), Path("weights.pt"))
    if what == "fail":
        sys.exit(7)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    print("all done")


if __name__ == "__main__":
    main()

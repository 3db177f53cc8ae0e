"""Prints everything that an observer could disturb: random numbers, weights, environment, arguments, input."""

import hashlib
import os
import random
import sys
import threading
import time
from pathlib import Path

import light  # type: ignore[import-not-found]  # beside the script
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digest(model: nn.Module) -> str:
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    light.started()
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(digest(model))
    print(random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    print(sys.argv, Path.cwd(), sys.stdin.read(), sys.path[0], sys.path[1:3])
    print(sorted(name for name in os.environ if "STOKER" in name or "PYTHONPATH" in name), os.environ.get("PYTHONPATH"))
    deadline = time.monotonic() + 10  # the thread that fed the workers ends a moment after them
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    print(threading.active_count())
    torch.save(model.state_dict(), "weights.pt")
    sys.stdout.flush()
    sys.exit(int(os.environ.get("CODE", "0")))


if __name__ == "__main__":
    main()

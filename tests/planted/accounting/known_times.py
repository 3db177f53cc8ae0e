"""A plain loop in which every part takes a known time: validation, checkpoints, logging, and code of its own."""

import sys
import time
from pathlib import Path

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

OWN_S, VALID_S, STEPS, EPOCHS = 0.004, 0.003, 40, 2


class Points(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.full((8,), index / self.count), index % 2


def own_work() -> None:
    time.sleep(OWN_S)


def main() -> None:
    light.started()
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    torch.manual_seed(0)
    train = DataLoader(Points(4 * STEPS), batch_size=4, shuffle=True, num_workers=workers)
    valid = DataLoader(Points(40), batch_size=4, num_workers=workers)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            own_work()
        with torch.no_grad():
            for x, y in valid:
                criterion(model(x), y)
                time.sleep(VALID_S)
        torch.save({"model": model.state_dict(), "pad": torch.zeros(1_000_000)}, Path("checkpoint.pt"))
        print(f"epoch {epoch}: {loss.item():.6f}")


if __name__ == "__main__":
    main()

"""A stream of gzipped CSV files, parsed line by line in two workers."""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stoker.sim import Device


def write(root):
    for n in range(8):
        path = root / f"part-{n}.csv.gz"
        if not path.exists():
            rows = np.random.default_rng(n).random((6000, 24))
            with gzip.open(path, "wt") as file:
                csv.writer(file).writerows([[f"{v:.5f}" for v in row] for row in rows])
    return sorted(root.glob("part-*.csv.gz"))


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        info = get_worker_info()
        for path in self.files[info.id :: info.num_workers]:
            with gzip.open(path, "rt") as file:
                for row in csv.reader(file):
                    values = [float(cell) for cell in row]
                    mean = sum(values) / len(values)
                    deviation = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
                    yield torch.tensor([(v - mean) / deviation for v in values])


def train(files):
    model = torch.nn.Linear(24, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    device = Device(forward=0.001, backward=0.002)
    device.place(model, optimizer)
    loader = DataLoader(Stream(files), batch_size=256, num_workers=2)
    for _ in range(30):
        for rows in loader:
            optimizer.zero_grad()
            model(rows.to(device, non_blocking=True)).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    train(write(Path(sys.argv[1])))

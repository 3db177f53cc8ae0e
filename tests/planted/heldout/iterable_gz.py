"""Lines of JSON in gzip files, a stream split between two workers, features parsed in Python."""

import gzip
import json
import pathlib
import random
import tempfile

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def write(folder, files=8, lines=4000):
    rng = random.Random(0)
    for f in range(files):
        with gzip.open(folder / f"part{f}.jsonl.gz", "wt", compresslevel=1) as out:
            for _ in range(lines):
                out.write(
                    json.dumps({"v": [round(rng.gauss(0, 1), 6) for _ in range(300)], "y": rng.randrange(3)}) + "\n"
                )


class Lines(IterableDataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.gz"))

    def __iter__(self):
        info = get_worker_info()
        mine = self.files[info.id :: info.num_workers] if info else self.files
        for file in mine:
            with gzip.open(file, "rt") as lines:
                for line in lines:
                    row = json.loads(line)
                    v = row["v"]
                    yield torch.tensor([x / (1 + abs(x)) for x in v]), row["y"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as t:
        folder = pathlib.Path(t)
        write(folder)
        net = torch.nn.Linear(300, 3)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in range(10):
            for x, y in DataLoader(Lines(folder), batch_size=64, num_workers=2):
                opt.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                opt.step()
            print("epoch", epoch)

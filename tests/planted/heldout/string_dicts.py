"""Samples are dicts of many little arrays and strings, collated into lists; two workers send them over."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Events(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.items = [
            {f"k{j}": rng.random(6).astype(np.float32) for j in range(60)} | {"name": f"event-{i}"} for i in range(64)
        ]
        self.x = torch.randn(64, 32)

    def __len__(self):
        return 200000

    def __getitem__(self, i):
        return {"x": self.x[i % 64], "y": i % 2, "meta": self.items[i % 64]}


def collate(samples):
    return {
        "x": torch.stack([s["x"] for s in samples]),
        "y": torch.tensor([s["y"] for s in samples]),
        "meta": [s["meta"] for s in samples],
    }


if __name__ == "__main__":
    net = torch.nn.Linear(32, 2)
    opt = torch.optim.Adam(net.parameters())
    loader = DataLoader(Events(), batch_size=128, num_workers=2, collate_fn=collate, shuffle=True)
    for batch in loader:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(batch["x"]), batch["y"])
        loss.backward()
        opt.step()

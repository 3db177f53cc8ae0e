"""Land cover from Sentinel-like tiles on the (simulated) accelerator. Four groups of bands, each with its own scale."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

GROUPS = {"visible": 3, "red_edge": 3, "infrared": 3, "radar": 3}
MEAN = {"visible": 1200.0, "red_edge": 1800.0, "infrared": 2400.0, "radar": 900.0}


class Tiles(Dataset):
    """Tiles as unsigned 16-bit counts, all in memory, sliced a batch at a time."""

    def __init__(self, n=768, side=64):
        self.bands = {k: torch.randint(0, 4096, (n, c, side, side), dtype=torch.int16) for k, c in GROUPS.items()}
        self.cover = torch.randint(0, 9, (n,))

    def __len__(self):
        return len(self.cover)

    def __getitems__(self, rows):
        rows = torch.tensor(rows)
        return {k: v[rows] for k, v in self.bands.items()} | {"cover": self.cover[rows]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Sequential(nn.Linear(12 * 4, 32), nn.ReLU(), nn.Linear(32, 9))

    def forward(self, x):
        return self.head(self.pool(x).flatten(1))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.loader = DataLoader(
            Tiles(), batch_size=args.batch_size, shuffle=True, collate_fn=lambda b: b, drop_last=True
        )
        self.device = sim.Device(
            forward=sim.linear(1e-3, 0.15e-3), backward=sim.linear(1e-3, 0.22e-3), optimizer=2e-3, copy_bytes_per_s=4e9
        )
        net = Net()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        self.net = self.device.place(net, self.optimizer)
        self.criterion = nn.CrossEntropyLoss()

    def to_device(self, batch):
        overlap = self.args.fixed
        cover = batch["cover"].to(self.device, non_blocking=overlap)
        moved = [batch[k].float().sub_(MEAN[k]).div_(500).tanh_().to(self.device, non_blocking=overlap) for k in GROUPS]
        return torch.cat([m[:, :, ::8, ::8] for m in moved], 1), cover

    def fit(self):
        start, step = time.time(), 0
        for epoch in range(self.args.epochs):
            t, total = time.time(), 0.0
            for batch in self.loader:
                x, y = self.to_device(batch)
                loss = self.criterion(self.net(x), y)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                total = total + loss.detach()
                step += 1
            if epoch % 10 == 0:
                mean = total.item() / len(self.loader)
                print(
                    f"epoch {epoch} step {step} loss {mean:.3f}  {(time.time() - t) / len(self.loader) * 1e3:.1f} ms/it",
                    flush=True,
                )
            if time.time() - start > self.args.max_seconds:
                break


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=600)
    p.add_argument("--max-seconds", type=float, default=90)
    p.add_argument("--fixed", action="store_true", help="copies that do not block")
    Trainer(p.parse_args()).fit()

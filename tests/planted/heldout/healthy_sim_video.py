"""Grasp success from short robot videos: the (simulated) accelerator is busy all the time, which is what we paid for."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Clips(Dataset):
    def __init__(self, count):
        self.frames = torch.randint(0, 256, (count, 4, 24, 24), dtype=torch.uint8)
        self.success = torch.randint(0, 2, (count,)).float()

    def __len__(self):
        return len(self.frames)

    def __getitems__(self, rows):
        return {"frames": self.frames[rows].float().div_(255), "success": self.success[rows]}


class Grasp(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(6)
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, frames):
        return self.head(self.pool(frames).flatten(1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fixed", action="store_true", help="there is nothing to fix")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Grasp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    device = sim.Device(forward=sim.linear(2e-3, 0.4e-3), backward=sim.linear(3e-3, 0.8e-3), optimizer=3e-3)
    model = device.place(model, optimizer)
    with torch.autocast("cpu", torch.bfloat16), tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Clips(6400), args.batch_size, shuffle=True, collate_fn=lambda b: b)
        for epoch in range(args.epochs):
            t, total = time.time(), torch.zeros((), device=device)
            for i, batch in enumerate(loader):
                frames = batch["frames"].to(device, non_blocking=True)
                success = batch["success"].to(device, non_blocking=True)
                loss = nn.functional.binary_cross_entropy_with_logits(model(frames).float(), success)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.detach()
                if i % 25 == 24:
                    print(f"epoch {epoch} {i + 1}/{len(loader)} loss {total.item() / (i + 1):.4f}", flush=True)
            print(f"epoch {epoch}: {(time.time() - t) / len(loader) * 1e3:.1f} ms/step", flush=True)
        torch.save(model.state_dict(), Path(folder) / "grasp.pt")


if __name__ == "__main__":
    main()

"""Learn an embedding in which two photos of one product lie closer than photos of other products."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from stoker import sim


def make_data(folder, n=32_000, dim=64):
    path = folder / "sku_features.npz"
    if not path.exists():
        rng = np.random.default_rng(3)
        centre = rng.normal(size=(n, dim)).astype(np.float32)
        np.savez(
            path,
            anchor=centre + 0.3 * rng.normal(size=centre.shape).astype(np.float32),
            positive=centre + 0.3 * rng.normal(size=centre.shape).astype(np.float32),
        )
    with np.load(path) as f:
        return torch.from_numpy(f["anchor"]), torch.from_numpy(f["positive"])


def triplet_loss(anchor, positive, margin=0.2):
    """Every anchor against its own positive and the hardest positive of the others."""
    similarity = anchor @ positive.T
    total = 0.0
    n = len(anchor)
    for i in range(n):
        same = similarity[i, i]
        others = torch.cat([similarity[i, :i], similarity[i, i + 1 :]])
        total = total + F.relu(others.max() - same + margin)
    return total / n


def triplet_loss_matrix(anchor, positive, margin=0.2):
    similarity = anchor @ positive.T
    same = similarity.diagonal()
    others = similarity - 10 * torch.eye(len(anchor), device=similarity.device)
    return F.relu(others.amax(1) - same + margin).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    args.data.mkdir(parents=True, exist_ok=True)
    anchor, positive = make_data(args.data)
    loss_of = triplet_loss_matrix if args.fixed else triplet_loss
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    device = sim.Device(forward=sim.linear(1e-3, 1e-5), backward=sim.linear(1e-3, 1.5e-5), optimizer=1e-3)
    net = device.place(net, optimizer)

    for epoch in range(args.epochs):
        began = time.perf_counter()
        seen = torch.zeros((), device=device)
        for idx in torch.randperm(len(anchor)).split(args.batch):
            a = anchor[idx].to(device, non_blocking=True)
            b = positive[idx].to(device, non_blocking=True)
            za, zb = F.normalize(net(torch.cat([a, b])), dim=1).chunk(2)
            loss = loss_of(za, zb)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            seen += loss.detach()
        steps = len(anchor) // args.batch
        print(f"epoch {epoch}: loss {seen.item() / steps:.4f} in {time.perf_counter() - began:.1f} s", flush=True)
        if epoch % 10 == 9:
            torch.save(net.state_dict(), args.data / "sku_net.pt")


if __name__ == "__main__":
    main()

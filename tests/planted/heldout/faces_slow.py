"""Metric learning: P identities x K pictures per batch, triplet margin loss."""

import argparse, random, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Embeds(Dataset):
    def __init__(self, n, people, dim=256):
        g = torch.Generator().manual_seed(9)
        self.labels = torch.randint(0, people, (n,), generator=g).tolist()
        self.x = torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]

    def __getitems__(self, idx):
        return self.x[idx], torch.tensor([self.labels[i] for i in idx])


class PKSampler(Sampler):
    def __init__(self, labels, p, k, batches, seed=0):
        self.labels, self.p, self.k, self.batches = labels, p, k, batches
        self.ids = sorted(set(labels))
        self.rng = random.Random(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for person in self.rng.sample(self.ids, self.p):
                mine = [j for j, lab in enumerate(self.labels) if lab == person]
                batch += self.rng.choices(mine, k=self.k)
            yield batch


def triplet(z, y, margin=0.2):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None]
    hardest_pos = (d * same).max(1).values
    hardest_neg = (d + 1e3 * same).min(1).values
    return torch.relu(hardest_pos - hardest_neg + margin).mean()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("-P", type=int, default=8)
    p.add_argument("-K", type=int, default=8)
    p.add_argument("--epochs", type=int, default=20)
    a = p.parse_args()
    torch.manual_seed(0)
    ds = Embeds(120_000, 900, 96)
    dl = DataLoader(ds, batch_sampler=PKSampler(ds.labels, a.P, a.K, 50), collate_fn=lambda b: b, num_workers=0)
    net = nn.Sequential(
        nn.Linear(96, 512), nn.BatchNorm1d(512), nn.PReLU(), nn.Linear(512, 512), nn.PReLU(), nn.Linear(512, 64)
    )
    opt = torch.optim.AdamW(net.parameters(), 3e-4)
    for e in range(a.epochs):
        t0 = time.time()
        for x, y in dl:
            z = nn.functional.normalize(net(x), dim=1)
            loss = triplet(z, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"[{e}] {loss.item():.4f} {len(dl) / (time.time() - t0):.1f} it/s", flush=True)

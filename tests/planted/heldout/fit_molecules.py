# Regress a formation energy from atom positions.  Radial + angular symmetry functions, then a per-atom MLP.
import argparse, os, tempfile, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ap = argparse.ArgumentParser()
ap.add_argument("--molecules", type=int, default=420)
ap.add_argument("--epochs", type=int, default=48)
ap.add_argument("--batch", type=int, default=14)
ap.add_argument("--max-steps", type=int, default=None)
ap.add_argument("--fixed", action="store_true")

ATOMS, CENTRES = 110, 64
MU = np.linspace(0.6, 6.0, CENTRES).astype(np.float32)


def make_xyz(path, n):
    rng = np.random.default_rng(8)
    xyz = rng.normal(0, 2.6, (n, ATOMS, 3)).astype(np.float32)
    z = rng.choice(np.array([1, 6, 7, 8], np.float32), (n, ATOMS))
    energy = -(z[:, :, None] * z[:, None, :] / (1.0 + ((xyz[:, :, None] - xyz[:, None]) ** 2).sum(-1))).mean((1, 2))
    np.savez(path, xyz=xyz, z=z, energy=(energy - energy.mean()) / energy.std())


def symmetry_functions(xyz, z):
    diff = xyz[:, None] - xyz[None]
    r = np.sqrt((diff**2).sum(-1) + 1e-6)
    cut = np.where(r < 6.0, 0.5 * np.cos(np.pi * r / 6.0) + 0.5, 0.0).astype(np.float32)
    np.fill_diagonal(cut, 0.0)
    g = np.exp(-4.0 * (r[:, :, None] - MU) ** 2) * cut[:, :, None]
    radial = g.sum(1)
    weighted = (g * z[None, :, None]).sum(1)
    return np.concatenate([radial, weighted, z[:, None]], 1).astype(np.float32)


class Molecules(Dataset):
    def __init__(self, path, ahead):
        with np.load(path) as f:
            self.xyz, self.z = f["xyz"], f["z"]
            self.energy = f["energy"].astype(np.float32)
        self.feats = None
        if ahead:
            self.feats = np.stack([symmetry_functions(a, b) for a, b in zip(self.xyz, self.z)])

    def __len__(self):
        return len(self.energy)

    def __getitem__(self, k):
        f = self.feats[k] if self.feats is not None else symmetry_functions(self.xyz[k], self.z[k])
        return torch.from_numpy(f), self.energy[k]


class AtomNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.atom = nn.Sequential(nn.Linear(d, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, f):
        return self.atom(self.norm(f)).sum((1, 2)) / ATOMS


def train(a):
    def ema_update(decay=0.99):
        with torch.no_grad():
            for e, p in zip(ema.parameters(), net.parameters()):
                e.lerp_(p, 1 - decay)

    torch.manual_seed(2)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "mols.npz")
        make_xyz(path, a.molecules)
        data = Molecules(path, a.fixed)
    loader = DataLoader(
        data, batch_size=a.batch, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=4
    )
    net, ema = AtomNet(2 * CENTRES + 1), AtomNet(2 * CENTRES + 1)
    ema.load_state_dict(net.state_dict())
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.epochs)
    n, start = 0, time.perf_counter()
    for epoch in range(a.epochs):
        tot = 0.0
        for f, e in loader:
            f = f + 0.01 * torch.randn_like(f)
            loss = nn.functional.huber_loss(net(f), e)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema_update()
            tot += loss.item()
            n += 1
            if n == a.max_steps:
                break
        sched.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch:3d} loss {tot / len(loader):.4f} lr {sched.get_last_lr()[0]:.1e}", flush=True)
        if n == a.max_steps:
            break
    print(f"{n} steps in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    train(ap.parse_args())

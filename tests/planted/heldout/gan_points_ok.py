"""GAN on 2-D spirals lifted to 64-D. Hinge loss, EMA generator."""

import argparse, copy, csv, os, time
from pathlib import Path
import numpy as np
import torch
import torch.nn as nn

OUT = Path("data") / "gan_points"


def spiral_bank(n=50_000, d=64):
    f = OUT / "bank.npy"
    OUT.mkdir(parents=True, exist_ok=True)
    if not f.exists():
        rng = np.random.default_rng(0)
        t = rng.uniform(0.5, 4 * np.pi, n)
        xy = np.stack([t * np.cos(t), t * np.sin(t)], 1) / 12
        np.save(f, (xy @ rng.normal(size=(2, d)) + 0.02 * rng.normal(size=(n, d))).astype(np.float32))
    return torch.from_numpy(np.load(f))


def real_batches(bank, bs, seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        for idx in torch.randperm(len(bank), generator=g).split(bs):
            if len(idx) == bs:
                yield bank[idx]


def mlp(i, o, w=256, depth=4):
    layers = [nn.Linear(i, w), nn.LeakyReLU(0.2)]
    for _ in range(depth - 2):
        layers += [nn.Linear(w, w), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(w, o))


class RunBook:
    """Keeps the curves of a run on disk."""

    def __init__(self, path, every):
        self.f = open(path, "w", newline="")
        self.csv = csv.writer(self.f)
        self.every = every

    def note(self, step, scalars, nets):
        if step % self.every:
            return
        row = [step] + [f"{v:.5f}" for v in scalars]
        for net in nets:
            for p in net.parameters():
                for t in (p.detach(), p.grad):
                    if t is None:
                        continue
                    h = torch.histc(t, 64)
                    q = torch.quantile(t.flatten()[:50000], torch.tensor([0.05, 0.5, 0.95]))
                    row += [f"{t.mean():.3e}", f"{t.std() if t.numel() > 1 else 0:.3e}", f"{t.norm():.3e}"]
                    row += q.tolist() + h.int().tolist()
        self.csv.writerow(row)
        self.f.flush()
        os.fsync(self.f.fileno())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1000)
    ap.add_argument("--bs", type=int, default=320)
    ap.add_argument("--book-every", type=int, default=100)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bank = spiral_bank()
    G, D = mlp(32, 64), mlp(64, 1)
    ema = copy.deepcopy(G).requires_grad_(False)
    og = torch.optim.Adam(G.parameters(), 2e-4, (0.0, 0.9))
    od = torch.optim.Adam(D.parameters(), 2e-4, (0.0, 0.9))
    book = RunBook(OUT / "curves.csv", a.book_every)
    data = real_batches(bank, a.bs)
    t0 = 0
    for step in range(a.steps):
        real = next(data)
        fake = G(torch.randn(a.bs, 32))
        ld = torch.relu(1 - D(real)).mean() + torch.relu(1 + D(fake.detach())).mean()
        od.zero_grad()
        ld.backward()
        od.step()
        lg = -D(fake).mean()
        og.zero_grad()
        lg.backward()
        og.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(G.parameters()), 0.005)
        book.note(step, (ld.item(), lg.item()), (G, D))
        if step == 5:
            t0 = time.perf_counter()
        if step % 100 == 0:
            print(f"step {step} D {ld.item():.3f} G {lg.item():.3f}", flush=True)
    k = (time.perf_counter() - t0) / (a.steps - 6)
    print(f"{k * 1e3:.2f} ms/step ({1 / k:.1f} steps/s)")


if __name__ == "__main__":
    main()

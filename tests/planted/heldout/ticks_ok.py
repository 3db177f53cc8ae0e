import os, tempfile, time
from collections import namedtuple
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, BatchSampler, RandomSampler

Tick = namedtuple("Tick", "feat side ret")
PATH = os.path.join(tempfile.gettempdir(), "ticks_v1.npy")
N, D = 400_000, 12
DT = np.dtype([("feat", "f4", (D,)), ("side", "i8"), ("ret", "f4")])


def ensure():
    if os.path.exists(PATH):
        return
    rng = np.random.default_rng(11)
    a = np.lib.format.open_memmap(PATH + ".tmp", mode="w+", dtype=DT, shape=(N,))
    a["feat"] = rng.standard_normal((N, D), dtype=np.float32)
    a["side"] = rng.integers(0, 2, N)
    a["ret"] = a["feat"].sum(1) * 0.1
    a.flush()
    del a
    os.replace(PATH + ".tmp", PATH)


class Ticks(Dataset):
    def __init__(self):
        self.a = np.load(PATH, mmap_mode="r")

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        r = self.a[i]
        return Tick(
            torch.from_numpy(r["feat"].copy()), torch.from_numpy(r["side"].copy()), torch.from_numpy(r["ret"].copy())
        )


def batches(ds, bs):
    while True:
        yield from DataLoader(ds, batch_size=None, sampler=BatchSampler(RandomSampler(ds), bs, drop_last=True))


def run(steps=800, bs=4096):
    ensure()
    torch.manual_seed(0)
    ds = Ticks()
    emb = torch.nn.Embedding(2, 8)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(D + 8, 128),
        torch.nn.SiLU(),
        torch.nn.Linear(128, 128),
        torch.nn.SiLU(),
        torch.nn.Linear(128, 1),
    )
    opt = torch.optim.SGD([*emb.parameters(), *mlp.parameters()], lr=0.02, momentum=0.9)
    gen, t0 = batches(ds, bs), time.time()
    for step in range(steps):
        b = next(gen)
        out = mlp(torch.cat([b.feat, emb(b.side)], 1)).squeeze(1)
        loss = (out - b.ret.float()).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 20 == 0:
            print(
                f"step {step + 1} mse {float(loss.detach()):.4f} {(step + 1) / (time.time() - t0):.2f} steps/s",
                flush=True,
            )


if __name__ == "__main__":
    run()

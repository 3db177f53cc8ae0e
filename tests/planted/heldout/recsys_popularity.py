# matrix factorisation with popularity-corrected draws: rare items are drawn more often
import sys
import time
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

N_USERS, N_ITEMS, N_INTER = 20000, 5000, 80_000
BATCH, STEPS_PER_EPOCH, EPOCHS, DIM = 64, 250, 6, 64


class Interactions(Dataset):
    def __init__(self):
        g = np.random.default_rng(0)
        self.user = torch.from_numpy(g.integers(0, N_USERS, N_INTER))
        self.item = torch.from_numpy(np.minimum(g.zipf(1.3, N_INTER) - 1, N_ITEMS - 1))
        self.rating = torch.from_numpy(g.uniform(1, 5, N_INTER).astype(np.float32))

    def __len__(self):
        return N_INTER

    def __getitem__(self, k):
        return self.user[k], self.item[k], self.rating[k]


class RareFirst(Sampler):
    """Draws with probability 1/sqrt(count of the item)."""

    def __init__(self, items, n):
        counts = np.bincount(items, minlength=N_ITEMS)
        w = 1.0 / np.sqrt(counts[items])
        self.p = w / w.sum()
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        rng = np.random.default_rng()
        for _ in range(self.n):
            yield int(rng.choice(len(self.p), p=self.p))


class RareFirstArray(RareFirst):
    def __iter__(self):
        rng = np.random.default_rng()
        yield from rng.choice(len(self.p), size=self.n, p=self.p).tolist()


class MF(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(N_USERS, DIM, sparse=True), nn.Embedding(N_ITEMS, DIM, sparse=True)
        self.bu, self.bi = nn.Embedding(N_USERS, 1, sparse=True), nn.Embedding(N_ITEMS, 1, sparse=True)

    def forward(self, u, i):
        return (self.u(u) * self.i(i)).sum(1) + self.bu(u).squeeze(1) + self.bi(i).squeeze(1) + 3


def main():
    torch.set_num_threads(1)
    data = Interactions()
    cls = RareFirstArray if "--fixed" in sys.argv else RareFirst
    loader = DataLoader(data, batch_size=BATCH, sampler=cls(data.item.numpy(), BATCH * STEPS_PER_EPOCH))
    model = MF()
    opt = torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)
    for epoch in range(EPOCHS):
        t0 = time.time()
        bar = tqdm(loader, mininterval=1.0, file=sys.stdout)
        for n, (u, i, r) in enumerate(bar):
            loss = ((model(u, i) - r) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if n % 50 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}")
        print(f"epoch {epoch}: {(time.time() - t0) / STEPS_PER_EPOCH * 1e3:.1f} ms/step")


main()

"""Routes support tickets to teams. Tickets come as token ids; batches hold tickets of similar length."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

FILE = Path("data_ticket_router/tickets.npz")
VOCAB, TEAMS, BUDGET = 4000, 9, 3072


def tickets(count=2600):
    if not FILE.exists():
        FILE.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng(21)
        length = np.clip(np.exp(rng.normal(4.0, 0.8, count)), 8, 400).astype(np.int64)
        np.savez(FILE, length=length, ids=rng.integers(1, VOCAB, length.sum()), team=rng.integers(0, TEAMS, count))
    with np.load(FILE) as z:
        return z["length"], z["ids"], z["team"]


class Tickets(Dataset):
    def __init__(self, length, ids, team):
        self.texts = torch.from_numpy(ids).split(length.tolist())
        self.team = team.tolist()

    def __len__(self):
        return len(self.team)

    def __getitem__(self, i):
        return self.texts[i], self.team[i]


class BudgetBatches:
    """Sorted by length with a little noise, then cut where the padded batch would exceed the token budget."""

    def __init__(self, length):
        self.length = length
        self.batches = self._cut(np.argsort(length, kind="stable"))
        self.rng = np.random.default_rng(0)

    def _cut(self, order):
        out, begin = [], 0
        sizes = self.length[order]
        while begin < len(order):
            padded = sizes[begin:] * np.arange(1, len(order) - begin + 1)
            n = max(1, int(np.searchsorted(padded, BUDGET, side="right")))
            out.append(order[begin : begin + n])
            begin += n
        return out

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        noisy = self.length * self.rng.uniform(0.97, 1.03, len(self.length))
        order = np.argsort(noisy)
        edges = np.cumsum([len(b) for b in self.batches])[:-1]
        groups = np.split(order, edges)
        for k in self.rng.permutation(len(groups)):
            yield groups[k].tolist()


def pad(rows):
    return pad_sequence([t for t, _ in rows], batch_first=True), torch.tensor([y for _, y in rows])


class Router(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(width, TEAMS)

    def forward(self, ids):
        gap = ids == 0
        h = self.enc(self.emb(ids), src_key_padding_mask=gap)
        return self.cls(h.masked_fill(gap.unsqueeze(-1), 0).sum(1) / (~gap).sum(1, keepdim=True))


def main():
    torch.manual_seed(0)
    length, ids, team = tickets()
    loader = DataLoader(Tickets(length, ids, team), batch_sampler=BudgetBatches(length), collate_fn=pad)
    net = Router()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4)
    for epoch in range(3):
        t0 = time.perf_counter()
        total = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        print(f"epoch {epoch}: {total.item() / len(loader):.4f} in {len(loader)} batches")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()

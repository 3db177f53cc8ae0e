"""Language identification with a small transformer. Sentences have very different lengths."""

import argparse, random, time
from functools import partial
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD = 0


class Sentences(Dataset):
    def __init__(self, n=6000, seed=0):
        r = random.Random(seed)
        self.len = [max(4, min(400, int(r.lognormvariate(3.2, 0.9)))) for _ in range(n)]
        g = torch.Generator().manual_seed(seed)
        self.flat = torch.randint(1, 800, (sum(self.len),), generator=g)
        self.off = torch.tensor([0] + self.len).cumsum(0).tolist()

    def __len__(self):
        return len(self.len)

    def __getitem__(self, i):
        return self.flat[self.off[i] : self.off[i + 1]], i % 12


def pad_batch(items, pad):
    xs, ys = zip(*items)
    return nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=pad), torch.tensor(ys)


class Ident(nn.Module):
    def __init__(self, d=96, layers=2):
        super().__init__()
        self.emb = nn.Embedding(800, d, padding_idx=PAD)
        self.pos = nn.Embedding(512, d)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, batch_first=True), layers, enable_nested_tensor=False
        )
        self.out = nn.Linear(d, 12)

    def forward(self, x):
        mask = x == PAD
        h = self.enc(self.emb(x) + self.pos.weight[: x.size(1)], src_key_padding_mask=mask)
        h = h.masked_fill(mask[..., None], 0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bs", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(0)
    ds = Sentences()
    dl = DataLoader(ds, batch_size=a.bs, shuffle=True, drop_last=True, collate_fn=partial(pad_batch, pad=PAD))
    net = Ident()
    opt = torch.optim.Adam(net.parameters(), 5e-4)
    n, t0 = 0, time.time()
    for ep in range(a.epochs):
        for x, y in dl:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            n += 1
            if n % 30 == 0:
                print(ep, n, round(loss.item(), 4), f"{n / (time.time() - t0):.2f} steps/s", flush=True)


if __name__ == "__main__":
    main()

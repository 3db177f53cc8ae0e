# Splice-site model: a small conv net scores every base, a pairwise ranking loss wants true sites above the decoys.
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_reads(n, length, seed=0):
    g = torch.Generator().manual_seed(seed)
    bases = torch.randint(0, 4, (n, length), generator=g)
    sites = torch.rand(n, length, generator=g).argsort(1)[:, :6]  # where introns begin
    decoys = torch.rand(n, length, generator=g).argsort(1)[:, 6:14]
    bases.scatter_(1, sites, 2)
    return bases, sites.sort(1).values, decoys


class SpliceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 8)
        self.conv1 = nn.Conv1d(8, 16, 9, padding=4)
        self.conv2 = nn.Conv1d(16, 1, 9, padding=4)

    def forward(self, bases):
        x = self.embed(bases).transpose(1, 2)
        return self.conv2(F.relu(self.conv1(x))).squeeze(1)


def ranking_loss(scores, sites, decoys, margin=1.0):
    total, pairs = 0.0, 0
    for i in range(scores.shape[0]):
        for s in sites[i].tolist():
            for d in decoys[i].tolist():
                total = total + torch.clamp(margin - scores[i, s] + scores[i, d], min=0)
                pairs += 1
    return total / pairs


def ranking_loss_vectorised(scores, sites, decoys, margin=1.0):
    s, d = scores.gather(1, sites), scores.gather(1, decoys)
    return (margin - s[:, :, None] + d[:, None, :]).clamp(min=0).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--bs", type=int, default=8)
    ap.add_argument("--max-seconds", type=float, default=100)
    ap.add_argument("--fixed", action="store_true")
    opt = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(*make_reads(512, 400))
    loader = torch.utils.data.DataLoader(data, batch_size=opt.bs, shuffle=True)
    model = SpliceNet()
    optim = torch.optim.Adam(model.parameters(), 1e-3)
    criterion = ranking_loss_vectorised if opt.fixed else ranking_loss
    began = time.time()
    for epoch in range(opt.epochs):
        t = time.time()
        for bases, sites, decoys in loader:
            loss = criterion(model(bases), sites, decoys)
            optim.zero_grad()
            loss.backward()
            optim.step()
        print(
            "epoch %d loss %.4f (%.1f ms/step)" % (epoch, loss.item(), (time.time() - t) / len(loader) * 1e3),
            flush=True,
        )
        if time.time() - began > opt.max_seconds:
            break


main()

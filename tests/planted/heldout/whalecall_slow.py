"""Metric learning on hydrophone spectrograms: which whale is calling?"""

import argparse
import time

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)

N_WHALES, CLIPS = 40, 90
MARGIN = 0.3


class CallEncoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=4, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(64 * 4 * 4, dim)

    def forward(self, spec):
        return F.normalize(self.head(self.stem(spec).flatten(1)), dim=1)


def make_clips(seed=3):
    g = torch.Generator().manual_seed(seed)
    voice = torch.randn(N_WHALES, 1, 64, 64, generator=g)
    spec = torch.randn(N_WHALES, CLIPS, 1, 64, 64, generator=g)
    spec += 0.6 * voice[:, None]
    return spec


def draw_episode(spec, whales, per_whale, g):
    who = torch.randperm(N_WHALES, generator=g)[:whales]
    clip = torch.randint(0, CLIPS, (whales, per_whale), generator=g)
    x = spec[who[:, None], clip].flatten(0, 1)
    y = who.repeat_interleave(per_whale)
    return x, y


def mine(emb, labels):
    """hardest positive and hardest negative of every anchor"""
    emb = emb.detach()
    ids = labels.tolist()
    n = len(ids)
    hard_pos, hard_neg = [], []
    for a in range(n):
        pos, pos_d, neg, neg_d = a, -1.0, a, 1e9
        for b in range(n):
            if a == b:
                continue
            d = (emb[a] - emb[b]).pow(2).sum().item()
            if ids[a] == ids[b]:
                if d > pos_d:
                    pos, pos_d = b, d
            elif d < neg_d:
                neg, neg_d = b, d
        hard_pos.append(pos)
        hard_neg.append(neg)
    return torch.tensor(hard_pos), torch.tensor(hard_neg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--epochs", type=int, default=50)
    ap.add_argument("--episodes", type=int, default=300)
    args = ap.parse_args()

    spec = make_clips()
    g = torch.Generator().manual_seed(0)
    net = CallEncoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 10, 0.5)
    done, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        running = 0.0
        for _ in range(args.episodes):
            x, y = draw_episode(spec, 9, 8, g)
            emb = net(x)
            p, q = mine(emb, y)
            loss = F.triplet_margin_loss(emb, emb[p], emb[q], margin=MARGIN)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
            done += 1
            if args.steps and done >= args.steps:
                print(f"{(time.perf_counter() - t0) / done:.4f} s/step")
                return
        sched.step()
        print(f"epoch {epoch} loss {running / args.episodes:.4f}")


if __name__ == "__main__":
    main()

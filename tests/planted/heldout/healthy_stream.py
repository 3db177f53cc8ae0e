"""A stream of ready tensors from one worker, and a net that takes longer than they do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(512, 256, generator=g)
        while True:
            order = torch.randperm(512, generator=g)
            for k in range(0, 512, 64):
                yield x[order[k : k + 64]], order[k : k + 64] % 7


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 7))
    opt = torch.optim.AdamW(net.parameters())
    for step, (x, y) in enumerate(DataLoader(Stream(), batch_size=None, num_workers=1)):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 500 == 0:
            print(step, loss.item())
        if step > 20000:
            break

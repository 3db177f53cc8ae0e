"""A deep narrow net with a hand-written moving average and clipping over every parameter, each step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
blocks = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()) for _ in range(60)]
net = nn.Sequential(*blocks, nn.Linear(32, 2))
shadow = {n: p.detach().clone() for n, p in net.named_parameters()}


def average(decay=0.999):
    for n, p in net.named_parameters():
        shadow[n] = shadow[n] * decay + p.detach() * (1 - decay)
        for row in range(min(len(p), 8)):
            if p.grad is not None:
                p.grad[row] = p.grad[row].clamp(-1, 1)


data = TensorDataset(torch.randn(20000, 32), torch.randint(0, 2, (20000,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
opt = torch.optim.AdamW(net.parameters(), foreach=True)
for epoch in range(10):
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        average()
        opt.step()
    print(epoch, loss.item())

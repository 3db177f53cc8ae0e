"""A compiled model that is given another length in every batch, static shapes only."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch._dynamo.config.cache_size_limit = 200
if hasattr(torch._dynamo.config, "recompile_limit"):
    torch._dynamo.config.recompile_limit = 200


def cut(batch):
    longest = max(len(one) for one in batch)
    return torch.stack([nn.functional.pad(one, (0, longest - len(one))) for one in batch])


def main():
    torch.manual_seed(0)
    data = [torch.rand(n) + 0.1 for n in torch.randint(16, 200, (1200,)).tolist()]
    model = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    fast = torch.compile(model, dynamic=False, backend="aot_eager")
    for _ in range(3):
        for x in DataLoader(data, 4, shuffle=True, collate_fn=cut):
            loss = fast(x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


main()

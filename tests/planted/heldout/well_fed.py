"""Everything in memory, two workers that fetch whole batches, values read every 50 steps: nothing to find."""

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from stoker.sim import Device


class InMemory(Dataset):
    def __init__(self):
        self.x = torch.randn(20_000, 128)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, indices):
        return self.x[indices]


def main():
    data = InMemory()
    sampler = BatchSampler(RandomSampler(data), batch_size=128, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None, num_workers=2, persistent_workers=True)
    device = Device(forward=0.010, backward=0.020, optimizer=0.004)
    model = torch.nn.Linear(128, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device.place(model, optimizer)
    step = 0
    for _ in range(12):
        for x in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = model(x.to(device, non_blocking=True)).square().mean()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(step, loss.item())


if __name__ == "__main__":
    main()

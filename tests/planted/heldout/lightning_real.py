"""Lightning's Trainer; samples are ready, the collate function builds the batch value by value."""

import lightning
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.rows = [[float((i * j) % 13) for j in range(120)] for i in range(500)]

    def __len__(self):
        return 50000

    def __getitem__(self, i):
        return self.rows[i % 500], i % 3


def collate(items):
    x = torch.zeros(len(items), 120)
    for r, (row, _) in enumerate(items):
        for c, value in enumerate(row):
            x[r, c] = value
    return x, torch.tensor([y for _, y in items])


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(120, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False).fit(
        Module(), DataLoader(Rows(), 64, shuffle=True, num_workers=1, collate_fn=collate)
    )

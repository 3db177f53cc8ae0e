"""A module with training_step, a data module and a trainer, as Lightning has them; rows come from a mapped table."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


class TableDataset(Dataset):
    def __init__(self, path):
        self.path, self.table = path, None

    def __len__(self):
        return 400_000

    def __getitem__(self, i):
        if self.table is None:
            self.table = np.load(self.path, mmap_mode="r")
        row = self.table[i]
        user, item = int(row["user"]), int(row["item"])
        dense = torch.from_numpy(np.asarray(row["dense"], dtype=np.float32))
        return {"user": user, "item": item, "dense": dense, "label": float(row["label"])}


class DataModule:
    def __init__(self, root):
        self.path = root / "table.npy"

    def setup(self):
        if not self.path.exists():
            kind = [("user", "i4"), ("item", "i4"), ("dense", "f4", (13,)), ("label", "f4")]
            table = np.zeros(400_000, dtype=kind)
            table["user"] = np.arange(400_000) % 999
            np.save(self.path, table)

    def train_dataloader(self):
        return DataLoader(TableDataset(self.path), batch_size=2048, shuffle=True, num_workers=2)


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(1000, 8)
        self.head = torch.nn.Linear(21, 1)

    def training_step(self, batch, _):
        x = torch.cat([self.users(batch["user"]), batch["dense"]], dim=1)
        return torch.nn.functional.mse_loss(self.head(x).squeeze(1), batch["label"].float())

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.05)


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs
        self.device = Device(forward=0.002, backward=0.004, optimizer=0.001)

    def fit(self, module, data):
        data.setup()
        optimizer = module.configure_optimizers()
        self.device.place(module, optimizer)
        for _ in range(self.max_epochs):
            for index, batch in enumerate(data.train_dataloader()):
                batch = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
                loss = module.training_step(batch, index)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    Trainer(max_epochs=3).fit(Recommender(), DataModule(Path(sys.argv[1])))

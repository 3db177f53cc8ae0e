"""Lightning's loop: a LightningModule, a Trainer, validation, checkpoints."""

import time
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        return torch.randn(32), i % 4


class Net(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("validation_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    trainer = Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False, logger=False)
    trainer.fit(Net(), DataLoader(Data(640), 16, shuffle=True), DataLoader(Data(96), 16))
    print("DONE", trainer.global_step)

"""ECG beats, Lightning."""

import logging, time, warnings
import numpy as np, torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Beats(L.LightningDataModule):
    def __init__(self, n=480, bs=32):
        super().__init__()
        self.n, self.bs = n, bs

    def setup(self, stage=None):
        g = torch.Generator().manual_seed(4)
        self.ds = TensorDataset(torch.randn(self.n, 1, 360, generator=g), torch.randint(0, 5, (self.n,), generator=g))

    def train_dataloader(self):
        return DataLoader(self.ds, self.bs, shuffle=True, num_workers=4, persistent_workers=True)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.f = torch.nn.Sequential(
            torch.nn.Conv1d(1, 32, 7, 2),
            torch.nn.ReLU(),
            torch.nn.Conv1d(32, 64, 7, 2),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool1d(4),
            torch.nn.Flatten(),
            torch.nn.Linear(256, 5),
        )

    def training_step(self, batch, idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.f(x), y)

    def on_train_epoch_start(self):
        self.t = time.time()

    def on_train_epoch_end(self):
        if self.current_epoch % 5 == 0:
            print("epoch", self.current_epoch, f"{time.time() - self.t0:.2f} s since start", flush=True)

    def on_train_start(self):
        self.t0 = time.time()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


if __name__ == "__main__":
    L.seed_everything(1, verbose=False)
    tr = L.Trainer(
        max_epochs=120,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    tr.fit(Net(), datamodule=Beats())

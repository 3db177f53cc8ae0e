"""Short-horizon load forecasting with Lightning."""

import argparse
import logging
import time
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
DATA = Path("data") / "lit_forecast"


class Windows(Dataset):
    def __init__(self, path, hist=96, horizon=24):
        self.path, self.hist, self.horizon = str(path), hist, horizon
        self.n = 1600
        self._x = None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self._x is None:
            self._x = np.load(self.path, mmap_mode="r")
        s = (i * 7919) % (self._x.shape[1] - self.hist - self.horizon)
        w = np.asarray(self._x[i % self._x.shape[0], s : s + self.hist + self.horizon])
        return torch.from_numpy(w[: self.hist].copy()), torch.from_numpy(w[self.hist :].copy())


class LoadData(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.bs = batch_size

    def prepare_data(self):
        f = DATA / "load.npy"
        if not f.exists():
            DATA.mkdir(parents=True, exist_ok=True)
            rng = np.random.default_rng(2)
            t = np.arange(20000)
            x = np.sin(t * 2 * np.pi / 24)[None] * rng.uniform(0.5, 2, (64, 1)) + 0.2 * rng.normal(size=(64, 20000))
            np.save(f, x.astype(np.float32))

    def train_dataloader(self):
        return DataLoader(
            Windows(DATA / "load.npy"),
            batch_size=self.bs,
            shuffle=True,
            num_workers=2,
            drop_last=True,
            multiprocessing_context="forkserver",
        )


class Forecaster(L.LightningModule):
    def __init__(self, hidden=96, horizon=24):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, horizon)
        self.marks = []

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(-1))
        return self.out(h[:, -1])

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_):
        self.marks.append(time.perf_counter())

    def on_train_epoch_end(self):
        e = self.current_epoch
        if e % 4 == 0:
            print(f"epoch {e}: loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self):
        o = torch.optim.Adam(self.parameters(), lr=2e-3)
        return {"optimizer": o, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(o, 0.98)}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=32)
    a = ap.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(4, verbose=False)
    m = Forecaster()
    tr = L.Trainer(
        max_epochs=a.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    tr.fit(m, datamodule=LoadData(a.batch_size))
    k = (m.marks[-1] - m.marks[0]) / (len(m.marks) - 1)
    print(f"{1 / k:.2f} steps/s  ({k * 1e3:.1f} ms/step over {len(m.marks)} steps)")

"""GRU forecaster as a LightningModule."""

import argparse
import os
import time
import warnings

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


def series(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "series.npy")
    if not os.path.exists(path):
        rng = np.random.default_rng(41)
        t = np.arange(60)[None, :, None]
        x = np.sin(t / rng.uniform(2, 9, (800, 1, 6)) + rng.uniform(0, 6, (800, 1, 6)))
        np.save(path, (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32))
    return torch.from_numpy(np.load(path))


class Forecaster(L.LightningModule):
    def __init__(self, hidden=192):
        super().__init__()
        self.rnn = nn.GRU(6, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.out(self.rnn(x)[0])

    def training_step(self, batch, idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self(x[:, :-1]), x[:, 1:])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self(x[:, :-1]), x[:, 1:]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class Rate(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        self.t, self.n = time.time(), 0

    def on_train_batch_end(self, trainer, module, outputs, batch, idx):
        self.n += len(batch[0])

    def on_train_epoch_end(self, trainer, module):
        print(f"epoch {trainer.current_epoch} {self.n / (time.time() - self.t):.1f} samples/s", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("data")
    ap.add_argument("--epochs", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    x = series(args.data)
    train = DataLoader(TensorDataset(x[32:]), batch_size=32, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(x[:32]), batch_size=32)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[Rate()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        check_val_every_n_epoch=2,
        num_sanity_val_steps=0,
    )
    trainer.fit(Forecaster(), train, val)


if __name__ == "__main__":
    main()

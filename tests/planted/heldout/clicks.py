"""Click-through model on tabular features, with a Trainer and an audit trail of what it was trained on."""

import argparse
import logging
import logging.handlers
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, BatchSampler, RandomSampler

from stoker import sim

log = logging.getLogger("clicks")
audit = logging.getLogger("clicks.audit")


@dataclass
class Config:
    folder: Path
    epochs: int = 400
    batch_size: int = 1024
    lr: float = 1e-3
    print_every: int = 50
    fixed: bool = False


class Trainer:
    def __init__(self, config):
        self.config = config
        config.folder.mkdir(parents=True, exist_ok=True)
        n, columns = 153_600, 24
        generator = torch.Generator().manual_seed(5)
        rows = torch.randn(n, columns, generator=generator)
        clicked = (torch.rand(n, generator=generator) < torch.sigmoid(rows[:, 0])).float()
        self.data = TensorDataset(torch.arange(n), rows, clicked)
        order = BatchSampler(RandomSampler(self.data), config.batch_size, drop_last=True)
        self.loader = DataLoader(self.data, sampler=order, batch_size=None)
        self.model = nn.Sequential(nn.Linear(columns, 16), nn.ReLU(), nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.criterion = nn.BCEWithLogitsLoss()
        self.device = sim.Device(forward=6e-3, backward=10e-3, optimizer=1e-3)
        self.model = self.device.place(self.model, self.optimizer)
        self.step = 0
        self.setup_logging()

    def setup_logging(self):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        handler = logging.handlers.RotatingFileHandler(
            self.config.folder / "audit.log", maxBytes=16 << 20, backupCount=1
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        audit.addHandler(handler)
        audit.propagate = False
        audit.setLevel(logging.WARNING if self.config.fixed else logging.INFO)

    def record(self, ids, clicked):
        if not audit.isEnabledFor(logging.INFO):
            return
        for row, label in zip(ids.tolist(), clicked.tolist()):
            audit.info("step=%d row=%d clicked=%d", self.step, row, label)

    def train_step(self, ids, rows, clicked):
        self.record(ids, clicked)
        rows = rows.to(self.device, non_blocking=True)
        clicked = clicked.to(self.device, non_blocking=True)
        loss = self.criterion(self.model(rows).squeeze(1), clicked)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def fit(self):
        for epoch in range(self.config.epochs):
            began = time.perf_counter()
            for batch in self.loader:
                loss = self.train_step(*batch)
                if self.step % self.config.print_every == 0:
                    log.info("epoch %d step %d loss %.4f", epoch, self.step, loss.item())
            log.info("epoch %d: %.1f s", epoch, time.perf_counter() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--fixed", action="store_true")
    options = parser.parse_args()
    Trainer(Config(options.folder or Path(tempfile.mkdtemp()), fixed=options.fixed)).fit()

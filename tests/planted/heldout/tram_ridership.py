"""Ridership of tram lines, one week in, one day out. Row groups are visited in random order, mixed four at a time."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FILE = Path("data_tram_ridership/weeks.parquet")
HOURS, CH, AHEAD = 168, 4, 24
WIDTH = HOURS * CH + AHEAD
LINES, ROWS = 20, 240


def ensure_file():
    if FILE.exists():
        return
    FILE.parent.mkdir(parents=True)
    rng = np.random.default_rng(12)
    schema = pa.schema([("values", pa.list_(pa.float32(), WIDTH))])
    with pq.ParquetWriter(FILE, schema, compression="zstd") as out:
        for _ in range(LINES):
            v = rng.normal(size=(ROWS, WIDTH)).astype(np.float32).round(2)
            out.write_table(pa.table([pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), WIDTH)], schema=schema))


class MixedGroups(IterableDataset):
    def __init__(self, batch, together=4):
        self.batch, self.together, self.epoch = batch, together, 0

    def __len__(self):
        return (LINES // self.together) * (ROWS * self.together // self.batch)

    def __iter__(self):
        rng = np.random.default_rng(self.epoch)
        file = pq.ParquetFile(FILE)
        groups = rng.permutation(file.num_row_groups)
        for k in range(0, len(groups), self.together):
            table = file.read_row_groups(groups[k : k + self.together].tolist(), columns=["values"])
            rows = table.column("values").combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
            rows = torch.from_numpy(rows[rng.permutation(len(rows))])
            for part in rows.split(self.batch):
                if len(part) == self.batch:
                    yield part[:, :-AHEAD].reshape(-1, HOURS, CH), part[:, -AHEAD:]


class Recurrent(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.rnn = nn.GRU(CH, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, AHEAD)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])


def main():
    torch.manual_seed(0)
    ensure_file()
    data = MixedGroups(batch=96)
    loader = DataLoader(data, batch_size=None)
    net = Recurrent()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    for epoch in range(3):
        data.epoch = epoch
        start = time.perf_counter()
        total = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            total += loss.detach()
        sched.step()
        print(f"epoch {epoch} mse {total.item() / len(data):.4f}")
        print(f"epoch_seconds {time.perf_counter() - start:.3f}", flush=True)


if __name__ == "__main__":
    main()

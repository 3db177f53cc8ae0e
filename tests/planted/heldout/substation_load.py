"""Day-ahead load of substations from the past week (hourly, 4 channels)."""

import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

PATH = Path("data_substation_load/weeks.parquet")
HOURS, CHANNELS, AHEAD = 168, 4, 24
WIDTH = HOURS * CHANNELS + AHEAD
STATIONS, WEEKS = 20, 300  # one row group per station


def export():
    if PATH.exists():
        return
    PATH.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(6)
    schema = pa.schema([("station", pa.int32()), ("values", pa.list_(pa.float32(), WIDTH))])
    with pq.ParquetWriter(PATH, schema, compression="zstd") as out:
        for s in range(STATIONS):
            v = np.cumsum(rng.normal(size=(WEEKS, WIDTH)), 1).astype(np.float32).round(2)
            column = pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), WIDTH)
            out.write_table(
                pa.table([pa.array(np.full(WEEKS, s, np.int32)), column], schema=schema), row_group_size=WEEKS
            )


class StationStore:
    """Keeps the stations used last in memory."""

    def __init__(self, keep):
        self.file = pq.ParquetFile(PATH)
        self.keep, self.recent = keep, OrderedDict()

    def station(self, s):
        if s in self.recent:
            self.recent.move_to_end(s)
            return self.recent[s]
        column = self.file.read_row_group(s, columns=["values"]).column("values").combine_chunks()
        block = column.flatten().to_numpy().reshape(-1, WIDTH)
        self.recent[s] = block
        if len(self.recent) > self.keep:
            self.recent.popitem(last=False)
        return block


class Weeks(Dataset):
    def __init__(self, keep=3):
        self.store = StationStore(keep)
        self.order = np.arange(STATIONS * WEEKS)

    def set_epoch(self, epoch):
        self.order = np.random.default_rng(epoch).permutation(STATIONS * WEEKS)

    def __len__(self):
        return len(self.order)

    def __getitem__(self, i):
        s, w = divmod(int(self.order[i]), WEEKS)
        row = torch.from_numpy(self.store.station(s)[w].copy())
        return row[:-AHEAD].view(HOURS, CHANNELS), row[-AHEAD:]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(CHANNELS, 24, 7, 3), nn.ReLU(), nn.Conv1d(24, 24, 5, 2), nn.ReLU())
        self.out = nn.LazyLinear(AHEAD)

    def forward(self, x):
        return self.out(self.conv(x.transpose(1, 2)).flatten(1))


def main():
    torch.manual_seed(0)
    export()
    data = Weeks()
    loader = DataLoader(data, batch_size=48, shuffle=False)
    net = Forecaster()
    net(torch.zeros(1, HOURS, CHANNELS))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(3):
        data.set_epoch(epoch)
        t0 = time.perf_counter()
        total = torch.zeros(())
        for x, y in tqdm(loader, desc=f"epoch {epoch}", mininterval=5):
            opt.zero_grad()
            loss = nn.functional.l1_loss(net(x), y)
            loss.backward()
            opt.step()
            total += loss.detach()
        print(f"\nmae {total.item() / len(loader):.3f}")
        print(f"epoch_seconds {time.perf_counter() - t0:.3f}", flush=True)


if __name__ == "__main__":
    main()

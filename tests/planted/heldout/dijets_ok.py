import collections
import pathlib
import time
import argparse

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

STORE = pathlib.Path() / "data_jets" / "events.arrow"
GROUP, GROUPS, DIM = 1024, 190, 256


def write_events():
    STORE.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(11)
    schema = pa.schema([("jet", pa.list_(pa.float32(), DIM)), ("kind", pa.int64())])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    tmp = STORE.with_suffix(".part")
    with pa.OSFile(str(tmp), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        for _ in range(GROUPS):
            kind = rng.integers(0, 5, GROUP)
            jets = rng.standard_normal((GROUP, DIM), dtype=np.float32).round(2) + kind[:, None].astype(np.float32) * 0.1
            column = pa.FixedSizeListArray.from_arrays(pa.array(jets.ravel()), DIM)
            writer.write_batch(pa.record_batch([column, pa.array(kind)], schema=schema))
    tmp.rename(STORE)


class JetEvents(Dataset):
    """Random access to the event file; the most recent groups stay in memory."""

    def __init__(self, keep=8):
        self.keep = keep
        self.groups = collections.OrderedDict()
        self.reader = None

    def __len__(self):
        return GROUP * GROUPS

    def group(self, g):
        if g in self.groups:
            self.groups.move_to_end(g)
            return self.groups[g]
        if self.reader is None:
            self.reader = pa.ipc.open_file(pa.OSFile(str(STORE)), options=pa.ipc.IpcReadOptions(use_threads=False))
        record = self.reader.get_batch(g)
        jets = record.column(0).flatten().to_numpy().reshape(GROUP, DIM)
        self.groups[g] = jets, record.column(1).to_numpy()
        if len(self.groups) > self.keep:
            self.groups.popitem(last=False)
        return self.groups[g]

    def __getitem__(self, i):
        jets, kinds = self.group(i // GROUP)
        return np.array(jets[i % GROUP]), kinds[i % GROUP]


class GroupwiseOrder(Sampler):
    """Groups in random order, events mixed within every few neighbouring groups of that order."""

    def __init__(self, mix=4):
        self.mix = mix

    def __len__(self):
        return GROUP * GROUPS

    def __iter__(self):
        order = np.random.permutation(GROUPS)
        for lo in range(0, GROUPS, self.mix):
            rows = (order[lo : lo + self.mix, None] * GROUP + np.arange(GROUP)).ravel()
            np.random.shuffle(rows)
            yield from rows.tolist()


def tagger(width=896):
    return nn.Sequential(nn.Linear(DIM, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 5))


def run(steps, accumulate=2):
    data = JetEvents()
    loader = DataLoader(data, batch_size=160, sampler=GroupwiseOrder(), num_workers=2, drop_last=True)
    model = tagger()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    count, since = 0, 0.0
    for epoch in range(20):
        for jets, kinds in loader:
            loss = nn.functional.cross_entropy(model(jets), kinds) / accumulate
            loss.backward()
            count += 1
            if count % accumulate == 0:
                opt.step()
                opt.zero_grad(set_to_none=True)
            if count == 8:
                since = time.perf_counter()
            if count % 200 == 0:
                print("epoch", epoch, "batch", count, "loss", loss.item() * accumulate, flush=True)
            if count == steps:
                print("seconds per step %.4f" % ((time.perf_counter() - since) / (count - 8)))
                return


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=-1)
    torch.set_num_threads(1)
    if not STORE.exists():
        write_events()
    run(cli.parse_args().steps)

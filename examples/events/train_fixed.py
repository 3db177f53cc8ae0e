"""The same training, shuffled: files are read once an epoch, a few are mixed at a time, nothing loops over events."""

import json
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from train import MAX_PULSES, Model, direction, load_batch_file, parse, place

WINDOW_FILES = 4  # mixed together at a time
SENSORS = 5160
WARMUP_STEPS = 20
BATCHES_AHEAD = 4


class EventBatches(IterableDataset):
    """Every event of an epoch once: files in random order, and the events of a window of files mixed."""

    def __init__(self, folder, batch_ids, batch_size, shuffle, seed):
        self.folder, self.batch_ids, self.batch_size, self.shuffle, self.seed = (
            folder,
            batch_ids,
            batch_size,
            shuffle,
            seed,
        )
        meta = pq.read_table(folder / "meta.parquet")
        self.meta = {name: meta[name].to_numpy() for name in meta.column_names}
        self.events = int(np.isin(self.meta["batch_id"], batch_ids).sum())
        self.epoch = 0

    def __len__(self):
        return (self.events + self.batch_size - 1) // self.batch_size

    def __iter__(self):
        random = np.random.default_rng([self.seed, self.epoch])
        files = random.permutation(self.batch_ids) if self.shuffle else self.batch_ids
        held = {}
        left = np.empty(0, np.int64)
        for first in range(0, len(files), WINDOW_FILES):
            window = files[first : first + WINDOW_FILES]
            still_needed = set(self.meta["batch_id"][left])
            held = {file: pulses for file, pulses in held.items() if file in still_needed}
            held |= {file: load_batch_file.__wrapped__(self.path(file)) for file in window}
            events = np.flatnonzero(np.isin(self.meta["batch_id"], window))
            events = np.concatenate([left, random.permutation(events) if self.shuffle else events])
            whole = len(events) // self.batch_size * self.batch_size
            for start in range(0, whole, self.batch_size):
                yield self.batch(events[start : start + self.batch_size], held)
            left = events[whole:]
        if len(left):
            yield self.batch(left, held)
        self.epoch += 1

    def path(self, file):
        return self.folder / "pulses" / f"batch_{file:03d}.parquet"

    def batch(self, events, held):
        """All pulses of a batch, sorted by event and sensor, with the lengths of both kinds of group."""
        first, last = self.meta["first_pulse_index"][events], self.meta["last_pulse_index"][events]
        lengths = np.minimum(last - first + 1, MAX_PULSES)
        parts = [(held[file], low, low + count) for file, low, count in
                 zip(self.meta["batch_id"][events], first, lengths, strict=True)]  # fmt: skip
        column = {name: np.concatenate([pulses[name][low:high] for pulses, low, high in parts])
                  for name in ("sensor_id", "time", "charge")}  # fmt: skip
        key = np.repeat(np.arange(len(events)), lengths) * SENSORS + column["sensor_id"]
        bits = len(key).bit_length()  # a pulse's place in the low bits: one sort of numbers gives the order too
        ranked = np.sort(key << bits | np.arange(len(key)))
        order, key = ranked & (1 << bits) - 1, ranked >> bits
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        groups, sensor_pulses = key[starts], np.diff(starts, append=len(key))
        pulses = np.stack([column["time"][order] / 20_000, column["charge"][order]], axis=1).astype(np.float32)
        wanted = np.stack(direction(self.meta["azimuth"][events], self.meta["zenith"][events]), axis=1)
        return {
            "event_sensors": torch.from_numpy(np.bincount(groups // SENSORS, minlength=len(events))),
            "sensor_pulses": torch.from_numpy(sensor_pulses),
            "pulses": torch.from_numpy(pulses),
            "direction": torch.from_numpy(wanted.astype(np.float32)),
        }


class Ahead:
    """A loader whose next batches are made by a thread, while this one is trained on."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        with ThreadPoolExecutor(1) as maker:
            batches = iter(self.loader)
            coming = deque(maker.submit(next, batches, None) for _ in range(BATCHES_AHEAD))
            while (batch := coming.popleft().result()) is not None:
                coming.append(maker.submit(next, batches, None))
                yield batch


class VectorisedModel(Model):
    """The same parameters and the same numbers, without a loop."""

    def forward(self, event_sensors, sensor_pulses, pulses):
        sensors = segment_mean(self.pulse(pulses), sensor_pulses)
        return self.event(segment_mean(sensors, event_sensors))


def segment_mean(rows, lengths):
    """Means of consecutive runs of rows."""
    home = torch.repeat_interleave(lengths, output_size=len(rows))
    sums = torch.zeros_like(rows[: len(lengths)]).index_add(0, home, rows)
    return sums / lengths.unsqueeze(1)


def predict(model, batch, device):
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
    return model(moved["event_sensors"], moved["sensor_pulses"], moved["pulses"]), moved["direction"]


def train_epoch(loader, model, optimizer, device, epoch, args, timings):
    model.train()
    step_began = time.perf_counter()
    for step, batch in enumerate(loader):
        waited = time.perf_counter() - step_began
        loss = nn.functional.mse_loss(*predict(model, batch, device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"epoch {epoch} step {step}/{len(loader)}: loss {loss.item():.3f}", flush=True)
        timings.append((epoch, step, waited, time.perf_counter(), getattr(device, "busy_s", 0.0)))
        if args.steps and len(timings) >= args.steps:
            break
        step_began = time.perf_counter()
    loss.item()  # waits for the device, so that all steps are counted whole
    timings[-1] = (*timings[-1][:3], time.perf_counter(), timings[-1][4])


@torch.no_grad()
def validate(loader, model, device, steps):
    model.eval()
    losses = []
    for step, batch in enumerate(loader):
        if step == steps:
            break
        losses.append(nn.functional.mse_loss(*predict(model, batch, device)))
    return torch.stack(losses).mean().item()


def report(timings, device, wall_s, args):
    rows = timings[WARMUP_STEPS:] if len(timings) > WARMUP_STEPS + 1 else timings
    step_s = float((rows[-1][3] - rows[0][3]) / max(1, len(rows) - 1))
    wait_s = float(np.mean([row[2] for row in rows[1:] or rows]))
    metrics = {
        "steps": len(timings),
        "shuffle": args.shuffle,
        "wait_s": wait_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "samples_per_s": args.batch_size / step_s,
        "wall_s": wall_s,
        "device_busy_s": getattr(device, "busy_s", None),
        "device_step_s": float(np.median(np.diff([row[4] for row in timings]))) if len(timings) > 1 else None,
    }
    print(
        f"{1 / step_s:.1f} it/s, {args.batch_size / step_s:.0f} events/s {'shuffled' if args.shuffle else 'in order'}: "
        f"{step_s * 1e3:.1f} ms a step, of which {wait_s * 1e3:.1f} ms ({wait_s / step_s:.0%}) waiting for data"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def main():
    args = parse(steps=0, workers=0)  # a batch is made in less time than a worker takes to hand it over
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    batch_ids = sorted(set(pq.read_table(args.data / "meta.parquet", columns=["batch_id"])["batch_id"].to_pylist()))
    split = max(1, len(batch_ids) * 9 // 10)  # by file, so that each file is read for one purpose only

    def loader(files, shuffle):
        dataset = EventBatches(args.data, files, args.batch_size, shuffle, args.seed)
        workers = min(1, args.workers)
        return Ahead(DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0))

    model = VectorisedModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    device, model = place(args, model, optimizer)
    train_loader, val_loader = loader(batch_ids[:split], args.shuffle), loader(batch_ids[split:], shuffle=False)
    timings = []
    began = time.perf_counter()
    for epoch in range(args.epochs):
        train_epoch(train_loader, model, optimizer, device, epoch, args, timings)
        if args.val_steps:
            print(f"epoch {epoch}: validation loss {validate(val_loader, model, device, args.val_steps):.3f}")
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "checkpoint.pt")
        if args.steps and len(timings) >= args.steps:
            break
    report(timings, device, time.perf_counter() - began, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")

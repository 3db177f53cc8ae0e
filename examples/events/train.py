"""Train a direction regressor on ragged events in Parquet files."""

import argparse
import json
import sys
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

MAX_PULSES = 1024
WARMUP_STEPS = 1


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"train: {message}. See: train.py --help\n")


@lru_cache(maxsize=1)  # a file is large, so keep only the current one
def load_batch_file(path):
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


class EventDataset(Dataset):
    def __init__(self, folder):
        self.folder = folder
        meta = pq.read_table(folder / "meta.parquet").to_pydict()
        self.batch_id = meta["batch_id"]
        self.first = meta["first_pulse_index"]
        self.last = meta["last_pulse_index"]
        self.azimuth = meta["azimuth"]
        self.zenith = meta["zenith"]

    def __len__(self):
        return len(self.batch_id)

    def __getitem__(self, idx):
        pulses = load_batch_file(self.folder / "pulses" / f"batch_{self.batch_id[idx]:03d}.parquet")
        rows = slice(self.first[idx], min(self.last[idx] + 1, self.first[idx] + MAX_PULSES))
        return {
            "sensor_id": pulses["sensor_id"][rows],
            "time": pulses["time"][rows],
            "charge": pulses["charge"][rows],
            "auxiliary": pulses["auxiliary"][rows],
            "direction": direction(self.azimuth[idx], self.zenith[idx]),
        }


def direction(azimuth, zenith):
    return [np.cos(azimuth) * np.sin(zenith), np.sin(azimuth) * np.sin(zenith), np.cos(zenith)]


def collate(events):
    """Pack the pulses of each sensor of each event next to each other."""
    packed, sensor_pulses, event_sensors, directions = [], [], [], []
    for event in events:
        by_sensor = {}
        pulses = zip(event["sensor_id"].tolist(), event["time"].tolist(), event["charge"].tolist(), strict=True)
        for sensor, moment, charge in pulses:
            by_sensor.setdefault(sensor, []).append([moment / 20_000, charge])
        for sensor in sorted(by_sensor):
            packed.extend(by_sensor[sensor])
            sensor_pulses.append(len(by_sensor[sensor]))
        event_sensors.append(len(by_sensor))
        directions.append(event["direction"])
    return {
        "event_sensors": torch.tensor(event_sensors),
        "sensor_pulses": torch.tensor(sensor_pulses),
        "pulses": torch.tensor(packed, dtype=torch.float32),
        "direction": torch.tensor(directions, dtype=torch.float32),
    }


class Model(nn.Module):
    """Pulses → sensors → event → direction."""

    def __init__(self, width=8):
        super().__init__()
        self.pulse = nn.Sequential(nn.Linear(2, width), nn.ReLU())
        self.event = nn.Linear(width, 3)

    def forward(self, event_sensors, sensor_pulses, pulses):
        sensors = self.pulse(pulses).split(sensor_pulses.tolist())
        vectors, first = [], 0
        for count in event_sensors.tolist():
            vectors.append(torch.stack([sensor.mean(dim=0) for sensor in sensors[first : first + count]]).mean(dim=0))
            first += count
        return self.event(torch.stack(vectors))


def place(args, model, optimizer):
    """Put the model on the device; the simulated one takes 11.4 ms for a batch of 256, as the vectorised step did."""
    if args.device != "sim":
        return torch.device(args.device), model.to(args.device)
    from stoker import sim

    device = sim.Device(
        forward=sim.linear(0, 3.6e-3 / 256),
        backward=sim.linear(0, 5.8e-3 / 256),
        optimizer=2.0e-3,
        memory_bytes=24 << 30,
        fixed_bytes=1 << 30,
        sample_bytes=8 << 20,
    )
    return device, device.place(model, optimizer)


def predict(model, batch, device):
    inputs = [batch[name].to(device) for name in ("event_sensors", "sensor_pulses", "pulses")]
    return model(*inputs), batch["direction"].to(device)


def train_epoch(loader, model, optimizer, device, epoch, args, timings):
    model.train()
    step_began = time.perf_counter()
    for step, batch in enumerate(loader):
        waited = time.perf_counter() - step_began
        predicted, wanted = predict(model, batch, device)
        loss = nn.functional.mse_loss(predicted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item()
        took = time.perf_counter() - step_began
        timings.append((epoch, step, waited, took, getattr(device, "busy_s", 0.0)))
        if step % args.log_every == 0:
            rate = args.batch_size / took
            print(f"epoch {epoch} step {step}/{len(loader)}: loss {shown:.3f}, {rate:.0f} events/s", flush=True)
        if args.steps and len(timings) >= args.steps:
            break
        step_began = time.perf_counter()


@torch.no_grad()
def validate(loader, model, device, steps):
    model.eval()
    losses = []
    for step, batch in enumerate(loader):
        if step == steps:
            break
        losses.append(nn.functional.mse_loss(*predict(model, batch, device)).item())
    return float(np.mean(losses))


def report(timings, device, wall_s, args):
    steady = [row for row in timings if row[1] >= WARMUP_STEPS] or timings
    wait_s = float(np.mean([row[2] for row in steady]))
    step_s = float(np.mean([row[3] for row in steady]))
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
        f"{1 / step_s:.2f} it/s, {args.batch_size / step_s:.0f} events/s {'shuffled' if args.shuffle else 'in order'}: "
        f"{step_s * 1e3:.0f} ms a step, of which {wait_s * 1e3:.0f} ms ({wait_s / step_s:.0%}) loading the batch"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def parse(steps=6, workers=0):
    parser = Parser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with meta.parquet and pulses/")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where checkpoint and metrics go")
    parser.add_argument("--device", choices=["sim", "cpu", "cuda"], default="sim")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=steps, help="stop after so many steps in all (0: never)")
    parser.add_argument("--val-steps", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=1)
    args = parser.parse_args()
    least = {"epochs": 1, "steps": 0, "val_steps": 0, "batch_size": 1, "workers": 0, "prefetch": 1, "log_every": 1}
    for name, low in least.items():
        if getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected {low} or more")
    if not (args.data / "meta.parquet").exists():
        parser.error(f"{args.data} holds no meta.parquet; make it with: make_data.py --out {args.data}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and this machine has none; expected sim or cpu")
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    dataset = EventDataset(args.data)
    split = int(len(dataset) * 0.9)
    options = {"num_workers": args.workers, "prefetch_factor": args.prefetch if args.workers else None}
    train_set, val_set = Subset(dataset, range(split)), Subset(dataset, range(split, len(dataset)))
    train_loader = DataLoader(train_set, args.batch_size, shuffle=args.shuffle, collate_fn=collate, **options)
    val_loader = DataLoader(val_set, args.batch_size, collate_fn=collate, **options)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    device, model = place(args, model, optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
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

"""Train a 3-D segmentation network on patches of scanned volumes."""

import argparse
import io
import json
import sys
import time
import urllib.request
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import tifffile
except ImportError:
    sys.exit("train: tifffile is not installed; run: pip install 'stoker[volumes]'")

WARMUP_STEPS = 2
NOTE_PATCH_VOXELS = 72 * 136 * 136


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"train: {message}. See: train.py --help\n")


def read_tiff(root, name):
    """A whole stack, from a folder or through the remote file system."""
    if not root.startswith("http://"):
        return tifffile.imread(Path(root) / name)
    with urllib.request.urlopen(f"{root}/{name}") as answer:  # noqa: S310
        return tifffile.imread(io.BytesIO(answer.read()))


class VolumeCache:
    """The volumes used last, as float32."""

    def __init__(self, root, size):
        self.root, self.size = root, size
        self.volumes = OrderedDict()

    def get(self, name):
        if name in self.volumes:
            self.volumes.move_to_end(name)
        else:
            image = read_tiff(self.root, f"images/{name}").astype(np.float32)
            label = read_tiff(self.root, f"labels/{name}").astype(np.float32)
            self.volumes[name] = image, label
            while len(self.volumes) > self.size:
                self.volumes.popitem(last=False)
        return self.volumes[name]


def clip(volume):
    low, high = np.percentile(volume, [0.5, 99.5])
    return np.clip(volume, low, high)


def median_filter(volume, slab=16):
    """Median over the 27 neighbours, a slab at a time to bound the memory."""
    padded = np.pad(volume, 1, mode="edge")
    slabs = [
        np.median(sliding_window_view(padded[z : z + slab + 2], (3, 3, 3)), axis=(3, 4, 5))
        for z in range(0, len(volume), slab)
    ]
    return np.concatenate(slabs)


def zscore(patch):
    return (patch - patch.mean()) / (patch.std() + 1e-6)


class PatchDataset(Dataset):
    """One random patch of a random volume for each step of an epoch."""

    def __init__(self, root, names, patch, length, cache_size, seed):
        self.names, self.patch, self.length, self.seed = names, patch, length, seed
        self.cache = VolumeCache(root, cache_size)

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        random = np.random.default_rng([self.seed, idx])
        image, label = self.cache.get(self.names[random.integers(len(self.names))])
        image = median_filter(clip(image))
        corner = [random.integers(0, full - part + 1) for full, part in zip(image.shape, self.patch, strict=True)]
        crop = tuple(slice(low, low + part) for low, part in zip(corner, self.patch, strict=True))
        return self.augment(zscore(image[crop]), label[crop], random)

    def augment(self, image, label, random):
        for axis in range(3):
            if random.random() < 0.5:
                image, label = np.flip(image, axis), np.flip(label, axis)
        image = image * random.uniform(0.9, 1.1) + random.normal(0, 0.05, image.shape)
        return torch.tensor(image, dtype=torch.float32)[None], torch.tensor(label.copy())[None]


class Model(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU(), nn.Conv3d(width, 1, 1))

    def forward(self, x):
        return self.body(x)


def place(args, model, optimizer):
    """Put the model on the device; the simulated one takes the note's 1.5 s for a patch of 1.3 M voxels on an A100."""
    if args.device != "sim":
        return torch.device(args.device), model.to(args.device)
    from stoker import sim

    size = float(np.prod(args.patch)) / NOTE_PATCH_VOXELS  # less voxels, less work
    device = sim.Device(
        forward=sim.linear(0, 0.5 * size),
        backward=sim.linear(0, 0.9 * size),
        optimizer=0.1 * size,
        memory_bytes=80 << 30,
        fixed_bytes=7 << 30,
        sample_bytes=70 << 30,  # 77 GB with one patch, as the note saw: a second one does not fit
    )
    return device, device.place(model, optimizer)


def remote(args):
    """The remote file system that the note's volumes lie on, where everything is simulated; else the folder itself."""
    if args.device != "sim":
        return nullcontext()
    from stoker import sim

    rate = args.remote_mb_per_s * 1e6
    return sim.Store(args.data, latency_s=args.remote_latency_ms / 1e3, connection_bytes_per_s=rate)


def train_epoch(loader, model, optimizer, device, epoch, args, timings):
    model.train()
    use_amp = args.config.get("use_amp", False)
    step_began = time.perf_counter()
    for step, (image, label) in enumerate(loader):
        waited = time.perf_counter() - step_began
        image, label = image.to(device), label.to(device)
        with torch.autocast("cuda", torch.bfloat16) if use_amp else nullcontext():
            loss = nn.functional.binary_cross_entropy_with_logits(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item()
        took = time.perf_counter() - step_began
        timings.append((epoch, step, waited, took, getattr(device, "busy_s", 0.0)))
        if step % args.log_every == 0:
            print(f"Train step {step}/{len(loader)}: loss {shown:.3f}, {took:.2f} s, {1 / took:.2f} it/s", flush=True)
        step_began = time.perf_counter()


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    losses = []
    for image, label in loader:
        image, label = image.to(device), label.to(device)
        losses.append(nn.functional.binary_cross_entropy_with_logits(model(image), label).item())
    return float(np.mean(losses))


def report(timings, device, wall_s, args):
    steady = [row for row in timings if row[1] >= WARMUP_STEPS] or timings
    wait_s = float(np.mean([row[2] for row in steady]))
    step_s = float(np.mean([row[3] for row in steady]))
    metrics = {
        "steps": len(timings),
        "wait_s": wait_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "samples_per_s": args.batch_size / step_s,
        "first_batch_s": [row[2] for row in timings if row[1] == 0],
        "wall_s": wall_s,
        "device_busy_s": getattr(device, "busy_s", None),
        "device_step_s": float(np.median(np.diff([row[4] for row in timings]))) if len(timings) > 1 else None,
        "device_memory_peak_bytes": getattr(device, "memory_peak_bytes", None),
    }
    print(
        f"{1 / step_s:.2f} it/s: {step_s * 1e3:.0f} ms a step, of which {wait_s * 1e3:.0f} ms ({wait_s / step_s:.0%}) "
        f"waiting for data; 4000 such steps are {step_s * 4000 / 3600:.2f} h"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def parse():
    parser = Parser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with images/, labels/, dataset.json")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where checkpoint and metrics go")
    parser.add_argument("--device", choices=["sim", "cpu", "cuda"], default="sim")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40, help="steps in an epoch (the note: 4000)")
    parser.add_argument("--val-steps", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument(
        "--cache-volumes", type=int, help="volumes kept by a worker (default: 50 of 806, in proportion)"
    )
    parser.add_argument("--remote-latency-ms", type=float, default=20.0, help="of the remote file system, with sim")
    parser.add_argument("--remote-mb-per-s", type=float, default=100.0, help="of the remote file system, with sim")
    parser.add_argument("--mixed-precision", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10)
    args = parser.parse_args()
    least = {"epochs": 1, "steps": 1, "val_steps": 0, "batch_size": 1, "workers": 0, "prefetch": 1, "log_every": 1}
    for name, low in least.items():
        if getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected {low} or more")
    if args.remote_mb_per_s <= 0 or args.remote_latency_ms < 0:
        parser.error("--remote-mb-per-s must be above 0 and --remote-latency-ms 0 or more")
    if not (args.data / "dataset.json").exists():
        parser.error(f"{args.data} holds no dataset.json; make it with: make_data.py --out {args.data}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and this machine has none; expected sim or cpu")
    args.patch = json.loads((args.data / "dataset.json").read_text())["patch"]
    args.names = sorted(path.name for path in (args.data / "images").glob("*.tif"))
    if args.cache_volumes is None:
        args.cache_volumes = max(1, len(args.names) * 50 // 806)
    args.config = {"mixed_precision": args.mixed_precision, "patch_size": args.patch}
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    options = {
        "num_workers": args.workers,
        "prefetch_factor": args.prefetch if args.workers else None,
        "multiprocessing_context": "spawn" if args.workers else None,
    }
    with remote(args) as store:
        root = store.url if store else str(args.data)
        split = len(args.names) * 9 // 10

        def loader(names, steps, seed):
            dataset = PatchDataset(root, names, args.patch, steps * args.batch_size, args.cache_volumes, seed)
            return DataLoader(dataset, args.batch_size, **options)

        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
        device, model = place(args, model, optimizer)
        timings = []
        began = time.perf_counter()
        for epoch in range(args.epochs):
            train_loader = loader(args.names[:split], args.steps, args.seed + epoch)
            train_epoch(train_loader, model, optimizer, device, epoch, args, timings)
            if args.val_steps:
                val_loss = validate(loader(args.names[split:], args.val_steps, args.seed), model, device)
                print(f"epoch {epoch}: validation loss {val_loss:.3f}")
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "checkpoint.pt")
        report(timings, device, time.perf_counter() - began, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")

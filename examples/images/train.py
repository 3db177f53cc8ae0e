"""Train an image classifier on JPEGs that lie in a bucket, through a file-system mount of that bucket."""

import argparse
import io
import json
import os
import sys
import tempfile
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    from PIL import Image
except ImportError:
    sys.exit("train: pillow is not installed; run: pip install 'stoker[images]'")

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"train: {message}. See: train.py --help\n")


class Mount:
    """Stands for a file-system mount of a bucket: one request for each file, and a bounded cache on the local disk.

    Every worker fills its part of the cache while it reads, until that part is full.
    """

    def __init__(self, url, cache, room_bytes):
        self.url, self.cache, self.room_bytes = url, Path(cache), room_bytes

    def read(self, key):
        kept = self.cache / key.replace("/", "_")
        try:
            return kept.read_bytes()
        except FileNotFoundError:
            body = self.get(key)
        if len(body) <= self.room_bytes:
            self.room_bytes -= len(body)
            part = kept.with_suffix(f".{os.getpid()}")  # another worker must not see half a file
            part.write_bytes(body)
            part.rename(kept)
        return body

    def get(self, key):
        with urllib.request.urlopen(f"{self.url}/{quote(key)}", timeout=60) as answer:  # noqa: S310
            return answer.read()


class Folder:
    """The same files on the local disk."""

    def __init__(self, root):
        self.root = root

    def read(self, key):
        return (self.root / key).read_bytes()


class ImageDataset(Dataset):
    def __init__(self, files, keys, train):
        self.files, self.keys, self.train = files, keys, train
        self.classes = sorted({key.split("/")[1] for key in keys})

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, idx):
        key = self.keys[idx]
        image = Image.open(io.BytesIO(self.files.read(key))).convert("RGB")
        if self.train:
            side = int(min(image.size) * float(torch.empty(1).uniform_(0.6, 1)))
            left = int(torch.randint(0, image.width - side + 1, (1,)))
            top = int(torch.randint(0, image.height - side + 1, (1,)))
            image = image.crop((left, top, left + side, top + side))
            if torch.rand(1) < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - MEAN) / STD, self.classes.index(key.split("/")[1])


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3 * 7 * 7, classes))

    def forward(self, x):
        return self.body(x)


def place(args, model, optimizer):
    """Put the model on the device; the simulated one trains 900 images a second, as a ResNet-50 may on an A10G."""
    if args.device != "sim":
        return torch.device(args.device), model.to(args.device, memory_format=torch.channels_last)
    from stoker import sim

    device = sim.Device(
        forward=sim.linear(0, 0.33 / 900),
        backward=sim.linear(0, 0.62 / 900),
        optimizer=sim.linear(0, 0.05 / 900),
        memory_bytes=23 << 30,
        fixed_bytes=2 << 30,
        sample_bytes=43 << 20,  # 12.9 GB with a batch of 256, as the note saw
    )
    return device, device.place(model, optimizer)


def remote(args):
    """The bucket, where everything is simulated; otherwise the folder is read as it is."""
    if args.device != "sim":
        return nullcontext()
    from stoker import sim

    return sim.Store(args.data, latency_s=args.latency_ms / 1e3, jitter_s=args.latency_ms / 3e3)


def train_epoch(loader, model, optimizer, device, epoch, args):
    model.train()
    autocast = torch.autocast(args.device, torch.bfloat16) if args.device == "cuda" else nullcontext()
    epoch_began = step_began = time.perf_counter()
    waited, busy_before_s = 0.0, getattr(device, "busy_s", 0.0)
    for step, (image, label) in enumerate(loader):
        waited += time.perf_counter() - step_began
        image = image.to(device, non_blocking=True)
        label = label.to(device, non_blocking=True)
        with autocast:
            loss = nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            rate = (step + 1) / (time.perf_counter() - epoch_began)
            print(f"epoch {epoch} step {step}/{len(loader)}: loss {loss.item():.3f}, {rate:.2f} it/s", flush=True)
        step_began = time.perf_counter()
    took = time.perf_counter() - epoch_began
    print(
        f"epoch {epoch}: {len(loader) / took:.2f} it/s ({took:.1f} s), {waited / took:.0%} of it waiting for data",
        flush=True,
    )
    busy_s = getattr(device, "busy_s", 0.0) - busy_before_s
    rates = {"it_per_s": len(loader) / took, "epoch_s": took, "wait_share": waited / took}
    return {"epoch": epoch, **rates, "device_step_s": busy_s / len(loader)}


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    right = sum(int((model(image.to(device)).argmax(1) == label.to(device)).sum()) for image, label in loader)
    return right / len(loader.dataset)


def parse():
    parser = Parser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with train/ and val/")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where checkpoint and metrics go")
    parser.add_argument("--device", choices=["sim", "cpu", "cuda"], default="sim")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=50.0, help="of one request to the bucket, with sim")
    parser.add_argument(
        "--cache-share", type=float, default=0.9, help="part of the data that the mount's cache can hold"
    )
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=5)
    args = parser.parse_args()
    for name, low in {
        "epochs": 1,
        "batch_size": 1,
        "workers": 0,
        "prefetch": 1,
        "log_every": 1,
        "latency_ms": 0,
    }.items():
        if getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected {low} or more")
    if not 0 <= args.cache_share <= 1:
        parser.error(f"--cache-share is {args.cache_share}; expected a share between 0 and 1")
    args.keys = {}
    for split in ("train", "val"):
        args.keys[split] = [str(path.relative_to(args.data)) for path in sorted((args.data / split).glob("*/*.jpg"))]
    if not args.keys["train"]:
        parser.error(f"{args.data} holds no train/*/*.jpg; make them with: make_data.py --out {args.data}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda and this machine has none; expected sim or cpu")
    return args


def main():
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)

    def files(split):
        if not store:
            return Folder(args.data)
        split_bytes = sum((args.data / key).stat().st_size for key in args.keys[split])
        return Mount(store.url, cache, args.cache_share * split_bytes / max(1, args.workers))

    # Like a mount, start with an empty cache and leave none behind.
    with (
        remote(args) as store,
        tempfile.TemporaryDirectory(prefix="mount-cache-", dir=args.out, ignore_cleanup_errors=True) as cache,
    ):
        options = {
            "num_workers": args.workers,
            "prefetch_factor": args.prefetch if args.workers else None,
            "persistent_workers": args.workers > 0,
        }
        train_set = ImageDataset(files("train"), args.keys["train"], train=True)
        train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, **options)
        val_loader = DataLoader(ImageDataset(files("val"), args.keys["val"], train=False), args.batch_size, **options)

        model = Model(len(train_set.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
        device, model = place(args, model, optimizer)
        epochs = []
        for epoch in range(args.epochs):
            epochs.append(train_epoch(train_loader, model, optimizer, device, epoch, args))
            print(f"epoch {epoch}: val/acc1 {validate(val_loader, model, device):.1%}", flush=True)
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "checkpoint.pt")
        metrics = {
            "epochs": epochs,
            "cold_over_warm": [epochs[0]["epoch_s"] / later["epoch_s"] for later in epochs[1:]],
            "step_s": epochs[-1]["epoch_s"] / len(train_loader),
            "wait_share": epochs[-1]["wait_share"],
            "samples_per_s": epochs[-1]["it_per_s"] * args.batch_size,
            "device_step_s": epochs[-1]["device_step_s"],
            "requests": store.stats()["reads"] if store else None,
            "device_busy_s": getattr(device, "busy_s", None),
        }
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")

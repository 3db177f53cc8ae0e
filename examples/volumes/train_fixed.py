"""The same training: volumes staged and filtered once, several patches cut from each read, by stoker.Loader."""

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from train import WARMUP_STEPS, Model, clip, median_filter, parse, place, remote

import stoker


def stage(root, names, folder):
    """Copy what is not there yet from the remote file system, several files at a time."""

    def fetch(name):
        target = folder / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".partial")
            with urllib.request.urlopen(f"{root}/{name}") as answer:  # noqa: S310
                partial.write_bytes(answer.read())
            partial.replace(target)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, [f"{kind}/{name}" for kind in ("images", "labels") for name in names]))
    return folder


def prepare(volume):
    """What the slow script does to a whole volume for every patch."""
    return median_filter(clip(volume.astype(np.float32))).astype(np.float32)


def augment(batch, seed):
    """Z-score and augment whole batches; each patch by a random that follows from where it lies."""
    images = batch["patch"]
    images -= images.mean(dim=(1, 2, 3), keepdim=True)
    images /= images.std(dim=(1, 2, 3), keepdim=True) + 1e-6
    labels = batch["label"].float()
    for i, place_of in enumerate(torch.column_stack([batch["volume"], batch["corner"]]).tolist()):
        random = np.random.default_rng([seed, *place_of])
        axes = [axis for axis in range(3) if random.random() < 0.5]
        if axes:
            images[i], labels[i] = images[i].flip(axes), labels[i].flip(axes)
        images[i] *= random.uniform(0.9, 1.1)
        images[i] += torch.from_numpy(random.standard_normal(images[i].shape, dtype=np.float32)) * 0.05
    return images[:, None], labels[:, None]


def train_epoch(loader, model, optimizer, device, epoch, args, timings):
    model.train()
    step_began = time.perf_counter()
    for step, (image, label) in enumerate(loader):
        waited = time.perf_counter() - step_began
        image, label = image.to(device, non_blocking=True), label.to(device, non_blocking=True)
        loss = nn.functional.binary_cross_entropy_with_logits(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            print(f"Train step {step}/{args.steps}: loss {loss.item():.3f}", flush=True)
        timings.append((epoch, step, waited, time.perf_counter(), getattr(device, "busy_s", 0.0)))
        if step + 1 == args.steps:
            break
        step_began = time.perf_counter()
    if getattr(device, "type", None) == "sim":
        device.synchronize()
    timings[-1] = (*timings[-1][:3], time.perf_counter(), timings[-1][4])


@torch.no_grad()
def validate(loader, model, device, steps):
    model.eval()
    losses = []
    for _, (image, label) in zip(range(steps), loader, strict=False):
        losses.append(nn.functional.binary_cross_entropy_with_logits(model(image.to(device)), label.to(device)))
    return torch.stack(losses).mean().item()


def report(timings, device, wall_s, once_s, loader, args):
    """Steps are queued ahead of the device, so a step's time is that of many steps, divided."""
    steady = [[row for row in timings if row[0] == epoch] for epoch in range(args.epochs)]
    steady = [rows[WARMUP_STEPS:] if len(rows) > WARMUP_STEPS + 1 else rows for rows in steady if len(rows) > 1]
    step_s = float(sum(rows[-1][3] - rows[0][3] for rows in steady) / sum(len(rows) - 1 for rows in steady))
    wait_s = float(np.mean([row[2] for rows in steady for row in rows[1:]]))
    metrics = {
        "steps": len(timings),
        "wait_s": wait_s,
        "step_s": step_s,
        "wait_share": wait_s / step_s,
        "samples_per_s": args.batch_size / step_s,
        "first_batch_s": [row[2] for row in timings if row[1] == 0],
        "wall_s": wall_s,
        "once_s": once_s,
        "amplification": loader.stats().amplification,
        "device_busy_s": getattr(device, "busy_s", None),
        "device_step_s": float(np.median(np.diff([row[4] for row in timings]))) if len(timings) > 1 else None,
        "device_memory_peak_bytes": getattr(device, "memory_peak_bytes", None),
    }
    print(
        f"{1 / step_s:.2f} it/s: {step_s * 1e3:.0f} ms a step, of which {wait_s * 1e3:.1f} ms ({wait_s / step_s:.0%}) "
        f"waiting for data; {metrics['amplification']:.2f} voxels read for each one used; once: {once_s:.1f} s"
    )
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


def main():
    args = parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with remote(args) as store:
        folder = stage(store.url, args.names, args.out / "staged") if store else args.data
    split = len(args.names) * 9 // 10

    def loader(names, steps):
        patches = max(5, -(-steps * args.batch_size // len(names)))  # as in the note: 4,000 steps over 725 volumes
        images, labels = ([str(folder / kind / name) for name in names] for kind in ("images", "labels"))
        source = stoker.open(images, patch=args.patch, labels=labels, patches=patches, cache=args.out / "cache")
        source = source.cached(prepare, key="clipped at 0.5 and 99.5 %, median of 27")
        return stoker.Loader(
            source, args.batch_size, shuffle=True, seed=args.seed, map=lambda batch: augment(batch, args.seed)
        )

    train_loader = loader(args.names[:split], args.steps)
    val_loader = loader(args.names[split:], max(1, args.val_steps))
    once_s = time.perf_counter() - began
    print(f"staged and filtered once, in {once_s:.1f} s (nothing, the next time)")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    device, model = place(args, model, optimizer)
    timings = []
    began = time.perf_counter()
    for epoch in range(args.epochs):
        train_epoch(train_loader, model, optimizer, device, epoch, args, timings)
        if args.val_steps:
            print(f"epoch {epoch}: validation loss {validate(val_loader, model, device, args.val_steps):.3f}")
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "checkpoint.pt")
    report(timings, device, time.perf_counter() - began, once_s, train_loader, args)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")

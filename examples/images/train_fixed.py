"""The same training, fed by stoker.Loader: many requests in flight, and a verified cache of photos made smaller."""

import json
import sys
import tempfile
import time
from contextlib import nullcontext

import torch
from torch import nn
from train import MEAN, STD, Model, parse, place, remote

import stoker


class Normalised(nn.Module):
    """Pixels travel as bytes, and are widened and normalised on the device."""

    def __init__(self, classes):
        super().__init__()
        self.model = Model(classes)
        self.register_buffer("mean", MEAN * 255)
        self.register_buffer("std", STD * 255)

    def forward(self, image):
        return self.model(image.float().sub_(self.mean).div_(self.std))


def open_split(args, store, cache, split):
    """The bucket where everything is simulated, else the folder; crops and mirrors only for training."""
    how = {"size": (224, 224), "crop": "random" if split == "train" else None, "flip": split == "train"}
    if store is None:
        return stoker.open(args.data / split, **how)
    options = {"endpoint": store.endpoint, "region": "any", "skip_signature": "true"}
    return stoker.open(f"s3://{store.bucket}/{split}/", cache=cache, cache_side=256, store_options=options, **how)


def train_epoch(loader, model, optimizer, device, epoch, args):
    model.train()
    autocast = torch.autocast(args.device, torch.bfloat16) if args.device == "cuda" else nullcontext()
    epoch_began = step_began = time.perf_counter()
    waited, busy_before_s = 0.0, getattr(device, "busy_s", 0.0)
    for step, batch in enumerate(loader):
        waited += time.perf_counter() - step_began
        image = batch["image"].to(device, non_blocking=True)
        label = batch["label"].to(device, non_blocking=True)
        with autocast:
            loss = nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            rate = (step + 1) / (time.perf_counter() - epoch_began)
            print(f"epoch {epoch} step {step}/{len(loader)}: loss {loss.item():.3f}, {rate:.2f} it/s", flush=True)
        step_began = time.perf_counter()
    synchronize(device)
    took = time.perf_counter() - epoch_began
    print(
        f"epoch {epoch}: {len(loader) / took:.2f} it/s ({took:.1f} s), {waited / took:.0%} of it waiting for data",
        flush=True,
    )
    busy_s = getattr(device, "busy_s", 0.0) - busy_before_s
    rates = {"it_per_s": len(loader) / took, "epoch_s": took, "wait_share": waited / took}
    return {"epoch": epoch, **rates, "device_step_s": busy_s / len(loader), "ceiling_share": busy_s / took}


def synchronize(device):
    if getattr(device, "type", None) == "sim":
        device.synchronize()
    elif str(device) == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    right = seen = 0
    for batch in loader:
        right += int((model(batch["image"].to(device)).argmax(1) == batch["label"].to(device)).sum())
        seen += len(batch["label"])
    return right / seen


def main():
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    # A training keeps its cache; here it starts empty each time, so that epoch 0 shows the cold store.
    with (
        remote(args) as store,
        tempfile.TemporaryDirectory(prefix="cache-", dir=args.out, ignore_cleanup_errors=True) as cache,
    ):
        data = {split: open_split(args, store, cache, split) for split in ("train", "val")}
        with (
            stoker.Loader(data["train"], args.batch_size, shuffle=True, drop_last=True, seed=args.seed) as train_loader,
            stoker.Loader(data["val"], args.batch_size) as val_loader,
        ):
            model = Normalised(len(data["train"].classes))
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
                "ceiling_share": epochs[-1]["ceiling_share"],
                "requests": store.stats()["reads"] if store else None,
                "device_busy_s": getattr(device, "busy_s", None),
            }
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train: stopped")

"""Chest X-ray findings on the (simulated) accelerator; its matrix units are fast in bfloat16, as on any recent card."""

import argparse
import contextlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim

FINDINGS = ["effusion", "nodule", "pneumonia", "cardiomegaly", "edema"]


class Card:
    """Seconds for a batch, in the precision that the forward's matmuls run in (the backward follows it)."""

    def __init__(self, fp32_per_sample, bf16_per_sample):
        self.per_sample = {False: fp32_per_sample, True: bf16_per_sample}

    def forward(self, batch_size):
        self.half = torch.is_autocast_enabled("cpu")
        return 1e-3 + batch_size * self.per_sample[self.half]

    def backward(self, batch_size):
        return 1e-3 + 2 * batch_size * self.per_sample[self.half]


class XRays(Dataset):
    def __init__(self, count):
        self.images = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8)
        self.labels = (torch.rand(count, len(FINDINGS)) < 0.2).float()

    def __len__(self):
        return len(self.images)

    def __getitems__(self, rows):
        return self.images[rows].float() / 255, self.labels[rows]


class Patches(nn.Module):
    """The stand-in for the real backbone: patches, a linear embedding, a pooled head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(64, 24)
        self.mix = nn.Linear(24, 24)
        self.head = nn.Linear(24, len(FINDINGS))

    def forward(self, x):
        x = x.unfold(2, 8, 8).unfold(3, 8, 8).reshape(len(x), 16, 64)
        x = nn.functional.gelu(self.embed(x))
        return self.head(nn.functional.gelu(self.mix(x)).mean(1))


def main(args):
    torch.manual_seed(0)
    train = DataLoader(XRays(2048), args.batch_size, shuffle=True, collate_fn=lambda b: b)
    val = DataLoader(XRays(128), 64, collate_fn=lambda b: b)
    model = Patches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    card = Card(fp32_per_sample=0.25e-3, bf16_per_sample=0.07e-3)
    device = sim.Device(forward=card.forward, backward=card.backward, optimizer=2e-3)
    model = device.place(model, optimizer)
    precision = (lambda: torch.autocast("cpu", torch.bfloat16)) if args.fixed else contextlib.nullcontext
    began, step = time.time(), 0
    for epoch in range(args.epochs):
        model.train()
        t, total = time.time(), torch.zeros((), device=device)
        for images, labels in train:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with precision():
                loss = nn.functional.binary_cross_entropy_with_logits(model(images).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
        line = (
            f"epoch {epoch:3d} loss {total.item() / len(train):.4f} {(time.time() - t) / len(train) * 1e3:.1f} ms/step"
        )
        if epoch % 10 == 0:
            with torch.no_grad(), precision():
                hits = [((model(x.to(device)) > 0) == y.to(device)).float().mean() for x, y in val]
            line += f" val acc {sum(h.item() for h in hits) / len(hits):.3f}"
        print(line, flush=True)
        if time.time() - began > args.max_seconds:
            break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--max-seconds", type=float, default=80)
    parser.add_argument("--fixed", action="store_true", help="bfloat16 autocast")
    main(parser.parse_args())

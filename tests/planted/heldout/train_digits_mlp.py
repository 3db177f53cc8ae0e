"""MLP on flattened glyphs; keeps a run directory with scalars, weight statistics and a curve."""

import argparse
import csv
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, TensorDataset, random_split

config = {
    "glyphs": 57_320,
    "val": 1_000,
    "pixels": 256,
    "hidden": 384,
    "classes": 10,
    "batch_size": 256,
    "epochs": 10,
    "lr": 1e-3,
    "report_every": 1,
    "bins": 64,
    "seed": 21,
}


class RunDir:
    def __init__(self, path, bins):
        self.path, self.bins = path, bins
        self.csv_file = open(os.path.join(path, "scalars.csv"), "w", newline="")
        self.writer = csv.writer(self.csv_file)
        self.writer.writerow(["step", "loss", "acc", "lr", "grad_norm"])
        self.hist_file = open(os.path.join(path, "weights.jsonl"), "w")
        self.curve = []

    def scalars(self, step, loss, acc, lr, grad_norm):
        self.writer.writerow([step, f"{loss:.6f}", f"{acc:.4f}", f"{lr:.3e}", f"{grad_norm:.4f}"])
        self.csv_file.flush()
        self.curve.append(loss)

    def histograms(self, step, model):
        record = {"step": step}
        for name, p in model.named_parameters():
            for kind, tensor in (("weight", p.detach()), ("grad", p.grad)):
                values = tensor.numpy().ravel()
                counts, edges = np.histogram(values, bins=self.bins)
                record[f"{name}/{kind}"] = {
                    "counts": counts.tolist(),
                    "edges": [round(float(e), 6) for e in edges],
                    "mean": float(values.mean()),
                    "std": float(values.std()),
                }
        self.hist_file.write(json.dumps(record) + "\n")
        self.hist_file.flush()

    def plot(self, width=640, height=360, last=500):
        ys = self.curve[-last:]
        img = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(img)
        lo, hi = min(ys), max(ys)
        span = (hi - lo) or 1.0
        pts = [
            (20 + (width - 40) * i / max(len(ys) - 1, 1), height - 20 - (height - 40) * (y - lo) / span)
            for i, y in enumerate(ys)
        ]
        draw.rectangle([20, 20, width - 20, height - 20], outline="black")
        if len(pts) > 1:
            draw.line(pts, fill=(30, 90, 200), width=2)
        draw.text((24, 4), f"loss {ys[-1]:.4f}", fill="black")
        img.save(os.path.join(self.path, "loss.png"))

    def close(self):
        self.csv_file.close()
        self.hist_file.close()


def make_glyphs(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    templates = torch.randn(cfg["classes"], cfg["pixels"], generator=g)
    y = torch.randint(cfg["classes"], (cfg["glyphs"],), generator=g)
    x = 0.35 * templates[y] + torch.randn(cfg["glyphs"], cfg["pixels"], generator=g)
    return TensorDataset(x, y)


def build_model(cfg):
    return nn.Sequential(
        nn.Linear(cfg["pixels"], cfg["hidden"]),
        nn.ReLU(),
        nn.Linear(cfg["hidden"], cfg["hidden"]),
        nn.ReLU(),
        nn.Linear(cfg["hidden"], cfg["classes"]),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return hits / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    cfg = dict(config)
    if args.fixed:
        cfg["report_every"] = 100
    torch.manual_seed(cfg["seed"])

    train_set, val_set = random_split(make_glyphs(cfg), [cfg["glyphs"] - cfg["val"], cfg["val"]])
    train_loader = DataLoader(train_set, batch_size=cfg["batch_size"], shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=500)

    model = build_model(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

    with tempfile.TemporaryDirectory() as path:
        run = RunDir(path, cfg["bins"])
        step, start = 0, time.time()
        for epoch in range(cfg["epochs"]):
            for x, y in train_loader:
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                step += 1
                if step % cfg["report_every"] == 0:
                    acc = (logits.argmax(1) == y).float().mean().item()
                    run.scalars(step, loss.item(), acc, scheduler.get_last_lr()[0], norm.item())
                    run.histograms(step, model)
                    run.plot()
            scheduler.step()
            print(f"epoch {epoch}: loss {loss.item():.4f} val acc {evaluate(model, val_loader):.3f}", flush=True)
        elapsed = time.time() - start
        run.close()
        print(f"{step} steps in {elapsed:.1f} s")


if __name__ == "__main__":
    main()

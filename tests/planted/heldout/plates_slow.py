"""Number plate classifier: photographs in two zip archives (day / night)."""

import argparse, io, os, random, tempfile, time, zipfile
import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from PIL import Image

W, H = 1280, 960


def make_zip(path, n, seed):
    if os.path.exists(path):
        return
    rng = np.random.default_rng(seed)
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_STORED) as z:
        for i in range(n):
            small = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            im = Image.fromarray(small).resize((W, H), Image.BICUBIC)
            a = np.asarray(im).astype(np.int16) + rng.integers(-12, 12, (H, W, 1))
            b = io.BytesIO()
            Image.fromarray(a.clip(0, 255).astype(np.uint8)).save(b, "JPEG", quality=80)
            z.writestr(f"{i:05d}_{i % 10}.jpg", b.getvalue())
    os.replace(path + ".part", path)


class ZipImages(Dataset):
    def __init__(self, path, train=True):
        self.path, self.train = path, train
        with zipfile.ZipFile(path) as z:
            self.names = np.array(z.namelist())
        self._z = None

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        if self._z is None:
            self._z = zipfile.ZipFile(self.path)
        name = str(self.names[i])
        img = Image.open(io.BytesIO(self._z.read(name))).convert("RGB")
        s = random.uniform(0.7, 1.0)
        w, h = int(img.width * s), int(img.height * s)
        x, y = random.randint(0, img.width - w), random.randint(0, img.height - h)
        img = img.resize((96, 96), Image.BILINEAR, box=(x, y, x + w, y + h))
        t = torch.from_numpy(np.array(img)).permute(2, 0, 1).float().div_(255)
        return t, int(name.split("_")[1][0])


class Trainer:
    def __init__(self, model, loader, lr=1e-3):
        self.model, self.loader = model, loader
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.crit = nn.CrossEntropyLoss()

    def fit(self, epochs):
        for ep in range(epochs):
            t0, tot, n = time.time(), 0.0, 0
            for x, y in self.loader:
                loss = self.training_step(x, y)
                tot += loss.item()
                n += 1
            print(f"epoch {ep} loss {tot / n:.4f} {n / (time.time() - t0):.2f} it/s", flush=True)

    def training_step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        loss = self.crit(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", default=os.path.join(tempfile.gettempdir(), f"plates_{W}"))
    ap.add_argument("--epochs", type=int, default=14)
    a = ap.parse_args()
    os.makedirs(a.data, exist_ok=True)
    make_zip(os.path.join(a.data, "day.zip"), 110, 1)
    make_zip(os.path.join(a.data, "night.zip"), 90, 2)
    torch.manual_seed(0)
    ds = ConcatDataset([ZipImages(os.path.join(a.data, p)) for p in ("day.zip", "night.zip")])
    dl = DataLoader(ds, batch_size=8, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    Trainer(net, dl).fit(a.epochs)


if __name__ == "__main__":
    main()

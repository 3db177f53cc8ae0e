"""Land use of cadastral parcels from aerial JPEGs, random flight angle and light."""

import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path("data_parcel_landuse")


def fly(n=200):
    FOLDER.mkdir(exist_ok=True)
    for i in range(n):
        f = FOLDER / f"parcel{i:04d}.jpg"
        if not f.exists():
            rng = np.random.default_rng(i)
            coarse = Image.fromarray(rng.integers(0, 255, (75, 100, 3), dtype=np.uint8))
            coarse.resize((1000, 750), Image.BILINEAR).save(f, quality=90)
    return sorted(FOLDER.glob("*.jpg"))


class Augment:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def __call__(self, photo):
        r = self.random
        photo = photo.rotate(r.uniform(-25, 25), resample=Image.BILINEAR)
        photo = ImageEnhance.Brightness(photo).enhance(r.uniform(0.7, 1.3))
        photo = ImageEnhance.Color(photo).enhance(r.uniform(0.7, 1.3))
        x, y = r.randint(0, 200), r.randint(0, 150)
        return photo.crop((x, y, x + 800, y + 600)).resize((64, 64), Image.BILINEAR)


class Parcels(Dataset):
    def __init__(self, files, views):
        self.files, self.views, self.augment = files, views, Augment(1)

    def __len__(self):
        return len(self.files) * self.views

    def __getitem__(self, i):
        k = i % len(self.files)
        with Image.open(self.files[k]) as photo:
            view = self.augment(photo.convert("RGB"))
        return torch.from_numpy(np.array(view)).permute(2, 0, 1), k % 6


def model():
    layers, width = [], 3
    for out in (16, 32, 48):
        layers += [nn.Conv2d(width, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 6))


if __name__ == "__main__":
    torch.manual_seed(0)
    dataset = Parcels(fly(), views=3)
    loader = DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=lambda w: dataset.augment.random.seed(w),
    )
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(3):
        began = time.perf_counter()
        seen = right = 0
        for image, use in loader:
            logits = net(image.float().div_(255))
            loss = nn.functional.cross_entropy(logits, use)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right = right + (logits.argmax(1) == use).sum()
            seen += len(use)
        schedule.step()
        print(f"epoch {epoch}: accuracy {float(right) / seen:.3f}")
        print(f"epoch_seconds {time.perf_counter() - began:.3f}", flush=True)

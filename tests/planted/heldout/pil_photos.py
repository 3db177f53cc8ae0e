"""An image folder: large JPEGs, decoded and randomly cropped in workers."""

import random
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device


def make(root, count=160):
    root.mkdir(exist_ok=True)
    for n in range(count):
        path = root / f"{n:04d}.jpg"
        if not path.exists():
            small = np.random.default_rng(n).integers(0, 255, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(small).resize((1500, 1000)).save(path, quality=88)


class Folder(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*.jpg"))

    def __len__(self):
        return len(self.files) * 10

    def __getitem__(self, i):
        with Image.open(self.files[i % len(self.files)]) as image:
            picture = image.convert("RGB")
        left, top = random.randrange(500), random.randrange(300)
        picture = picture.crop((left, top, left + 700, top + 700)).resize((160, 160), Image.BICUBIC)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def main(root):
    make(root)
    loader = DataLoader(Folder(root), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    model = torch.nn.Conv2d(3, 2, 5, stride=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device = Device(forward=0.006, backward=0.012, optimizer=0.002)
    device.place(model, optimizer)
    for step, images in enumerate(image for _ in range(20) for image in loader):
        out = model(images.to(device, non_blocking=True).float() / 255)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, float(loss.detach()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "photos")

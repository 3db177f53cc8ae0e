"""accelerate's loop over photos that are decoded by Pillow; workers were forgotten."""

import io

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, n=20000):
        r = np.random.default_rng(0)
        self.blobs = []
        for k in range(40):
            y, x = np.mgrid[:300, :400]
            img = np.stack([127 + 90 * np.sin(x / (9 + c + k) + y / 31) for c in range(3)], -1) + r.normal(
                0, 9, (300, 400, 3)
            )
            f = io.BytesIO()
            Image.fromarray(img.clip(0, 255).astype(np.uint8)).save(f, "JPEG", quality=90)
            self.blobs.append(f.getvalue())
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = Image.open(io.BytesIO(self.blobs[i % 40])).convert("RGB")
        left, top = int(torch.randint(0, 100, ())), int(torch.randint(0, 60, ()))
        return torch.from_numpy(np.asarray(img.crop((left, top, left + 224, top + 224)).resize((64, 64)))).permute(
            2, 0, 1
        ).float() / 255, i % 5


def main():
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
    net, opt, dl = acc.prepare(net, torch.optim.SGD(net.parameters(), 0.01), DataLoader(Photos(), 32, shuffle=True))
    for e in range(2):
        for x, y in dl:
            with acc.accumulate(net):
                loss = nn.functional.cross_entropy(net(x), y)
                acc.backward(loss)
                opt.step()
                opt.zero_grad()
        acc.print(e, loss.item())


main()

"""Reviews split by a regular expression and looked up word by word, in every epoch anew."""

import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker.sim import Device

WORD = re.compile(r"[a-z]+|[^\sa-z]")


class Reviews(Dataset):
    def __init__(self, n):
        draw = random.Random(0)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
        self.texts = [" ".join(draw.choices(words, k=300)) + "!" for _ in range(n)]
        self.ids = {word: i + 2 for i, word in enumerate(words)}

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        found = WORD.findall(self.texts[i].lower())
        ids = [self.ids.get(word, 1) for word in found][:256]
        return torch.tensor(ids), i % 2


def main():
    loader = DataLoader(Reviews(6000), 64, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    model = nn.Sequential(nn.EmbeddingBag(5002, 32), nn.Linear(32, 2))
    opt = torch.optim.Adam(model.parameters())
    device = Device(forward=0.001, backward=0.002, optimizer=0.001)
    device.place(model, opt)
    for _ in range(12):
        for ids, y in loader:
            loss = nn.functional.cross_entropy(model(ids.to(device, non_blocking=True)), y.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()


if __name__ == "__main__":
    main()

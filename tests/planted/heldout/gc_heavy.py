"""A replay memory of a million small objects, and a collector that walks through all of them again and again."""

import gc
import random

import torch
from torch import nn


class Transition:
    def __init__(self, state, action):
        self.state, self.action, self.info = state, action, {"seen": []}


def main():
    gc.set_threshold(200, 2, 2)
    draw = random.Random(0)
    memory = [Transition([draw.random()] * 8, i % 4) for i in range(300_000)]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    opt = torch.optim.Adam(model.parameters())
    for step in range(1500):
        batch = draw.sample(memory, 64)
        for one in batch:
            one.info["seen"] = [step, [step]]
        x = torch.tensor([one.state for one in batch])
        y = torch.tensor([one.action for one in batch])
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


main()

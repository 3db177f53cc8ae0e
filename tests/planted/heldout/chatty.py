"""Every weight's statistics go to a log file in every step."""

import logging
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset


def main(folder):
    log = logging.getLogger("train")
    log.setLevel(logging.DEBUG)
    handler = logging.FileHandler(folder / "train.log", mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(funcName)s %(lineno)d %(message)s"))
    log.addHandler(handler)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(8192, 32)), batch_size=64, shuffle=True)
    for epoch in range(60):
        for step, (x,) in enumerate(loader):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for name, weight in model.named_parameters():
                for row in weight.detach().reshape(-1, 32).tolist():
                    log.debug("epoch %d step %d %s %s", epoch, step, name, row[:4])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

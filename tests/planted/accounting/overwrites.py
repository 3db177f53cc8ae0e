"""A training that writes over, removes and renames files of its own folder, not by torch.save."""

import json
import shutil
from pathlib import Path

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

light.started()
Path("stale.txt").unlink(missing_ok=True)
shutil.rmtree("old", ignore_errors=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(torch.randn(80, 4), torch.randint(0, 2, (80,))), 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with Path("weights.bin").open("wb") as file:
        torch.save(model.state_dict(), file)
    Path("metrics.json.part").write_text(json.dumps({"epoch": epoch}))
    Path("metrics.json.part").replace("metrics.json")
    with Path("log.txt").open("a") as file:
        file.write("epoch\n")
    Path("new.txt").write_text("mine")
    assert json.loads(Path("metrics.json").read_text()) == {"epoch": epoch}
print("DONE")

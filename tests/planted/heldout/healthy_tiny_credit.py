"""Credit default, a small MLP on a table that fits in memory. Nothing fancy, and nothing wrong with it."""

import argparse
import time

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=120_000)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--seconds", type=float, default=75)
parser.add_argument("--fixed", action="store_true", help="nothing to fix")
args = parser.parse_args()

torch.manual_seed(1)
torch.set_num_threads(1)
table = torch.randn(args.rows, 24)
target = (table[:, 0] + table[:, 1] * table[:, 2] + torch.randn(args.rows) * 0.3 > 0.8).float()
train, held_out = slice(0, args.rows * 19 // 20), slice(args.rows * 19 // 20, None)

net = torch.nn.Sequential(
    torch.nn.Linear(24, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
)
adam = torch.optim.Adam(net.parameters(), lr=2e-3)
x, y = table[train], target[train]
start, epoch = time.time(), 0
while time.time() - start < args.seconds:
    tick = time.time()
    perm = torch.randperm(len(x))
    chunks = perm.split(args.batch)
    for rows in chunks:
        loss = F.binary_cross_entropy_with_logits(net(x[rows]).squeeze(1), y[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    ms = (time.time() - tick) / len(chunks) * 1e3
    if epoch % 10 == 0:
        with torch.no_grad():
            accuracy = ((net(table[held_out]).squeeze(1) > 0) == target[held_out].bool()).float().mean()
        print(f"epoch {epoch} loss {loss:.4f} held-out accuracy {accuracy:.3f} ({ms:.1f} ms per step)", flush=True)
    epoch += 1

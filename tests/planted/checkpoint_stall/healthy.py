"""Train a policy from a replay buffer and keep it restartable."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import sim


class Scale(NamedTuple):
    moments: int
    state: int
    batch: int
    every: int
    device_s: float
    steps: int


SCALES = {"small": Scale(120_000, 128, 64, 600, 0.014, 1000), "large": Scale(100_000, 384, 256, 350, 0.035, 450)}


class Agent:
    def __init__(self, scale: Scale, file: Path) -> None:
        self.scale, self.file = scale, file
        self.states = torch.randn(scale.moments, scale.state)
        self.model = nn.Linear(scale.state, 4)
        self.optimizer = torch.optim.RMSprop(self.model.parameters())
        part = scale.device_s / 10
        self.device = sim.Device(forward=3 * part, backward=6 * part, optimizer=part)
        self.device.place(self.model, self.optimizer)

    def learn(self, states: torch.Tensor) -> torch.Tensor:
        loss = self.model(states.to(self.device, non_blocking=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def keep(self, step: int) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
        torch.save({**state, "states": self.states}, self.file)


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    agent = Agent(scale, root / "agent.pt")
    moments = TensorDataset(agent.states)
    order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(moments), scale.batch, drop_last=True)
    loader = DataLoader(moments, sampler=order, batch_size=None)
    limit = min(args.steps, scale.steps)
    step, began = 0, time.perf_counter()
    for (states,) in itertools.chain.from_iterable(loader for _ in range(args.epochs or 10)):
        loss = agent.learn(states)
        step += 1
        if step % scale.every == 0:
            agent.keep(step)
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= limit:
            break
    agent.device.synchronize()
    print(f"{step} steps in {time.perf_counter() - began:.2f} s")
    agent.file.unlink(missing_ok=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=["small", "large"], default="small")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="stop after this many optimizer steps")
    parser.add_argument("--epochs", type=int, default=None, help="passes over the data; the scale's own by default")
    parser.add_argument("--data", type=Path, default=None, help="where the data goes; a temporary directory by default")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(options, options.data or Path(scratch))

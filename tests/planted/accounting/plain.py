"""A small training whose shape is chosen by its first argument; each is one way in which loops differ."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import light  # type: ignore[import-not-found]  # beside the script
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 30


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = TensorDataset(torch.randn(STEPS * 4, 4), torch.randint(0, 2, (STEPS * 4,)))
        self.loader = DataLoader(self.data, batch_size=4)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def train(self) -> None:
        for x, y in self.loader:
            self.step(x, y)
            time.sleep(0.002)


def plain() -> None:
    Loop().train()


def own_loader() -> None:
    loop = Loop()

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(STEPS):
            time.sleep(0.02)
            yield torch.randn(4, 4), torch.randint(0, 2, (4,))

    for x, y in batches():
        loop.step(x, y)


def own_loader_checked() -> None:
    """Trains on what it draws itself, for ever, and validates with a loader."""
    loop = Loop()
    while True:
        for _ in range(2 * STEPS):
            loop.step(torch.randn(4, 4), torch.randint(0, 2, (4,)))
            time.sleep(0.002)
        with torch.no_grad():
            for x, _ in loop.loader:
                loop.model(x)


def logged_by_hand() -> None:
    """Draws its own batches, and after each step counts what it writes down."""
    loop = Loop()
    for _ in range(4 * STEPS):
        x, y = torch.randn(4, 4), torch.randint(0, 2, (4,))
        loop.step(x, y)
        histogram()


def histogram() -> None:
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        json.dumps({"counts": list(range(64))}, indent=1)


def by_hand() -> None:
    loop = Loop()
    iterator = iter(loop.loader)
    for _ in range(STEPS):
        x, y = next(iterator)
        loop.step(x, y)
        time.sleep(0.002)
    print("all by hand")


def thread() -> None:
    worker = threading.Thread(target=plain)
    worker.start()
    worker.join()


def hard_exit() -> None:
    plain()
    os._exit(0)


def fork() -> None:
    child = os.fork()
    if not child:
        time.sleep(0.2)
        os._exit(0)
    plain()
    os.waitpid(child, 0)


def daemon() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.3)
    plain()


def stubborn() -> None:
    loop = Loop()
    while True:
        try:
            loop.train()
        except BaseException:  # noqa: BLE001
            continue


def forever() -> None:
    loop = Loop()
    while True:
        loop.train()
        print("epoch", flush=True)


def hired() -> None:
    loop = Loop()
    loop.loader = DataLoader(loop.data, batch_size=4, num_workers=2, persistent_workers=True)
    while True:
        loop.train()


def accumulation() -> None:
    loop = Loop()
    for i, (x, y) in enumerate(loop.loader):
        nn.functional.cross_entropy(loop.model(x), y).backward()
        if i % 4 == 3:
            loop.optimizer.step()
            loop.optimizer.zero_grad()


def two_optimizers() -> None:
    loop, other = Loop(), Loop()
    for x, y in loop.loader:
        loop.step(x, y)
        other.step(x, y)


def two_loaders() -> None:
    loop = Loop()
    for (x, y), _ in zip(loop.loader, DataLoader(loop.data, batch_size=4), strict=True):
        loop.step(x, y)


def scaler() -> None:
    loop = Loop()
    grad_scaler = torch.amp.GradScaler("cpu")
    for x, y in loop.loader:
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(loop.model(x), y)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(loop.optimizer)
        grad_scaler.update()


def eval_without_no_grad() -> None:
    loop = Loop()
    for _ in range(2):
        loop.train()
        for x, _y in DataLoader(loop.data, batch_size=8):
            loop.model(x)
            time.sleep(0.01)


def compiled() -> None:
    loop = Loop()
    model = torch.compile(loop.model, backend="eager", fullgraph=True)
    clip = torch.compile(nn.utils.clip_grad_norm_, backend="eager", fullgraph=True)
    for x, y in loop.loader:
        loop.optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        clip(list(loop.model.parameters()), 1.0)
        loop.optimizer.step()


def no_training() -> None:
    print(torch.ones(3).sum().item())


def few_steps() -> None:
    loop = Loop()
    for i, (x, y) in enumerate(loop.loader):
        loop.step(x, y)
        if i == 2:
            break


SHAPES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        plain, own_loader, own_loader_checked, logged_by_hand, by_hand, thread, hard_exit, fork, daemon, stubborn,
        forever, hired, accumulation, two_optimizers, two_loaders, scaler, eval_without_no_grad, compiled,
        no_training, few_steps,
    )
}  # fmt: skip

if __name__ == "__main__":
    light.started(compiles=sys.argv[1] == "compiled")
    SHAPES[sys.argv[1]]()

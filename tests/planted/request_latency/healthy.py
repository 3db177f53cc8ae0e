"""Train on objects of a remote store, one object for each sample, each seen once."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import contextlib
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    objects: int
    values: int
    batch: int
    latency_s: float
    device_s: float
    steps: int


SCALES = {"small": Scale(3200, 1024, 8, 0.025, 0.040, 400), "large": Scale(6400, 8192, 16, 0.030, 0.080, 220)}
IN_FLIGHT = 16


def make_objects(root: Path, scale: Scale) -> None:
    rng = np.random.default_rng(0)
    for i in range(scale.objects):
        path = root / f"{i:05d}"
        if not path.exists():
            path.write_bytes(rng.bytes(scale.values))


@contextlib.contextmanager
def store(root: Path, *options: str) -> Iterator[int]:
    command = [sys.executable, str(Path(__file__).parents[1] / "store.py"), str(root), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()


class Objects(Dataset[torch.Tensor]):
    def __init__(self, port: int, count: int) -> None:
        self.port, self.count = port, count
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{index:05d}")
        body = connection.getresponse().read()
        connection.close()
        return torch.frombuffer(bytearray(body), dtype=torch.uint8)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(IN_FLIGHT)
        return list(self.pool.map(self.__getitem__, indices))


def train(loader: DataLoader[torch.Tensor], scale: Scale, limit: int) -> int:
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.6 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(16, 2)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)
    step = 0
    for body in loader:
        if step >= limit:
            break
        x = body.to(device, non_blocking=True)
        loss = model(x[:, :16].float() / 255).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    device.synchronize()
    return step


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    make_objects(root, scale)
    with store(root, "--latency", str(scale.latency_s)) as port:
        loader = DataLoader(Objects(port, scale.objects), batch_size=scale.batch, shuffle=True, num_workers=2)
        began = time.perf_counter()
        step = train(loader, scale, min(args.steps, scale.steps * (args.epochs or 1)))
        seconds = time.perf_counter() - began
    print(f"{step} steps in {seconds:.2f} s")


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

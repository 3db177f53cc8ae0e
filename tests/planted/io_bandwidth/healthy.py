"""Train on recordings that lie on a shared file server; each is seen once."""

# A script as people write it: no torch.device, to the type checker, is what stands for one here.
# mypy: disable-error-code="call-overload, no-any-return, arg-type"
import argparse
import contextlib
import http.client
import subprocess
import sys
import tempfile
import time
import zlib
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
    recordings: int
    values: int
    batch: int
    rate: float
    device_s: float


SCALES = {"small": Scale(1600, 60_000, 8, 12e6, 0.030), "large": Scale(960, 400_000, 6, 40e6, 0.045)}


def make_recordings(root: Path, scale: Scale) -> None:
    rng = np.random.default_rng(0)
    takes = [
        np.repeat(rng.integers(0, 255, scale.values // 24 + 1, dtype=np.uint8), 24)[: scale.values] for _ in range(20)
    ]
    for i in range(scale.recordings):
        path = root / f"{i:05d}"
        if not path.exists():
            take = takes[i % len(takes)]
            path.write_bytes(zlib.compress((take + np.uint8(i // len(takes))).tobytes(), 1))


@contextlib.contextmanager
def store(root: Path, *options: str) -> Iterator[int]:
    command = [sys.executable, str(Path(__file__).parents[1] / "store.py"), str(root), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()


class Recordings(Dataset[torch.Tensor]):
    """Asks for all recordings of a batch at once."""

    def __init__(self, port: int, count: int) -> None:
        self.port, self.count = port, count
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.count

    def get(self, index: int) -> torch.Tensor:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{index:05d}")
        body = connection.getresponse().read()
        connection.close()
        return torch.frombuffer(bytearray(zlib.decompress(body)), dtype=torch.uint8)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.pool = self.pool or ThreadPoolExecutor(8)
        return list(self.pool.map(self.get, indices))


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    make_recordings(root, scale)
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.6 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    device.place(model, optimizer)
    with store(root, "--rate", str(scale.rate)) as port:
        loader = DataLoader(Recordings(port, scale.recordings), batch_size=scale.batch, shuffle=True, num_workers=2)
        step, began = 0, time.perf_counter()
        for _ in range(args.epochs or 1):
            for sound in loader:
                if step >= args.steps:
                    break
                x = sound.to(device, non_blocking=True)
                loss = (model(x[:, :32].float() / 255) - 0.5).abs().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 12 == 0:
                    print(f"step {step} loss {loss.item():.4f}")
        device.synchronize()
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

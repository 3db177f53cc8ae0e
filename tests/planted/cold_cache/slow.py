"""Train for a few epochs on clips of a remote store; a clip that was fetched is kept in a local folder."""

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
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import sim


class Scale(NamedTuple):
    clips: int
    values: int
    batch: int
    latency_s: float
    rate: float
    device_s: float
    epochs: int


SCALES = {
    "small": Scale(640, 4096, 8, 0.050, 0.0, 0.040, 3),
    "large": Scale(420, 262_144, 12, 0.020, 9e6, 0.090, 4),
}


def make_clips(root: Path, scale: Scale) -> Path:
    remote = root / "remote"
    remote.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(scale.clips):
        path = remote / f"{i:05d}"
        if not path.exists():
            path.write_bytes(rng.bytes(scale.values))
    return remote


@contextlib.contextmanager
def store(root: Path, *options: str) -> Iterator[int]:
    command = [sys.executable, str(Path(__file__).parents[1] / "store.py"), str(root), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()


class Clips(Dataset[torch.Tensor]):
    def __init__(self, port: int, count: int, local: Path) -> None:
        self.port, self.count, self.local = port, count, local

    def __len__(self) -> int:
        return self.count

    def path(self, index: int) -> Path:
        kept = self.local / f"{index:05d}"
        if not kept.exists():
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            connection.request("GET", f"/{index:05d}")
            part = kept.with_suffix(".part")
            part.write_bytes(connection.getresponse().read())
            connection.close()
            part.rename(kept)
        return kept

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.path(index).read_bytes()), dtype=torch.uint8)


def train(loader: DataLoader[torch.Tensor], scale: Scale, epochs: int, limit: int) -> int:
    device = sim.Device(forward=0.3 * scale.device_s, backward=0.6 * scale.device_s, optimizer=0.1 * scale.device_s)
    model = nn.Linear(16, 2)
    optimizer = torch.optim.Adam(model.parameters())
    device.place(model, optimizer)
    step = 0
    for epoch in range(epochs):
        began = time.perf_counter()
        for clip in loader:
            if step >= limit:
                break
            x = clip.to(device, non_blocking=True)
            loss = model(x[:, :16].float() / 255).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f} in {time.perf_counter() - began:.1f} s")
    return step


def main(args: argparse.Namespace, root: Path) -> None:
    scale = SCALES[args.scale]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    remote = make_clips(root, scale)
    with (
        tempfile.TemporaryDirectory(dir=root) as local,
        store(remote, "--latency", str(scale.latency_s), "--rate", str(scale.rate)) as port,
    ):
        clips = Clips(port, scale.clips, Path(local))
        loader = DataLoader(clips, batch_size=scale.batch, shuffle=True, num_workers=2, persistent_workers=True)
        began = time.perf_counter()
        step = train(loader, scale, args.epochs or scale.epochs, args.steps)
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

"""Land-cover classification on tiles that live behind an HTTP tile service.

For a run without the real service, a stand-in is started on a local port and answers like the real one."""

import argparse
import asyncio
import atexit
import concurrent.futures as cf
import http.client
import os
import subprocess
import sys
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, BANDS, CLASSES, TILES = 32, 4, 6, 768


def make_tiles(root):
    os.makedirs(root, exist_ok=True)
    path = os.path.join(root, "tiles.npy")
    if not os.path.exists(path):
        rng = np.random.default_rng(7)
        x = rng.integers(0, 120, (TILES, BANDS, SIDE, SIDE), dtype=np.uint8)
        for i in range(TILES):
            x[i, i % BANDS] += (i % CLASSES) * 20
        np.save(path, x)
    return path


def serve(path, parent, delay):
    tiles = np.load(path)

    async def handle(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                key = int(head.split(b" ", 2)[1].rsplit(b"/", 1)[1])
                await asyncio.sleep(delay)
                body = tiles[key].tobytes()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        while os.getppid() == parent:
            await asyncio.sleep(0.5)
        os._exit(0)

    asyncio.run(run())


def start_service(path):
    proc = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--serve", path, str(os.getpid())],
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(proc.terminate)
    return int(proc.stdout.readline())


class TileClient:
    def __init__(self, port):
        self.port = port
        self.local = threading.local()

    def get(self, key):
        if not hasattr(self.local, "conn"):
            self.local.conn = http.client.HTTPConnection("127.0.0.1", self.port)
        self.local.conn.request("GET", f"/tiles/{key}")
        body = self.local.conn.getresponse().read()
        return np.frombuffer(body, np.uint8).reshape(BANDS, SIDE, SIDE)


class RemoteTiles(Dataset):
    def __init__(self, port, lanes=1):
        self.port, self.lanes = port, lanes
        self.client = None

    def __len__(self):
        return TILES

    def connect(self):
        self.client = TileClient(self.port)
        self.pool = cf.ThreadPoolExecutor(self.lanes)

    def item(self, i):
        return torch.from_numpy(self.client.get(i).astype(np.float32) / 255), i % CLASSES

    def __getitems__(self, ids):
        if self.client is None:
            self.connect()
        return list(self.pool.map(self.item, ids))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(BANDS, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )

    def forward(self, x):
        return self.net(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--epochs", type=int, default=200)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--fixed", action="store_true")
    args = p.parse_args()

    port = start_service(make_tiles(args.data))
    dataset = RemoteTiles(port, lanes=24 if args.fixed else 1)
    loader = DataLoader(dataset, batch_size=24, shuffle=True, num_workers=args.workers, persistent_workers=True)
    model = Classifier()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        t, n = time.time(), 0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += len(y)
        print(f"epoch {epoch} loss {loss.item():.3f} {n / (time.time() - t):.1f} samples/s", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), 0.012)
    else:
        main()

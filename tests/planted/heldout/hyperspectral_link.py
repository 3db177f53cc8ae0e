"""Crop stress from hyperspectral cubes that are streamed from the field station over its (slow) uplink.

The station is simulated on the loopback interface: all connections together get RATE bytes per second.
"""

import argparse
import multiprocessing as mp
import threading
import time
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

SHAPE, RATE, N = (64, 64, 64), 24e6, 160


def cube(k):
    rng = np.random.default_rng(k)
    spectrum = 20 * np.sin(np.arange(64) / (5 + k % 4)) + 40
    field = np.repeat(np.repeat(rng.integers(0, 4, (16, 16)), 4, 0), 4, 1)
    return (spectrum[:, None, None] + field).round().astype(np.float32)


def station(conn):
    raw = [cube(k).tobytes() for k in range(N)]
    store = {"/raw": raw, "/z": [zlib.compress(r, 1) for r in raw]}
    lock, clock = threading.Lock(), [0.0]

    class Link(BaseHTTPRequestHandler):
        def do_GET(self):
            kind, k = self.path.rsplit("/", 1)
            body = store[kind][int(k)]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for i in range(0, len(body), 65536):
                part = body[i : i + 65536]
                with lock:  # one shared link: reserve the next slot on it
                    clock[0] = max(clock[0], time.monotonic()) + len(part) / RATE
                    due = clock[0]
                time.sleep(max(0.0, due - time.monotonic()))
                self.wfile.write(part)

        def log_message(self, *a):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 64

    srv = Server(("127.0.0.1", 0), Link)
    conn.send(srv.server_port)
    srv.serve_forever()


class Cubes(Dataset):
    def __init__(self, url, compressed):
        self.url, self.compressed, self.pool = url, compressed, None

    def __len__(self):
        return N

    def fetch(self, k):
        with urllib.request.urlopen(f"{self.url}/{'z' if self.compressed else 'raw'}/{k}") as r:
            body = r.read()
        if self.compressed:
            body = zlib.decompress(body)
        x = torch.from_numpy(np.frombuffer(body, np.float32).reshape(SHAPE).copy())
        return x / 50 - 1, k % 4

    def __getitems__(self, keys):  # eight downloads at a time per worker
        self.pool = self.pool or ThreadPoolExecutor(8)
        return list(self.pool.map(self.fetch, keys))


class StressNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands = nn.Conv2d(64, 16, 1)
        self.space = nn.Conv2d(16, 16, 3, stride=4)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.space(torch.relu(self.bands(x)))).mean((2, 3)))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--fixed", action="store_true", help="ask the station for compressed cubes")
    args = ap.parse_args()
    torch.set_num_threads(1)
    here, there = mp.Pipe()
    proc = mp.Process(target=station, args=(there,), daemon=True)
    proc.start()
    try:
        ds = Cubes(f"http://127.0.0.1:{here.recv()}", args.fixed)
        loader = DataLoader(ds, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
        net = StressNet()
        opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for epoch in range(args.epochs):
            t0 = time.time()
            for x, y in loader:
                loss = nn.functional.cross_entropy(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            dt = time.time() - t0
            print(
                f"epoch {epoch} loss {loss.item():.3f}  {dt:.1f} s, {N * 2**20 / dt / 1e6:.1f} MB/s of cubes",
                flush=True,
            )
    finally:
        proc.terminate()
        proc.join()

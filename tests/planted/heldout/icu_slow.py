"""Length-of-stay model; recordings live behind the ward's object store (a stand-in is started on loopback)."""

import argparse
import http.client
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

ROOT = Path() / "data_icu"
CHANNELS, TICKS, STAYS = 64, 128, 4096
ITEM_BYTES = CHANNELS * TICKS * 2


def serve():
    blob = (ROOT / "stays.bin").read_bytes()
    parent = os.getppid()

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            first, count = map(int, self.path.strip("/").split("/")[1:])
            body = blob[first * ITEM_BYTES : (first + count) * ITEM_BYTES]
            time.sleep(0.012)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        def log_message(self, *a):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    print(httpd.server_address[1], flush=True)
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__" and "--serve" in sys.argv:
    serve()

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def start_store():
    if not (ROOT / "stays.bin").exists():
        ROOT.mkdir(exist_ok=True)
        rng = np.random.default_rng(5)
        rng.standard_normal((STAYS, CHANNELS, TICKS), dtype=np.float32).astype(np.float16).tofile(ROOT / "stays.bin")
    child = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return child, int(child.stdout.readline())


class Stays(Dataset):
    def __init__(self, port):
        self.port = port
        self.conn = None

    def __len__(self):
        return STAYS

    def __getitem__(self, i):
        if self.conn is None:
            self.conn = http.client.HTTPConnection("127.0.0.1", self.port)
        self.conn.request("GET", f"/stays/{i}/1")
        raw = self.conn.getresponse().read()
        x = np.frombuffer(raw, np.float16).reshape(CHANNELS, TICKS).astype(np.float32)
        return {"vitals": torch.from_numpy(x), "days": float(i % 17)}


class StayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(CHANNELS, 128, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(128, 128, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.out = nn.Linear(128, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(1)


def train(port, limit):
    loader = DataLoader(Stays(port), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    net = StayNet()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    n = 0
    for epoch in range(100):
        for batch in loader:
            loss = nn.functional.mse_loss(net(batch["vitals"]), batch["days"].float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            if n == 8:
                began = time.perf_counter()
            if n % 64 == 0:
                print(f"epoch={epoch} n={n} mse={loss.item():.3f}", flush=True)
            if limit and n >= limit:
                return print(f"seconds per step {(time.perf_counter() - began) / (n - 8):.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=0)
    limit = ap.parse_args().steps
    torch.set_num_threads(1)
    child, port = start_store()
    try:
        train(port, limit)
    finally:
        child.terminate()

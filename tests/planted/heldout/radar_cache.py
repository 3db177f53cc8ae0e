"""Rain nowcasting from radar frames. Frames are fetched from the archive on first use and kept in a local cache folder."""

import argparse
import multiprocessing as mp
import os
import shutil
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 96


def archive(conn):
    """The archive: recalls a frame from its tape tier, so each GET takes a while."""
    ramp = np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.float32) / SIDE

    class H(BaseHTTPRequestHandler):
        def do_GET(self):
            k = int(self.path[1:])
            seq = np.stack([np.sin(ramp * (1 + k % 7) + k + 0.2 * t) for t in range(5)]).astype(np.float32)
            time.sleep(0.09)
            body = seq.tobytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *a):
            pass

    class S(ThreadingHTTPServer):
        request_queue_size, daemon_threads = 128, True

    s = S(("127.0.0.1", 0), H)
    conn.send(s.server_address[1])
    s.serve_forever()


class RadarSequences(Dataset):
    def __init__(self, url, cache, n):
        self.url, self.cache, self.n = url, cache, n

    def __len__(self):
        return self.n

    def local(self, k):
        path = os.path.join(self.cache, f"{k}.f32")
        if not os.path.exists(path):
            with urllib.request.urlopen(f"{self.url}/{k}") as r, open(path + ".tmp", "wb") as f:
                shutil.copyfileobj(r, f)
            os.replace(path + ".tmp", path)
        return path

    def __getitem__(self, k):
        seq = torch.from_numpy(np.fromfile(self.local(k), np.float32)).view(5, SIDE, SIDE)
        return seq[:4], seq[4:]


def unet():
    return nn.Sequential(
        nn.Conv2d(4, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 1, 2, stride=2),
    )


def train(args, url, cache):
    ds = RadarSequences(url, cache, args.n)
    if args.fixed:  # hydrate the cache ahead, many requests in flight
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(ds.local, range(len(ds))))
    loader = DataLoader(ds, batch_size=12, shuffle=True, num_workers=2, persistent_workers=True)
    model = unet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        t0, mse = time.time(), 0.0
        for past, future in loader:
            loss = nn.functional.mse_loss(model(past), future)
            opt.zero_grad()
            loss.backward()
            opt.step()
            mse += loss.detach()
        print(f"epoch {epoch}: mse {float(mse) / len(loader):.4f} in {time.time() - t0:.1f} s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--cache", help="default: a new temporary folder")
    ap.add_argument("--n", type=int, default=600)
    ap.add_argument("--epochs", type=int, default=18)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    a, b = mp.Pipe()
    server = mp.Process(target=archive, args=(b,), daemon=True)
    server.start()
    cache = args.cache or tempfile.mkdtemp(prefix="radar_")
    try:
        train(args, f"http://127.0.0.1:{a.recv()}", cache)
    finally:
        server.terminate()
        server.join()
        if not args.cache:
            shutil.rmtree(cache, ignore_errors=True)

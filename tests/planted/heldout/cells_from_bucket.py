"""Cell-type classifier on single-cell expression profiles kept as one object each in an object store.

For this demo the 'bucket' is a small HTTP service on this machine with the round-trip time of a far region.
"""

import argparse
import http.client
import multiprocessing as mp
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import local

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GENES, RTT = 2000, 0.045


def serve(conn):
    class Bucket(BaseHTTPRequestHandler):
        protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", -1, True

        def do_GET(self):
            k = int(self.path.rsplit("/", 1)[1])
            rng = np.random.default_rng(k)
            x = rng.poisson(1.0 + (np.arange(GENES) % 12 == k % 12) * 1.5).astype(np.uint16).tobytes()
            time.sleep(RTT)
            self.send_response(200)
            self.send_header("Content-Length", str(len(x)))
            self.end_headers()
            self.wfile.write(x)

        def log_message(self, *a):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 128

    srv = Server(("127.0.0.1", 0), Bucket)
    conn.send(srv.server_address[1])
    srv.serve_forever()


class Cells(Dataset):
    def __init__(self, port, n):
        self.port, self.n, self.tls = port, n, None

    def __len__(self):
        return self.n

    def get(self, k):
        if self.tls is None:
            self.tls = local()
        if not hasattr(self.tls, "http"):
            self.tls.http = http.client.HTTPConnection("127.0.0.1", self.port)
        self.tls.http.request("GET", f"/atlas/cell/{k}")
        return self.tls.http.getresponse().read()

    def decode(self, k, raw):
        return torch.log1p(torch.from_numpy(np.frombuffer(raw, np.uint16).astype(np.float32))), k % 12

    def __getitem__(self, k):
        return self.decode(k, self.get(k))


class ConcurrentCells(Cells):
    """--fixed: all objects of a batch are requested at once."""

    pool = None

    def __getitems__(self, keys):
        if self.pool is None:
            self.tls, self.pool = local(), ThreadPoolExecutor(16)
        return [self.decode(k, raw) for k, raw in zip(keys, self.pool.map(self.get, keys))]


def main(args):
    parent, child = mp.Pipe()
    bucket = mp.Process(target=serve, args=(child,), daemon=True)
    bucket.start()
    try:
        port = parent.recv()
        data = (ConcurrentCells if args.fixed else Cells)(port, args.cells)
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Sequential(nn.Linear(GENES, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 12))
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(args.epochs):
            t, correct = time.time(), 0
            for x, y in loader:
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                correct += (logits.argmax(1) == y).sum()
            dt = time.time() - t
            print(
                f"epoch {epoch} acc {int(correct) / args.cells:.3f} {dt:.1f}s ({dt / len(loader) * 1e3:.0f} ms/step)",
                flush=True,
            )
    finally:
        bucket.terminate()
        bucket.join()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--cells", type=int, default=960)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--fixed", action="store_true")
    torch.set_num_threads(1)
    main(ap.parse_args())

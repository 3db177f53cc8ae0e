"""Land-cover from map tiles served by a tile server (here: a local one with WAN-like latency)."""

import http.server, socketserver, threading, time, urllib.request, random, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, torch
from torch import nn

SERVER = r"""
import http.server, socketserver, time, sys, random
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        time.sleep(0.018)
        k = int(self.path.rsplit("/", 1)[1])
        body = random.Random(k).randbytes(3 * 32 * 32)
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
class S(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
s = S(("127.0.0.1", 0), H)
print(s.server_port, flush=True)
import threading, os
def parent_gone():
    sys.stdin.read(); os._exit(0)
threading.Thread(target=parent_gone, daemon=True).start()
s.serve_forever()
"""


def start_server():
    p = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    return p, int(p.stdout.readline())


class TileSource:
    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}/tiles/"

    def get(self, k):
        with urllib.request.urlopen(self.base + str(k), timeout=10) as r:
            raw = r.read()
        return np.frombuffer(raw, np.uint8).reshape(3, 32, 32), k % 7

    def batches(self, order, bs):
        for i in range(0, len(order), bs):
            yield self.stack([self.get(k) for k in order[i : i + bs]])

    @staticmethod
    def stack(items):
        x = torch.from_numpy(np.stack([i[0] for i in items])).float().div(255)
        return x, torch.tensor([i[1] for i in items])


def main(epochs=10, tiles=200, bs=8):
    proc, port = start_server()
    try:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 7),
        )
        opt = torch.optim.Adam(net.parameters(), 1e-3)
        src = TileSource(port)
        rng = random.Random(0)
        for ep in range(epochs):
            order = rng.sample(range(tiles), tiles)
            t0 = time.time()
            for n, (x, y) in enumerate(src.batches(order, bs), 1):
                loss = nn.functional.cross_entropy(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {ep} {loss.item():.3f} {n / (time.time() - t0):.2f} it/s", flush=True)
    finally:
        proc.kill()


if __name__ == "__main__":
    main()

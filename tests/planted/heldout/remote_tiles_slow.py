"""Land-cover segmentation; tiles come from the tile service of the lab (an in-house HTTP store)."""

import argparse
import asyncio
import http.client
import multiprocessing as mp
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

DIR = Path("data") / "remote_tiles"
N_TILES, SIDE = 3000, 32


def make_tiles():
    DIR.mkdir(parents=True, exist_ok=True)
    f = DIR / "tiles.npy"
    if not f.exists():
        rng = np.random.default_rng(8)
        x = rng.integers(0, 255, (N_TILES, 4, SIDE, SIDE), dtype=np.uint8)
        x[:, 3] = (x[:, 0] > 128).astype(np.uint8)
        np.save(f, x)
    return f


def tile_service(path, conn):
    """Local stand-in of the tile service: same protocol, same response times."""
    tiles = np.load(path, mmap_mode="r")

    async def handle(r, w):
        try:
            while line := await r.readline():
                key = int(line.split()[1].rsplit(b"/", 1)[1])
                while (await r.readline()).strip():
                    pass
                await asyncio.sleep(0.012)
                body = tiles[key].tobytes()
                w.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except ConnectionError:
            pass
        w.close()

    async def serve():
        s = await asyncio.start_server(handle, "127.0.0.1", 0)
        conn.send(s.sockets[0].getsockname()[1])
        await s.serve_forever()

    asyncio.run(serve())


class Tiles(Dataset):
    def __init__(self, port, n=N_TILES):
        self.port, self.n = port, n
        self.http = None

    def __len__(self):
        return self.n

    def fetch(self, i):
        if self.http is None:
            self.http = http.client.HTTPConnection("127.0.0.1", self.port)
        self.http.request("GET", f"/tiles/v2/{i}")
        return self.http.getresponse().read()

    def __getitem__(self, i):
        a = np.frombuffer(bytearray(self.fetch(i)), np.uint8).reshape(4, SIDE, SIDE)
        return torch.from_numpy(a[:3]), torch.from_numpy(a[3])


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()

        def two(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())

        self.d1, self.d2, self.u1 = two(3, c), two(c, 2 * c), two(3 * c, c)
        self.out = nn.Conv2d(c, 2, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        return self.out(self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--workers", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(1)
    rx, tx = mp.Pipe()
    srv = mp.get_context("fork").Process(target=tile_service, args=(make_tiles(), tx), daemon=True)
    srv.start()
    ds = Tiles(rx.recv())
    loader = DataLoader(ds, a.batch, shuffle=True, num_workers=a.workers, drop_last=True, persistent_workers=True)

    def forever():
        while True:
            yield from loader

    net = TinyUNet()
    opt = torch.optim.RMSprop(net.parameters(), 1e-3)
    stream = forever()
    for step in range(a.steps):
        x, y = next(stream)
        loss = F.cross_entropy(net(x.float() / 255), y.long())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 4:
            t0 = time.perf_counter()
        if step % 100 == 0:
            print("step", step, "loss", round(loss.item(), 4))
    s = (time.perf_counter() - t0) / (a.steps - 5)
    print(f"{1 / s:.2f} steps/s ({s * 1e3:.1f} ms)")
    srv.terminate()


if __name__ == "__main__":
    main()

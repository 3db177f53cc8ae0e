"""Behaviour cloning for a gripper arm; observations live in an object store."""

import asyncio
import copy
import json
import multiprocessing as mp
import os
import socket
import struct
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

FOLDER = "data_gripper"
SIDE, STATE, ACT = 48, 14, 7
N_OBS = 1440
RTT = 0.025


def make_episodes():
    os.makedirs(FOLDER, exist_ok=True)
    if os.path.exists(f"{FOLDER}/index.json"):
        return
    rng = np.random.default_rng(6)
    rec = 3 * SIDE * SIDE + 4 * (STATE + ACT)
    with open(f"{FOLDER}/objects.bin", "wb") as f:
        for _ in range(N_OBS):
            st = rng.normal(size=STATE).astype(np.float32)
            act = np.tanh(st[:ACT] - st[ACT:]).astype(np.float32)
            f.write(rng.integers(0, 255, 3 * SIDE * SIDE, dtype=np.uint8).tobytes() + st.tobytes() + act.tobytes())
    with open(f"{FOLDER}/index.json", "w") as f:
        json.dump({"record": rec, "keys": [f"ep{i // 80:03d}/obs{i % 80:03d}" for i in range(N_OBS)]}, f)


def serve(pipe):
    """Local stand-in of the bucket endpoint, with its round-trip time."""
    with open(f"{FOLDER}/index.json") as f:
        meta = json.load(f)
    where = {k: i * meta["record"] for i, k in enumerate(meta["keys"])}
    with open(f"{FOLDER}/objects.bin", "rb") as f:
        blob = f.read()

    async def handle(r, w):
        try:
            while True:
                key = (await r.readline()).decode().strip()
                if not key:
                    break
                await asyncio.sleep(RTT)
                o = where[key]
                w.write(struct.pack("<I", meta["record"]) + blob[o : o + meta["record"]])
                await w.drain()
        except ConnectionError:
            pass
        w.close()

    async def run():
        parent = os.getppid()
        srv = await asyncio.start_server(handle, "127.0.0.1", 0)
        pipe.send(srv.sockets[0].getsockname()[1])
        while os.getppid() == parent:
            await asyncio.sleep(1.0)
        srv.close()

    asyncio.run(run())


class Bucket:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.f = self.sock.makefile("rb")

    def get(self, key):
        self.sock.sendall(key.encode() + b"\n")
        (n,) = struct.unpack("<I", self.f.read(4))
        return self.f.read(n)


def parse(raw):
    px = 3 * SIDE * SIDE
    img = np.frombuffer(raw, np.uint8, px).reshape(3, SIDE, SIDE)
    vec = np.frombuffer(raw, np.float32, STATE + ACT, px)
    return img, vec


class Observations(Dataset):
    def __init__(self, port):
        with open(f"{FOLDER}/index.json") as f:
            self.keys = json.load(f)["keys"]
        self.port = port
        self.bucket = None

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        if self.bucket is None:
            self.bucket = Bucket(self.port)
        img, vec = parse(self.bucket.get(self.keys[i]))
        return torch.from_numpy(img.copy()), torch.from_numpy(vec[:STATE].copy()), torch.from_numpy(vec[STATE:].copy())


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(64 * 9 + STATE, 256), nn.ReLU(), nn.Linear(256, ACT + 1))

    def forward(self, img, st):
        out = self.head(torch.cat([self.vision(img), st], 1))
        return out[:, :ACT], out[:, ACT]


def main():
    make_episodes()
    here, there = mp.Pipe()
    mp.Process(target=serve, args=(there,), daemon=True).start()
    port = here.recv()
    torch.manual_seed(0)
    loader = DataLoader(
        Observations(port), batch_size=16, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
    )
    net = Policy()
    target = copy.deepcopy(net).requires_grad_(False)
    opt_v = torch.optim.Adam(net.vision.parameters(), 3e-4)
    opt_h = torch.optim.Adam(net.head.parameters(), 1e-3)
    for epoch in range(24):
        t0 = time.time()
        for k, (img, st, act) in enumerate(loader, 1):
            mu, log_s = net(img.float() / 255, st)
            mse = (mu - act).square().mean(1)
            loss = (mse * torch.exp(-log_s) + 0.5 * log_s).mean() + 0.1 * mse.mean()
            opt_v.zero_grad()
            opt_h.zero_grad()
            loss.backward()
            opt_v.step()
            opt_h.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), 0.01)
            if k % 20 == 0:
                print(
                    f"epoch {epoch} step {k} loss {loss.item():.3f} {16 * k / (time.time() - t0):.1f} obs/s", flush=True
                )
        print(f"epoch {epoch} {time.time() - t0:.1f}s", flush=True)


if __name__ == "__main__":
    main()

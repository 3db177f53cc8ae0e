"""Images from a store with 30 ms a request: against the bare client, a DataLoader, local files and the bare decoder.

    python benchmarks/images.py [--images 3000] [--repeats 3] [--part decode warm cold] [--kind small photo]

Prints a table of ratios; both sides of a ratio run in turn, and the median over the repeats counts. Two sizes of image,
because on a small machine the store, the client and the decoder share the cores: `small` (64 x 64, about 3 kB) shows
what the requests cost, `photo` (500 x 375, about 131 kB) is the case's.
"""

import argparse
import asyncio
import io
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np
import obstore
import simplejpeg
import torch
from obstore.store import S3Store
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

import stoker
from stoker.loader.cores import count as core_count
from stoker.loader.cores import use_one_core
from stoker.sim import Store

LATENCY_S = 0.03
REQUESTS = 128
WORKERS = 8
BATCH = 64
SIZES = {"small": ((64, 64), 48, 75), "photo": ((375, 500), 224, 93)}
"""Of the files: height and width; the side that they are resized to; JPEG quality."""


@dataclass(frozen=True)
class Row:
    """One line of the table: images a second of both sides, and what was asked for."""

    part: str
    images: str
    ours: str
    ours_per_s: float
    theirs: str
    theirs_per_s: float
    ratio: float
    wanted: float

    @property
    def reached(self) -> bool:
        """True if the ratio is as large as wanted."""
        return self.ratio >= self.wanted


def make(root: Path, kind: str, number: int) -> Path:
    """Photo-like JPEGs, a hundred different ones, each file with a different end so that no two are the same."""
    folder = root / f"{kind}-{number}"
    if folder.exists():
        return folder
    (height, width), _, quality = SIZES[kind]
    step = 25 if kind == "photo" else 8
    random = np.random.default_rng(0)
    bodies = []
    for _ in range(100):
        coarse = random.integers(40, 215, (height // step + 1, width // step + 1, 3)).astype(np.int16)
        smooth = coarse.repeat(step, axis=0).repeat(step, axis=1)[:height, :width]
        grain = random.integers(-24, 25, (height, width, 1), dtype=np.int16)
        bodies.append(simplejpeg.encode_jpeg(np.clip(smooth + grain, 0, 255).astype(np.uint8), quality))
    with tempfile.TemporaryDirectory(dir=root) as part:
        for at in range(number):
            home = Path(part) / "data" / f"class_{at % 20:02}"
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{at:06}.jpg").write_bytes(bodies[at % 100] + at.to_bytes(4, "big"))
        (Path(part) / "data").rename(folder)
    return folder


def rate(run: Callable[[], int]) -> float:
    """Images a second."""
    begin = time.perf_counter()
    done = run()
    return done / (time.perf_counter() - begin)


def interleaved(sides: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median rate of each side; they take turns, the first one first in every other round."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name]())
            print(f"  {name}: {found[name][-1]:,.0f} images/s", file=sys.stderr)
    return {name: median(rates) for name, rates in found.items()}


@contextmanager
def epochs(data: Any) -> Iterator[Callable[[], float]]:
    """A function that times an epoch of the loader; threads live on between epochs, as in a training."""
    with stoker.Loader(data, BATCH, shuffle=True) as loader:
        yield lambda: rate(lambda: sum(len(batch["key"]) for batch in loader))


def bare_decode(folder: Path, side: int) -> Callable[[], float]:
    """As many threads, nothing but simplejpeg and the resize, from bytes in memory into one reused batch."""
    bodies = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    out = torch.empty((BATCH, 3, side, side), dtype=torch.uint8)

    def work(numbers: Iterator[int]) -> None:
        for at in numbers:
            if at >= len(bodies):
                return
            image = torch.from_numpy(
                simplejpeg.decode_jpeg(bodies[at], "RGB", min_height=side, min_width=side, min_factor=2)
            )
            out[at % BATCH].copy_(
                interpolate(image.permute(2, 0, 1)[None], size=(side, side), mode="bilinear", antialias=True)[0]
            )

    def run() -> int:
        numbers = count()
        with ThreadPoolExecutor(core_count(), initializer=use_one_core) as pool:
            for done in [pool.submit(work, numbers) for _ in range(core_count())]:
                done.result()
        return len(bodies)

    return lambda: rate(run)


def decode(folder: Path, kind: str, repeats: int) -> list[Row]:
    side = SIZES[kind][1]
    with epochs(stoker.open(folder, size=side)) as ours:
        got = interleaved({"loader": ours, "bare": bare_decode(folder, side)}, repeats + 1)
    ratio = got["loader"] / got["bare"]
    return [
        Row("decode", kind, "loader, local files", got["loader"], "bare simplejpeg + resize", got["bare"], ratio, 0.95)
    ]


def access(store: Store) -> dict[str, Any]:
    keys = {"region": "x", "access_key_id": "a", "secret_access_key": "b"}
    return {"store_options": {"endpoint": store.endpoint, **keys}, "requests": REQUESTS}


def warm(folder: Path, kind: str, repeats: int) -> list[Row]:
    side = SIZES[kind][1]
    with Store(folder, latency_s=LATENCY_S) as store, tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        data = stoker.open(f"s3://{store.bucket}/", size=side, cache=cache, **access(store))
        with epochs(data) as ours, epochs(stoker.open(folder, size=side)) as local:
            ours()  # fills the cache
            got = interleaved({"warm": ours, "local": local}, repeats + 1)
        assert store.stats()["reads"] < 1.1 * len(data)
    return [
        Row(
            "warm",
            kind,
            "loader, warm cache",
            got["warm"],
            "loader, local files",
            got["local"],
            got["warm"] / got["local"],
            0.95,
        )
    ]


def bare_client(store: Store) -> float:
    """Images a second. Every object once, so many requests under way; nothing is verified, decoded or kept."""
    options: Any = {"allow_http": True}
    keys = access(store)["store_options"]
    client = S3Store(store.bucket, client_options=options, **keys)
    listed = [one for page in obstore.list(client, chunk_size=1000) for one in page]
    order = iter(np.random.default_rng(0).permutation(len(listed)).tolist())

    async def ask() -> None:
        for at in order:
            result = await obstore.get_range_async(client, listed[at]["path"], start=0, end=listed[at]["size"])
            assert len(result) == listed[at]["size"]

    async def all_of_them() -> None:
        await asyncio.gather(*(ask() for _ in range(REQUESTS)))

    begin = time.perf_counter()
    asyncio.run(all_of_them())
    return len(listed) / (time.perf_counter() - begin)


class PerFile(Dataset[Any]):
    """What people write: one request and one decode for each image, in the worker."""

    def __init__(self, url: str, keys: list[str], side: int) -> None:
        self.url, self.keys, self.side = url, keys, side

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: int) -> torch.Tensor:
        with urllib.request.urlopen(f"{self.url}/{quote(self.keys[at])}", timeout=60) as answer:  # noqa: S310
            image = Image.open(io.BytesIO(answer.read())).convert("RGB")
        image = image.resize((self.side, self.side), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def cold(folder: Path, kind: str, repeats: int) -> list[Row]:
    side = SIZES[kind][1]
    keys = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    with Store(folder, latency_s=LATENCY_S) as store:

        def ours(*, cached: bool) -> float:
            with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
                more: dict[str, Any] = {"cache": cache} if cached else {}
                data = stoker.open(f"s3://{store.bucket}/", size=side, **more, **access(store))
                with epochs(data) as epoch:
                    return epoch()

        per_file = PerFile(store.url, keys[:: max(1, len(keys) // 1000)], side)
        workers = DataLoader(per_file, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
        for _ in workers:  # start-up does not count
            pass

        def loader() -> float:
            return rate(lambda: sum(len(batch) for batch in workers))

        sides = {
            "no cache": lambda: ours(cached=False),
            "filling": lambda: ours(cached=True),
            "bare": lambda: bare_client(store),
            "workers": loader,
        }
        got = interleaved(sides, repeats)
    bare_name, workers_name = f"bare obstore, {REQUESTS} in flight", f"per-file DataLoader, {WORKERS} workers"
    rows = []
    for name, said in (("filling", "loader, cold, filling the cache"), ("no cache", "loader, cold, no cache")):
        rows.append(Row("cold", kind, said, got[name], bare_name, got["bare"], got[name] / got["bare"], 0.85))
        rows.append(Row("cold", kind, said, got[name], workers_name, got["workers"], got[name] / got["workers"], 8.0))
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        "| part | images | ours | images/s | against | images/s | ratio | wanted | |",
        "|---|---|---|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        verdict = "reached" if row.reached else "missed"
        sides = f"{row.ours} | {row.ours_per_s:,.0f} | {row.theirs} | {row.theirs_per_s:,.0f}"
        lines.append(f"| {row.part} | {row.images} | {sides} | {row.ratio:.2f} | {row.wanted:.2f} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    parts = {"decode": decode, "warm": warm, "cold": cold}
    parser.add_argument("--part", nargs="*", choices=list(parts), default=list(parts))
    parser.add_argument("--kind", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--data", type=Path, default=Path("benchmarks/out/images"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/images.json"))
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for kind in options.kind:
        folder = make(
            options.data.resolve(), kind, options.images if kind == "small" else max(200, options.images // 3)
        )
        for part in options.part:
            print(f"{part}, {kind}", file=sys.stderr)
            rows += parts[part](folder, kind, options.repeats)
            options.out.write_text(json.dumps([{**asdict(row), "reached": row.reached} for row in rows], indent=1))
    print(f"{os.cpu_count()} cores, {LATENCY_S * 1e3:.0f} ms a request, batch {BATCH}\n\n{table(rows)}")


if __name__ == "__main__":
    main()

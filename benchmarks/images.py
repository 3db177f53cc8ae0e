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
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
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
REQUESTS = (8, 128)
"""Under way at once: few, so that latency is the bound, and many, so that the machine is."""
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
    cpu_ratio: float | None
    """Their processor time for an image ÷ ours: holds still on a machine that others use. None: they are processes."""
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


class Pace(NamedTuple):
    """Images a second, and seconds of this process's processor time for each."""

    per_s: float
    cpu_s: float


def pace(run: Callable[[], int]) -> Pace:
    """How fast something delivers images."""
    begin, used = time.perf_counter(), time.process_time()
    done = run()
    return Pace(done / (time.perf_counter() - begin), (time.process_time() - used) / done)


def interleaved(sides: dict[str, Callable[[], Pace]], repeats: int) -> dict[str, Pace]:
    """The median of each side; they take turns, the first one first in every other round."""
    found: dict[str, list[Pace]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name]())
            print(f"  {name}: {found[name][-1].per_s:,.0f} images/s", file=sys.stderr)
    return {name: Pace(*(median(column) for column in zip(*paces, strict=True))) for name, paces in found.items()}


def line(
    part: str, kind: str, ours: tuple[str, Pace], theirs: tuple[str, Pace], wanted: float, cpu: bool = True
) -> Row:
    (name, mine), (other, its) = ours, theirs
    share = its.cpu_s / mine.cpu_s if cpu else None
    return Row(part, kind, name, mine.per_s, other, its.per_s, mine.per_s / its.per_s, share, wanted)


def epoch(data: Any) -> Pace:
    """One epoch of a loader that starts from nothing: what it prefetched before its time began would not be counted."""
    with stoker.Loader(data, BATCH, shuffle=True) as loader:
        return pace(lambda: sum(len(batch["key"]) for batch in loader))


def second_epoch(data: Any) -> Pace:
    """An epoch between two others: of 1,000 photos the loader decodes 1,128, because it is ahead of the next epoch by
    two batches when one ends. Here it is as far ahead when time begins.
    """
    with stoker.Loader(data, BATCH, shuffle=True) as loader:
        for _ in loader:
            pass
        return pace(lambda: sum(len(batch["key"]) for batch in loader))


def bare_decode(folder: Path, side: int, *, in_memory: bool) -> Callable[[], Pace]:
    """As many threads, nothing but simplejpeg and the resize, from bytes in memory or files into one reused batch."""
    paths = sorted(folder.rglob("*.jpg"))
    bodies = [path.read_bytes() if in_memory else b"" for path in paths]
    out = torch.empty((BATCH, 3, side, side), dtype=torch.uint8)

    def work(numbers: Iterator[int]) -> None:
        for at in numbers:
            if at >= len(bodies):
                return
            image = torch.from_numpy(
                simplejpeg.decode_jpeg(
                    bodies[at] or paths[at].read_bytes(), "RGB", min_height=side, min_width=side, min_factor=2
                )
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

    return lambda: pace(run)


def decode(folder: Path, kind: str, repeats: int) -> list[Row]:
    side = SIZES[kind][1]
    data = stoker.open(folder, size=side)
    bare = {False: "bare simplejpeg + resize, local files", True: "bare simplejpeg + resize, from memory"}
    sides = {name: bare_decode(folder, side, in_memory=kept) for kept, name in bare.items()}
    got = interleaved({"loader": lambda: second_epoch(data), **sides}, repeats)
    loader = ("loader, local files", got["loader"])
    return [line("decode", kind, loader, (name, got[name]), 0.95) for name in sides]


def access(store: Store) -> dict[str, Any]:
    return {"endpoint": store.endpoint, "region": "x", "access_key_id": "a", "secret_access_key": "b"}


def warm(folder: Path, kind: str, repeats: int) -> list[Row]:
    side = SIZES[kind][1]
    with Store(folder, latency_s=LATENCY_S) as store, tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        data = stoker.open(f"s3://{store.bucket}/", size=side, cache=cache, store_options=access(store))
        local = stoker.open(folder, size=side)
        epoch(data)  # fills the cache
        got = interleaved({"warm": lambda: second_epoch(data), "local": lambda: second_epoch(local)}, repeats)
        assert store.stats()["reads"] < 1.1 * len(data)
    return [line("warm", kind, ("loader, warm cache", got["warm"]), ("loader, local files", got["local"]), 0.95)]


def bare_client(store: Store, requests: int) -> Pace:
    """Every object once, so many requests under way; nothing is verified, decoded or kept."""
    options: Any = {"allow_http": True}
    client = S3Store(store.bucket, client_options=options, **access(store))
    listed = [one for page in obstore.list(client, chunk_size=1000) for one in page]
    order = iter(np.random.default_rng(0).permutation(len(listed)).tolist())

    async def ask() -> None:
        for at in order:
            result = await obstore.get_range_async(client, listed[at]["path"], start=0, end=listed[at]["size"])
            assert len(result) == listed[at]["size"]

    async def all_of_them() -> None:
        await asyncio.gather(*(ask() for _ in range(requests)))

    def run() -> int:
        asyncio.run(all_of_them())
        return len(listed)

    return pace(run)


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
    # Caches stay until the end: ext4 without a journal looks long for an inode that was not deleted a moment ago.
    with Store(folder, latency_s=LATENCY_S) as store, tempfile.TemporaryDirectory(dir=folder.parent) as caches:

        def ours(requests: int, *, cached: bool) -> Pace:
            how: dict[str, Any] = {"cache": tempfile.mkdtemp(dir=caches)} if cached else {}
            how |= {"requests": requests, "store_options": access(store)}
            return epoch(stoker.open(f"s3://{store.bucket}/", size=side, **how))

        per_file = PerFile(store.url, keys[:: max(1, len(keys) // 1000)], side)
        per_worker = DataLoader(per_file, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
        for _ in per_worker:  # start-up does not count
            pass
        sides: dict[str, Callable[[], Pace]] = {
            "workers": lambda: pace(lambda: sum(len(batch) for batch in per_worker))
        }
        for n in REQUESTS:
            sides[f"bare {n}"] = partial(bare_client, store, n)
            sides[f"loader {n}"] = partial(ours, n, cached=False)
            sides[f"filling {n}"] = partial(ours, n, cached=True)
        got = interleaved(sides, repeats)
    workers = (f"per-file DataLoader, {WORKERS} workers", got["workers"])
    rows = []
    for n in REQUESTS:
        for name, said in (("filling", "cold, filling the cache"), ("loader", "cold, no cache")):
            mine = (f"{said}, {n} in flight", got[f"{name} {n}"])
            rows.append(line("cold", kind, mine, (f"bare obstore, {n} in flight", got[f"bare {n}"]), 0.85))
            if n == max(REQUESTS):
                rows.append(line("cold", kind, mine, workers, 8.0, cpu=False))
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        "| part | images | ours | images/s | against | images/s | ratio | wanted | | by processor time |",
        "|---|---|---|---:|---|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        cpu = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}"
        verdict = "reached" if row.reached else "missed"
        sides = f"{row.ours} | {row.ours_per_s:,.0f} | {row.theirs} | {row.theirs_per_s:,.0f}"
        lines.append(
            f"| {row.part} | {row.images} | {sides} | {row.ratio:.2f} | {row.wanted:.2f} | {verdict} | {cpu} |"
        )
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

"""Small data sets of every kind of source, for the laws. Row i of all rows has `id` i."""

import functools
import io
import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import stoker
from loader import scans, texts
from stoker.loader.source.interface import Source
from stoker.sim.store import Store

RECORD = np.dtype([("id", "<i8"), ("odd", "u1", (3,)), ("half", "<f2", (5,)), ("big", ">i4")])


def records(first: int, rows: int) -> np.ndarray:
    """Rows whose every field follows from their id."""
    ids = np.arange(first, first + rows)
    found = np.zeros(rows, RECORD)
    found["id"] = ids
    found["odd"] = (ids[:, None] * 7 + np.arange(3)) % 251
    found["half"] = (ids[:, None] * 3 + np.arange(5)) % 1021
    found["big"] = ids * 5
    return found


def npy(folder: Path, sizes: Sequence[int]) -> Source:
    """Shards of an odd row size, blocks of four rows."""
    from stoker.loader.source.npy import NpySource

    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        np.save(folder / f"{number:03}.npy", records(first, rows))
        first += rows
    return NpySource(sorted(str(path) for path in folder.glob("*.npy")), block_rows=4)


SIDE = 6


def picture(number: int) -> np.ndarray:
    """An image whose every pixel follows from its number."""
    pixels = (number * 11 + np.arange(SIDE * SIDE * 3) * 7).astype(np.uint8).reshape(SIDE, SIDE, 3)
    pixels[0, 0] = [number & 255, number >> 8 & 255, 77]
    return pixels


def photo(seed: int, height: int, width: int, form: str = "JPEG", **how: Any) -> bytes:
    """Something smooth, as photos are."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (9 + seed + c) + seed) + np.cos(y / (7 + seed + 2 * c)) for c in range(3)]
    pixels = (np.stack(waves, -1) * 60 + 128).clip(0, 255).astype(np.uint8)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **how)
    return file.getvalue()


@functools.cache
def png(number: int) -> bytes:
    """The same, as a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture(number)).save(file, "png", compress_level=1)
    return file.getvalue()


def pictures(folder: Path, sizes: Sequence[int]) -> None:
    """One directory of PNG files for each size."""
    first = 0
    for number, rows in enumerate(sizes):
        (folder / f"c{number:03}").mkdir(parents=True)
        for row in range(first, first + rows):
            (folder / f"c{number:03}" / f"{row:05}.png").write_bytes(png(row))
        first += rows


def images(folder: Path, sizes: Sequence[int]) -> Source:
    """A folder of images."""
    pictures(folder, sizes)
    return stoker.open(folder, size=SIDE)


_stores: list[Store] = []


def store() -> Store:
    """One store for many tests; `stop_store` ends it."""
    if not _stores:
        _stores.append(Store(tempfile.mkdtemp()).start())
    return _stores[0]


def stop_store() -> None:
    """End it, so that no test meets a process that it did not start."""
    while _stores:
        ended = _stores.pop()
        ended.close()
        shutil.rmtree(ended.root)


def access(store: Store) -> dict[str, str]:
    """What a client needs to know to use a simulated store."""
    return {"endpoint": store.endpoint, "region": "x", "access_key_id": "a", "secret_access_key": "b"}


def remote_images(folder: Path, sizes: Sequence[int]) -> Source:
    """The same images in a store, with a cache that holds about half of them."""
    where = store()
    prefix = f"{folder.name}-{next(_numbers)}"
    pictures(where.root / prefix, sizes)
    url = f"s3://{where.bucket}/{prefix}/"
    cached: dict[str, Any] = {"cache": folder / "cache", "cache_bytes": max(1 << 20, sum(sizes) * 2200)}
    return stoker.open(url, size=SIDE, store_options=access(where), **cached)


def remote_npy(folder: Path, sizes: Sequence[int]) -> Source:
    """The same shards in a store, with a cache."""
    from stoker.loader.source.npy_remote import RemoteNpySource

    where, prefix = store(), f"{folder.name}-{next(_numbers)}"
    npy(where.root / prefix, sizes).close()
    url = f"s3://{where.bucket}/{prefix}/*.npy"
    listed: Any = stoker.open(url, store_options=access(where), cache=folder / "cache")
    return RemoteNpySource(listed.store, block_rows=4)


def remote_parquet(folder: Path, sizes: Sequence[int]) -> Source:
    """The same files in a store, without a cache."""
    where, prefix = store(), f"{folder.name}-{next(_numbers)}"
    parquet(where.root / prefix, sizes).close()
    return stoker.open(f"s3://{where.bucket}/{prefix}/", store_options=access(where))


def remote_zarr(folder: Path, sizes: Sequence[int]) -> Source:
    """The same arrays in a store, images with their labels."""
    where, prefix = store(), f"{folder.name}-{next(_numbers)}"
    scans.zarr(where.root / prefix, sizes).close()
    url = f"s3://{where.bucket}/{prefix}"
    how: dict[str, Any] = {"sampling": "grid", "cache": folder / "cache", "store_options": access(where)}
    return stoker.open(f"{url}/vol/", patch=scans.PATCH, labels=f"{url}/lab/*.zarr", **how)


def remote_tiff(folder: Path, sizes: Sequence[int]) -> Source:
    """The same stacks in a store, without a cache."""
    where, prefix = store(), f"{folder.name}-{next(_numbers)}"
    scans.tiff(where.root / prefix, sizes).close()
    url = f"s3://{where.bucket}/{prefix}"
    how: dict[str, Any] = {"sampling": "grid", "store_options": access(where)}
    return stoker.open(f"{url}/vol/*.tif", patch=scans.PATCH, labels=f"{url}/lab/", **how)


_numbers = itertools.count()


def check_images(batch: dict[str, Any]) -> list[int]:
    """The numbers of a batch's images, after pixels and labels were compared with them."""
    numbers = [int(Path(key).stem) for key in batch["key"]]
    expected = np.stack([picture(number) for number in numbers])
    np.testing.assert_array_equal(np.asarray(batch["image"]), expected.transpose(0, 3, 1, 2))
    assert batch["label"].tolist() == [int(key[1:4]) for key in batch["key"]]
    return numbers


def check(batch: dict[str, Any]) -> list[int]:
    """The ids of a batch, after every other field was compared with what its id says."""
    if "image" in batch:
        return check_images(batch)
    if "patch" in batch:
        return scans.check(batch)
    if "tokens" in batch:
        return texts.check(batch)
    if "pulses" in batch:
        return _check_parquet(batch)
    got = {name: np.asarray(value) for name, value in batch.items()}
    expected = np.concatenate([records(int(i), 1) for i in got["id"]])
    for name in RECORD.names or ():
        np.testing.assert_array_equal(got[name], expected[name])
    return [int(i) for i in got["id"]]


def parquet(folder: Path, sizes: Sequence[int]) -> Source:
    """Files of scalar, fixed, ragged and text columns in row groups of four."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        ids = np.arange(first, first + rows)
        odd = pa.FixedSizeListArray.from_arrays(pa.array(records(first, rows)["odd"].ravel()), 3)
        pulses = pa.array([pulse(i) for i in ids.tolist()], pa.list_(pa.int16()))
        flags = pa.array([[value % 2 == 0 for value in pulse(i)] for i in ids.tolist()], pa.list_(pa.bool_()))
        columns = {"id": ids, "odd": odd, "pulses": pulses, "flags": flags, "name": [f"nr {i}" for i in ids.tolist()]}
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet", row_group_size=4)
        first += rows
    return stoker.open(folder)


def pulse(i: int) -> list[int]:
    """The ragged values of a row; some rows have none."""
    return [(i * 11 + k) % 3001 for k in range(i * 7 % 13)]


def _check_parquet(batch: dict[str, Any]) -> list[int]:
    ids = [int(i) for i in batch["id"]]
    np.testing.assert_array_equal(batch["odd"], [records(i, 1)["odd"][0] for i in ids])
    values, offsets = batch["pulses"]
    flags, same = batch["flags"]
    assert same is offsets
    assert flags.dtype is torch.bool
    for row, i in enumerate(ids):
        assert values[offsets[row] : offsets[row + 1]].tolist() == pulse(i)
        assert flags[offsets[row] : offsets[row + 1]].tolist() == [value % 2 == 0 for value in pulse(i)]
    assert batch["name"] == [f"nr {i}" for i in ids]
    return ids


KINDS: dict[str, Callable[[Path, Sequence[int]], Source]] = {
    "npy": npy,
    "parquet": parquet,
    "text": texts.padded,
    "packed text": texts.packed,
    "zarr": scans.zarr,
    "tiff": scans.tiff,
    "images": images,
    "remote images": remote_images,
    "remote npy": remote_npy,
    "remote parquet": remote_parquet,
    "remote zarr": remote_zarr,
    "remote tiff": remote_tiff,
}

SLOW = ("images", "remote images", "remote npy", "remote parquet", "remote zarr", "remote tiff", "zarr", "tiff")
"""Kinds with a file, or a request, for each row: the laws run over them with fewer examples (test_slow_laws.py)."""

"""Small volumes whose every voxel follows from the id of its patch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from stoker.loader.source import zarrs
from stoker.loader.source.interface import Source
from stoker.loader.source.open_volumes import open_volumes

PATCH = (2, 2, 2)


def line(first: int, patches: int) -> NDArray[np.uint16]:
    """A volume of patches in a row; voxel j of patch i is 8 i + j."""
    z, y, x = np.ogrid[:2, :2, : 2 * patches]
    found: NDArray[np.uint16] = ((first + x // 2) * 8 + z * 4 + y * 2 + x % 2).astype(np.uint16)
    return found


def label_of(image: NDArray[np.uint16]) -> NDArray[np.uint8]:
    return (image * 7 % 251).astype(np.uint8)


def write_zarr(path: Path, array: NDArray[Any], chunk: Sequence[int] = (2, 2, 2), *, compress: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    store = zarrs.create(path, array.shape, array.dtype, chunk, compress=compress)
    store[...].write(array).result()


def write_tiff(path: Path, array: NDArray[Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, array, **options)


def zarr(folder: Path, sizes: Sequence[int]) -> Source:
    """A Zarr array for each size, and its label."""
    first = 0
    for number, rows in enumerate(sizes):
        image = line(first, rows)
        write_zarr(folder / "vol" / f"{number:03}.zarr", image)
        write_zarr(folder / "lab" / f"{number:03}.zarr", label_of(image), (2, 1, 3), compress=True)
        first += rows
    return open_volumes(folder / "vol", patch=PATCH, labels=folder / "lab" / "*.zarr", sampling="grid")


def tiff(folder: Path, sizes: Sequence[int]) -> Source:
    """A TIFF stack for each size, every second one compressed, and its label."""
    first = 0
    for number, rows in enumerate(sizes):
        image = line(first, rows)
        how = {"compression": "zlib"} if number % 2 else {}
        write_tiff(folder / "vol" / f"{number:03}.tif", image, photometric="minisblack", **how)
        write_tiff(folder / "lab" / f"{number:03}.tif", label_of(image), photometric="minisblack")
        first += rows
    return open_volumes(folder / "vol", patch=PATCH, labels=folder / "lab", sampling="grid")


def check(batch: dict[str, Any]) -> list[int]:
    """The ids of a batch, after every voxel was compared with what its id says."""
    ids = batch["patch"][:, 0, 0, 0].numpy().astype(int) // 8
    expected = np.stack([line(int(i), 1) for i in ids])
    np.testing.assert_array_equal(batch["patch"], expected)
    np.testing.assert_array_equal(batch["label"], label_of(expected))
    np.testing.assert_array_equal(batch["corner"][:, :2], 0)
    assert (batch["corner"][:, 2] % 2 == 0).all()
    return [int(i) for i in ids]

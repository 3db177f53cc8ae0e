"""Patches of volumes: a block is a group of patches that lie near each other, read as one box and cut from it."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import DataError, NoDataError, OtherTypeError, UsageError
from stoker.loader.source import corners, foreground, paths, preprocess
from stoker.loader.source.blocks import Ints, SizedBlocks
from stoker.loader.source.interface import Batch, Field, Lease, Pick, Place, Reader, RemoteFigures, Skipped, Source
from stoker.loader.source.tier import TierReader
from stoker.loader.source.volume import Box, Volume, open_volume, spatial
from stoker.loader.source.volume_remote import Arrays

Sampling = Literal["uniform", "grid"]

CACHE = Path(".stoker/cache/volumes")
GROUP = 8
"""Patches that are cut from one box."""

_OPENING = 8


@dataclass(slots=True)
class _Group:
    """What was read for a block: the box around its patches, of the image and of each label."""

    corners: Ints
    low: Ints
    boxes: dict[str, NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return sum(box.nbytes for box in self.boxes.values())


class VolumeSource(Source):
    """Use `stoker.open("vol/*.zarr", patch=(72, 136, 136), labels="lab/*.zarr")`."""

    kind = "volumes"
    holds_blocks = True
    draws = True

    def __init__(
        self,
        images: Sequence[str],
        labels: Mapping[str, Sequence[str]],
        *,
        patch: tuple[int, ...],
        patches: int | None = None,
        sampling: Sampling = "uniform",
        foreground: float = 0.0,
        group: int = GROUP,
        missing: str = "raise",
        cache: str = str(CACHE),
        on_error: Literal["raise", "skip"] = "raise",
        stores: Sequence[Arrays] = (),
    ) -> None:
        self._state = {
            "images": list(images),
            "labels": {name: list(every) for name, every in labels.items()},
            "options": {
                "patch": patch, "patches": patches, "sampling": sampling, "foreground": foreground, "group": group,
                "missing": missing, "cache": cache, "on_error": on_error, "stores": stores,
            },
        }  # fmt: skip
        self._patch = patch
        self._sampling, self._share, self._group_size = sampling, foreground, group
        self._cache = Path(cache)
        self._stores = stores
        self._volumes: list[dict[str, Volume]] = []
        """Of each volume, the image ("patch") and its labels."""
        self._numbers: list[int] = []
        """The number of each volume among those that were named; volumes can be left out."""
        self._add_all(images, labels, missing == "fill", on_error)
        self._lay_out(patches)
        self._lock = threading.Lock()
        self._read, self._used = 0, 0
        self._foreground = _foreground_of(self._volumes, next(iter(labels), None), self._cache) if foreground else None

    def _add_all(self, images: Sequence[str], labels: Mapping[str, Sequence[str]], fill: bool, on_error: str) -> None:
        named = [
            {"patch": image, **{name: every[at] for name, every in labels.items()}} for at, image in enumerate(images)
        ]

        def attempt(one: dict[str, str]) -> dict[str, Volume] | DataError:
            try:
                return {name: self._opened(path, fill) for name, path in one.items()}
            except DataError as error:
                return error

        with ThreadPoolExecutor(_OPENING, "stoker-open") as pool:
            found = list(pool.map(attempt, named))
        for number, one in enumerate(found):
            try:
                if isinstance(one, DataError):
                    raise one
                self._check_volume(one)
            except DataError as error:
                if on_error == "raise":
                    raise
                self.skipped += (Skipped(error.path, error.row or 0, 0, error.reason),)
            else:
                self._volumes.append(one)
                self._numbers.append(number)
        if not self._volumes:
            raise NoDataError(f"none of {len(images)} volumes can be loaded; the first: {self.skipped[0].reason}")

    def _opened(self, path: str, fill: bool) -> Volume:
        arrays = next((arrays for arrays in self._stores if path in arrays), None)
        return open_volume(path, fill_missing=fill) if arrays is None else arrays.open(path, fill_missing=fill)

    def _check_volume(self, one: Mapping[str, Volume]) -> None:
        expected = self._volumes[0] if self._volumes else one
        for name, volume in one.items():
            if len(volume.shape) < len(self._patch):
                raise OtherTypeError(volume.path, f"has shape {volume.shape}; expected {len(self._patch)} axes or more")
            shape, first = spatial(volume, self._patch), expected[name]
            if any(side < part for side, part in zip(shape, self._patch, strict=True)):
                raise OtherTypeError(volume.path, f"has shape {shape}, which is smaller than the patch {self._patch}")
            if shape != spatial(one["patch"], self._patch):
                at = one["patch"]
                raise OtherTypeError(volume.path, f"has shape {volume.shape}; expected {at.shape}, as {at.path} has")
            if volume.dtype != first.dtype or self._channels(volume) != self._channels(first):
                here, there = (f"{v.dtype} with channels {self._channels(v)}" for v in (volume, first))
                raise OtherTypeError(volume.path, f"is {here}; expected {there}, as in {first.path}")

    def _channels(self, volume: Volume) -> tuple[int, ...]:
        return volume.shape[: len(volume.shape) - len(self._patch)]

    def _lay_out(self, patches: int | None) -> None:
        voxels = int(np.prod(self._patch, dtype=np.int64))
        shapes = [spatial(one["patch"], self._patch) for one in self._volumes]
        self._grids: dict[int, Ints] = {}
        sizes: list[int] = []
        owners: list[int] = []
        for number, shape in enumerate(shapes):
            if self._sampling == "grid":
                self._grids[number] = corners.grid(self._patch, shape)
                line = len(np.unique(self._grids[number][:, -1]))
                parts = [line] * (len(self._grids[number]) // line)
            else:
                count = patches or max(1, round(int(np.prod(shape, dtype=np.int64)) / voxels))
                full, rest = divmod(count, self._group_size)
                parts = [self._group_size] * full + [rest] * (rest > 0)
            sizes += parts
            owners += [number] * len(parts)
        self.blocks: SizedBlocks = SizedBlocks(sizes)
        self._owner = np.array(owners, np.int64)
        self._first_block = np.searchsorted(self._owner, np.arange(len(shapes) + 1))
        firsts = self.blocks.first(np.arange(self.blocks.count))
        self._starts = np.concatenate([firsts[self._first_block[:-1]], [self.blocks.rows]])
        self._lay_out_fields(shapes, max(sizes))

    def _lay_out_fields(self, shapes: Sequence[tuple[int, ...]], group: int) -> None:
        axes = len(self._patch)
        every = [
            Field(name, volume.dtype.newbyteorder("="), (*self._channels(volume), *self._patch))
            for name, volume in self._volumes[0].items()
        ]
        for field in every:
            try:
                torch.from_numpy(np.empty(0, field.dtype))
            except TypeError:
                raise UsageError(f"{field.name} is {field.dtype}, which torch has no type for") from None
        image, *labels = every
        number, corner = Field("volume", np.dtype(np.int64)), Field("corner", np.dtype(np.int64), (axes,))
        self.fields = (image, number, corner, *labels)
        row = sum(float(np.prod(field.shape, dtype=np.float64)) * field.dtype.itemsize for field in every)
        largest = max(float(np.prod(corners.reach(self._patch, shape))) for shape in shapes)
        self.row_bytes = row * max(1.0, largest / float(np.prod(self._patch)) / group)

    # ---- reading

    def draw(self, block: int, seed: int, epoch: int, lease: Lease) -> _Group:
        """Read the box around a group's patches, once, of the image and of each label."""
        at = self._corners(block, seed, epoch)
        low, high = at.min(axis=0), at.max(axis=0) + np.array(self._patch)
        found, read, used = {}, 0, 0
        for name, volume in self._volumes[int(self._owner[block])].items():
            box = self._box(volume, low, high)
            try:
                found[name] = volume.read(box)
            except DataError as error:
                row = int(self.blocks.first(np.array([block]))[0] - self._starts[int(self._owner[block])])
                raise type(error)(error.path, error.reason, row) from error
            read += volume.voxels_read(box)
            used += len(at) * int(np.prod((*self._channels(volume), *self._patch), dtype=np.int64))
        with self._lock:
            self._read += read
            self._used += used
        return _Group(at, low, found)

    def reader(self, ahead: Iterator[tuple[Place, Ints]], *, memory_bytes: int, threads: int) -> Reader | None:
        """Holds the stores open for a stream."""
        if not self._stores:
            return None
        return TierReader(self, [arrays.tier for arrays in self._stores], memory_bytes)

    def remote(self) -> RemoteFigures | None:
        """What reading the images' store took."""
        return self._stores[0].tier.figures() if self._stores else None

    def stack(self, loaded: Sequence[Any]) -> Sequence[Any]:
        """A window's groups, as they are."""
        return loaded

    def _box(self, volume: Volume, low: Ints, high: Ints) -> Box:
        inside = (slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
        return (*(slice(0, side) for side in self._channels(volume)), *inside)

    def _corners(self, block: int, seed: int, epoch: int) -> Ints:
        owner = int(self._owner[block])
        within = int(self.blocks.first(np.array([block]))[0] - self._starts[owner])
        count = int(self.blocks.sizes(np.array([block]))[0])
        if self._sampling == "grid":
            return self._grids[owner][within : within + count]
        shape = spatial(self._volumes[owner]["patch"], self._patch)
        key = (seed, epoch, self._numbers[owner], block - int(self._first_block[owner]))
        # A patch has all channels, so it holds a voxel of any of them.
        voxels = self._foreground(owner)[:, -len(self._patch) :] if self._foreground else None
        return corners.draw(self._patch, shape, count, key, voxels, self._share)

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """Cut each patch from its group's box, straight into the batch's buffers."""
        batch: Batch = {}
        for field in self.fields:
            batch[field.name] = lease(len(pick.rows), field.shape, field.dtype)[0]
        owner = np.searchsorted(self._starts, pick.rows, side="right") - 1
        batch["volume"].numpy()[:] = np.array(self._numbers)[owner]
        where = batch["corner"].numpy()
        groups = [group for window in pick.held for group in window]
        into = {name: batch[name].numpy() for name in self._volumes[0]}
        for i, (slot, inner) in enumerate(zip(pick.slot.tolist(), pick.inner.tolist(), strict=True)):
            group: _Group = groups[slot]
            where[i] = group.corners[inner]
            start = group.corners[inner] - group.low
            inside: Any = (..., *(slice(int(a), int(a) + part) for a, part in zip(start, self._patch, strict=True)))
            for name, out in into.items():
                out[i] = group.boxes[name][inside]
        return batch

    @property
    def amplification(self) -> float | None:  # type: ignore[override]
        """Voxels read and decoded ÷ voxels of the patches that were cut from them."""
        return self._read / self._used if self._used else None

    # ---- what it is

    def cached(
        self, fn: Callable[[NDArray[Any]], NDArray[Any]], *, key: str, cache: str | os.PathLike[str] | None = None
    ) -> "VolumeSource":
        """The same source with `fn` applied to every image volume, once: results are kept on disk under `key`.

        `fn` takes a whole volume and returns one of the same shape. Change `key` when `fn` changes. What was done stays
        done when the run is stopped; labels are left as they are.
        """
        folder = paths.at_home(cache).absolute() if cache is not None else self._cache
        images = [one["patch"] for one in self._volumes]
        made = preprocess.run(images, fn, key=key, folder=folder, patch=self._patch)
        labels = {name: [one[name].path for one in self._volumes] for name in self._volumes[0] if name != "patch"}
        source = VolumeSource(made, labels, **self._state["options"])  # type: ignore[arg-type]
        source._numbers = list(self._numbers)  # the same volumes, so the same corners
        return source

    def locate(self, row: int) -> tuple[str, int]:
        """The volume of a row, and the number of its patch there."""
        owner = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._volumes[owner]["patch"].path, row - int(self._starts[owner])

    def paths(self) -> list[str]:
        """The image volumes, in order."""
        return [one["patch"].path for one in self._volumes]

    def file_starts(self) -> Ints:
        """The first row of each volume, and the number of rows at the end."""
        return self._starts

    def fingerprint(self) -> dict[str, Any]:
        """Volumes, their shapes and types, and how patches are drawn."""
        how = f"{self._sampling} {self._patch} in groups of {self._group_size}"
        share = f", foreground {self._share}" if self._share else ""
        fields = ", ".join(f"{field.name} {field.dtype}{list(field.shape)}" for field in self.fields)
        files = [
            (one["patch"].path, int(np.prod(one["patch"].shape, dtype=np.int64)), int(rows))
            for one, rows in zip(self._volumes, np.diff(self._starts), strict=True)
        ]
        return paths.fingerprint(self.kind, f"{how}{share}: {fields}", files)

    def __getstate__(self) -> dict[str, Any]:
        return {**self._state, "numbers": self._numbers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["images"], state["labels"], **state["options"])  # type: ignore[misc]
        self._numbers = state["numbers"]


def _foreground_of(volumes: Sequence[Mapping[str, Volume]], name: str | None, cache: Path) -> Callable[[int], Ints]:
    """Foreground voxels of a volume, by its number."""
    assert name is not None
    index = foreground.Index(cache)
    return lambda owner: index.of(volumes[owner][name])

"""Zarr arrays in a store: what a box needs of their objects is brought, and decoded by tensorstore from memory."""

import hashlib
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptError, MissingExtraError, NoDataError, TruncatedError, UsageError
from stoker.loader.source import listing
from stoker.loader.source.parts import Object, Parts, cut, soon
from stoker.loader.source.shards import Index, Sharding, plain, sharding_of
from stoker.loader.source.tier import Store, Tier
from stoker.loader.source.tiff_remote import RemoteTiff
from stoker.loader.source.volume import TIFF, Box, Volume, check_array, misread, told

METADATA = (".zarray", "zarr.json")
_ROOT = "array/"
_INDEXES = 256
"""Of shards, kept in memory."""


class Arrays:
    """The Zarr arrays and TIFF stacks of one store, by their addresses."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tier = Tier(store, "volumes")
        pieces, objects = cut(store.listed)
        self.tier.lay_out(pieces)
        keys = store.listed.keys.to_pylist()
        known = arrays_in(keys)
        self._objects: dict[str, dict[str, Object]] = {}
        for one, key in zip(objects, keys, strict=True):
            array = next((above for above in _above(key) if above in known), key)
            self._objects.setdefault(self.address(array), {})[key[len(array) :].lstrip("/")] = one

    def address(self, array: str) -> str:
        """Of an array, from its key."""
        return f"{self.store.remote.url.rstrip('/')}/{array}".rstrip("/")

    def open(self, address: str, *, fill_missing: bool) -> Volume:
        """One of them."""
        objects = self._objects[address]
        if "" in objects:
            return RemoteTiff(address, self.tier, objects[""])
        return RemoteZarr(address, self.tier, objects, fill_missing=fill_missing)

    def __contains__(self, address: str) -> bool:
        return address in self._objects

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def find(addresses: Sequence[str], **how: Any) -> tuple[list[str], Arrays]:
    """The volumes of an address, a folder, a glob or a list of these; sorted by name. `how` the store is asked."""
    root, names = listing.root_of(one if _is_object(one) else f"{one.rstrip('/')}/" for one in addresses)
    store = listing.opened(root, "volumes", names, **how)
    keys = store.listed.keys.to_pylist()
    arrays = arrays_in(keys)
    stacks = {key for key in keys if _is_tiff(key) and arrays.isdisjoint(_above(key))}
    wanted = {one for one in arrays | stacks if any(_is_meant(one, name.rstrip("/")) for name in names)}
    _check_groups(keys, names, root)
    if not wanted:
        raise NoDataError(f"no volume matches {', '.join(addresses)}; expected Zarr arrays or {TIFF[0]} files")
    rows = [row for row, key in enumerate(keys) if key in wanted or any(one in wanted for one in _above(key))]
    found = Arrays(replace(store, listed=store.listed.take(np.array(rows, np.int64))))
    return sorted(map(found.address, wanted)), found


def _is_object(address: str) -> bool:
    """True of the address of one object, and of a pattern; that of an array is a folder's."""
    return _is_tiff(address) or listing.is_pattern(address.rstrip("/").rpartition("/")[2])


def _is_tiff(key: str) -> bool:
    return key.lower().endswith(TIFF)


def _check_groups(keys: Sequence[str], names: Sequence[str], root: str) -> None:
    """Refuse a group that was named as if it were an array: its arrays may be of several resolutions."""
    every, arrays = set(keys), arrays_in(keys)
    for name in (one.rstrip("/") for one in names if not listing.is_pattern(one)):
        folder = f"{name}/" if name else ""
        if f"{folder}.zgroup" in every and name not in arrays:
            inside = sorted(one for one in arrays if one.startswith(folder))
            first = f"{root}{inside[0]}" if inside else f"{root}{folder}0"
            raise UsageError(f"{root}{name} is a group of arrays; open one of them, such as {first}")


def arrays_in(keys: Sequence[str]) -> set[str]:
    """The folders that hold an array's metadata."""
    return {key.rpartition("/")[0] for key in keys if key.rpartition("/")[2] in METADATA}


def _is_meant(array: str, name: str) -> bool:
    if listing.is_pattern(name):
        return listing.pattern(name).fullmatch(array) is not None
    return name in (array, array.rpartition("/")[0])


def _above(key: str) -> Iterator[str]:
    """The folders of a key, the nearest first."""
    while key:
        key = key.rpartition("/")[0]
        yield key


class RemoteZarr(Volume):
    """An array whose chunks, or shards, are objects of a store."""

    def __init__(self, path: str, tier: Tier, objects: dict[str, Object], *, fill_missing: bool = False) -> None:
        try:
            import tensorstore
        except ImportError as error:
            raise MissingExtraError("tensorstore", "volumes") from error
        self.path = path
        self._tensorstore, self._tier, self._objects, self._fill = tensorstore, tier, objects, fill_missing
        self._name = next(name for name in METADATA if name in objects)
        with tier.held():
            self._metadata = Parts(tier, objects[self._name]).read(0, objects[self._name].nbytes)
        self._sharding: Sharding | None = None
        if self._name != METADATA[0]:
            check_array(path, self._name, self._metadata.decode(errors="replace"), [])
            self._sharding = sharding_of(self._metadata)
        self._mine = threading.local()
        store = self._opened()[1]
        self.shape = tuple(store.shape)
        self.dtype = np.dtype(store.dtype.numpy_dtype)
        self.chunk, self._grid = tuple(store.chunk_layout.read_chunk.shape), tuple(store.chunk_layout.write_chunk.shape)
        self._separator, self._prefix = _key_encoding(path, self._name, self._metadata)
        self._indexes: dict[str, Index] = {}

    def _opened(self) -> tuple[Any, Any]:
        """The thread's own place in memory, and the array as seen there."""
        if not hasattr(self._mine, "opened"):
            context = self._tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
            place = self._tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
            metadata = self._metadata if self._sharding is None else plain(self._metadata)
            place.write(_ROOT + self._name, metadata).result()
            spec = {
                "driver": "zarr" if self._name == METADATA[0] else "zarr3",
                "kvstore": {"driver": "memory", "path": _ROOT},
                "fill_missing_data_reads": self._fill,
            }
            try:
                array = self._tensorstore.open(spec, open=True, read=True, context=context).result()
            except ValueError as error:
                raise CorruptError(self.path, f"cannot be opened as Zarr ({told(error)})") from error
            self._mine.opened = (place, array)
        found: tuple[Any, Any] = self._mine.opened
        return found

    def read(self, box: Box) -> NDArray[Any]:
        """The voxels of a box; a chunk that is not there is an error, unless it is to be filled."""
        place, array = self._opened()
        wanted = {key: number for key, number in self._keys(box) if key in self._objects}
        with self._tier.held():
            try:
                for key, data in self._brought(wanted, box):
                    place.write(_ROOT + key, data).result()
                found: NDArray[Any] = array[box].read(order="C").result()
            except ValueError as error:
                raise misread(self.path, error) from error
            finally:
                for key in wanted:
                    place.write(_ROOT + key, None).result()
        return found

    def _brought(self, wanted: Mapping[str, tuple[int, ...]], box: Box) -> Iterator[tuple[str, bytes]]:
        """What a box needs of its objects: all of each, or some chunks of a shard."""
        if self._sharding is None:
            whole = {key: Parts(self._tier, self._objects[key]) for key in wanted}
            soon(self._tier, [(own, 0, self._objects[key].nbytes) for key, own in whole.items()])
            for key, own in whole.items():
                yield key, own.read(0, self._objects[key].nbytes)
            return
        sharding = self._sharding
        parts = {key: Parts(self._tier, self._objects[key]) for key in wanted}
        known = dict(self._indexes)
        indexes = known | self._look_up({key: own for key, own in parts.items() if key not in known}, sharding)
        chunks = {
            key: list(sharding.needed(self.path, indexes[key], number, box, self._objects[key].nbytes))
            for key, number in wanted.items()
        }
        soon(self._tier, [(parts[key], one.start, one.stop) for key, every in chunks.items() for one in every])
        for key, every in chunks.items():
            yield key, sharding.only({one.place: parts[key].read(one.start, one.stop) for one in every})

    def _look_up(self, shards: Mapping[str, Parts], sharding: Sharding) -> dict[str, Index]:
        """Read the indexes of shards."""
        places = {key: sharding.index_at(self._objects[key].nbytes) for key in shards}
        for key, (start, stop) in places.items():
            if start < 0 or stop > self._objects[key].nbytes:
                raise TruncatedError(self.path, f"its shard {key} is shorter than its index")
        soon(self._tier, [(shards[key], *place) for key, place in places.items()])
        found = {key: sharding.parse(self.path, shards[key].read(*place)) for key, place in places.items()}
        self._indexes = found if len(self._indexes) > _INDEXES else {**self._indexes, **found}
        return found

    def _keys(self, box: Box) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The objects that a box lies in, and their numbers along the axes."""
        sides = [range(cut.start // side, -(-cut.stop // side)) for cut, side in zip(box, self._grid, strict=True)]
        for number in itertools.product(*sides):
            yield self._prefix + self._separator.join(map(str, number)), number

    def identity(self) -> str:
        """The address, the metadata, and the tags of all objects."""
        listed = self._tier.store.listed
        stamps = [(key, listed.tag(one.row), one.nbytes) for key, one in sorted(self._objects.items())]
        return hashlib.sha256(repr((self.path, self._metadata, stamps)).encode()).hexdigest()[:32]


def _key_encoding(path: str, name: str, metadata: bytes) -> tuple[str, str]:
    """What stands between the numbers of a chunk in its key, and before them."""
    said = json.loads(metadata)
    if name == METADATA[0]:
        return said.get("dimension_separator", "."), ""
    encoding = said.get("chunk_key_encoding", {})
    kind = encoding.get("name", "default") if isinstance(encoding, dict) else encoding
    separator = (encoding.get("configuration") or {}).get("separator") if isinstance(encoding, dict) else None
    if kind == "default":
        separator = separator or "/"
        return separator, f"c{separator}"
    if kind == "v2":
        return separator or ".", ""
    raise UsageError(f"{path} names its chunks as {kind!r} says; expected default or v2")

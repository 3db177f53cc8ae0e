"""Zarr arrays of a store: found for a plan, and read box by box while it is carried out."""

from collections.abc import Sequence

from stoker.loader.source.volume import Volume
from stoker.loader.source.volume_remote import Arrays, find
from stoker.pack.plan import SourceFile, stored_stamp


class StoredVolumes:
    """Arrays at addresses, in folders, or that match patterns."""

    def __init__(self, given: Sequence[str]) -> None:
        self._arrays: Arrays
        self.names, self._arrays = find(given)
        listed = self._arrays.store.listed
        self._objects: dict[str, list[tuple[str, int, str]]] = {name: [] for name in self.names}
        for row in range(len(listed)):
            array, name = self._array_of(listed.address(row))
            self._objects[array].append((name, listed.object_bytes(row), listed.tag(row)))

    def _array_of(self, address: str) -> tuple[str, str]:
        """The array that an object is of, and what it is called in it."""
        array = address
        while array not in self._objects:
            array, is_below, _ = array.rpartition("/")
            assert is_below, address
        return array, address[len(array) :]

    def nbytes(self, name: str) -> int:
        """The size of all objects of an array."""
        return sum(size for _, size, _ in self._objects[name])

    def file(self, name: str, rows: int | None) -> SourceFile:
        """An array as it was listed."""
        return SourceFile(name, self.nbytes(name), rows, stored_stamp(*sorted(self._objects[name])))

    def volume(self, name: str, *, fill_missing: bool = False) -> Volume:
        """An array, read where it is."""
        return self._arrays.open(name, fill_missing=fill_missing)

    def stop(self) -> None:
        """End all requests; whoever waits for one is told."""
        self._arrays.tier.stop()

"""What a store's listing said: key, size and tag of every object, in key order."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.errors import ChecksumError, CorruptError, DataError, EmptyFileError, TruncatedError
from stoker.loader.source.blocks import Ints

_MD5 = "^[0-9a-f]{32}$"
_VERSION = b"1"
_HASHED = 1 << 16


@dataclass(frozen=True)
class Manifest:
    """Objects below `url`. Row i of the source is object i; `tags` are ETags without their quotes."""

    url: str
    keys: Any
    sizes: Ints
    tags: Any

    @classmethod
    def of(cls, url: str, listed: Iterable[Mapping[str, Any]]) -> "Manifest":
        """From what a listing gave: `path`, `size` and `e_tag` of each object."""
        found = sorted({str(o["path"]): (str(o["path"]), int(o["size"]), tag_of(o)) for o in listed}.values())
        keys, sizes, tags = zip(*found, strict=True) if found else ((), (), ())
        return cls(url, pa.array(keys, pa.large_string()), np.array(sizes, np.int64), pa.array(tags, pa.large_string()))

    def __len__(self) -> int:
        return len(self.sizes)

    def key(self, row: int) -> str:
        """The object's key, below `url`."""
        return str(self.keys[row].as_py())

    def tag(self, row: int) -> str:
        """The object's ETag; empty if the store gave none."""
        return str(self.tags[row].as_py())

    def address(self, row: int) -> str:
        """The object's whole address, for people."""
        return f"{self.url.rstrip('/')}/{self.key(row)}"

    def addresses(self, rows: Ints) -> list[str]:
        """Of several objects."""
        home = self.url.rstrip("/")
        return [f"{home}/{key}" for key in self.keys.take(rows).to_pylist()]

    def span(self, row: int) -> tuple[str, int, int]:
        """The object's key, and where it begins and ends."""
        return self.key(row), 0, int(self.sizes[row])

    def object_bytes(self, row: int) -> int:
        """The object's size."""
        return int(self.sizes[row])

    def take(self, rows: Ints) -> "Manifest":
        """Only these objects."""
        index = pa.array(rows)
        return Manifest(self.url, self.keys.take(index), self.sizes[rows], self.tags.take(index))

    def lacking(self, keys: Sequence[str]) -> list[str]:
        """Those of a number of keys that are not in it."""
        known = set(self.keys.to_pylist())
        return [key for key in keys if key not in known]

    def joined(self, more: "Manifest") -> "Manifest":
        """With other objects below the same address."""
        keys, tags = (pa.concat_arrays(pair) for pair in ((self.keys, more.keys), (self.tags, more.tags)))
        whole = Manifest(self.url, keys, np.concatenate([self.sizes, more.sizes]), tags)
        return whole.take(np.unique(keys.to_numpy(zero_copy_only=False).astype(str), return_index=True)[1])

    def has_md5(self, row: int) -> bool:
        """True if the tag is the MD5 of the object: not of an upload in parts, nor of another kind of store."""
        return bool(self._md5s[row])

    @cached_property
    def _md5s(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = pc.match_substring_regex(self.tags, _MD5).to_numpy(zero_copy_only=False)
        return found

    def wrong(self, row: int, data: Any) -> DataError | None:
        """Why a body is not the object that was listed; None if it is."""
        size, expected = len(data), int(self.sizes[row])
        if size != expected:
            return TruncatedError(self.address(row), f"{size} bytes arrived; {expected} were listed")
        if self.has_md5(row) and (seen := _md5(data)) != self.tag(row):
            return ChecksumError(self.address(row), f"its MD5 is {seen}; {self.tag(row)} was listed")
        return None

    def empty(self, row: int) -> DataError | None:
        """An error for an object without a byte."""
        return None if self.sizes[row] else EmptyFileError(self.address(row), "the object is empty; expected an image")

    def digest(self) -> str:
        """What tells these objects from others: keys and sizes, wherever they lie."""
        lengths = pc.binary_length(self.keys).to_numpy()
        found = hashlib.sha256(lengths.astype(np.int64).tobytes() + self.sizes.tobytes())
        for at in range(0, len(self), _HASHED):
            found.update("".join(self.keys[at : at + _HASHED].to_pylist()).encode())
        return found.hexdigest()[:32]

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        table = pa.table({"key": self.keys, "size": self.sizes, "tag": self.tags})
        table = table.replace_schema_metadata({"stoker": _VERSION, "url": self.url.encode()})
        part = path.with_name(f"{path.name}.part")
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Manifest":
        """Read it back; a damaged one is an error."""
        try:
            table = pq.read_table(path, page_checksum_verification=True)
            meta = table.schema.metadata or {}
            if meta.get(b"stoker") != _VERSION:
                raise CorruptError(str(path), f"is of version {meta.get(b'stoker')!r}; expected {_VERSION!r}")
            columns = [table[name].combine_chunks() for name in ("key", "size", "tag")]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise CorruptError(str(path), f"the listing cannot be read ({error}); delete it") from error
        return cls(meta[b"url"].decode(), columns[0], columns[1].to_numpy(), columns[2])


def tag_of(meta: Mapping[str, Any]) -> str:
    """What changes when an object does: its ETag; of a server that has none, the time of its last change."""
    tag = (meta.get("e_tag") or "").strip('"')
    changed: Any = meta.get("last_modified")
    return tag or (f"changed {changed.isoformat()}" if hasattr(changed, "isoformat") else "")


def _md5(data: Any) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def short_digest(*parts: str) -> str:
    """A file name for anything: safe, whatever an untrusted key holds."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

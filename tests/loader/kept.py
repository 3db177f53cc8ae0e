"""What a cache holds on disk, and ways to harm it."""

from pathlib import Path
from typing import NamedTuple

from stoker.loader.segments import parse


class Kept(NamedTuple):
    """One object in a segment, with what proves it."""

    path: Path
    offset: int
    size: int
    name: int

    def read(self) -> bytes:
        """Its bytes."""
        return self.path.read_bytes()[self.offset : self.offset + self.size]

    def overwrite(self, body: bytes) -> None:
        """Put other bytes in its place."""
        whole = bytearray(self.path.read_bytes())
        whole[self.offset : self.offset + len(body)] = body
        self.path.write_bytes(whole)


def segments(cache: Path) -> list[Path]:
    """Files with objects in them."""
    return sorted(path for path in cache.glob("*/segments/*") if path.name != "index")


def kept(cache: Path) -> list[Kept]:
    """The objects that an index leads to, by name; the last entry of a name counts."""
    found = {}
    for index in cache.glob("*/segments/index"):
        for _, size, name, segment, offset, _ in parse(index.read_bytes())[0].tolist():
            path = index.with_name(f"{segment:016x}")
            if path.exists():
                found[index, name] = Kept(path, offset, size, name)
    return [one for _, one in sorted(found.items())]


def used_bytes(cache: Path) -> int:
    """What all of them take on disk."""
    return sum(path.stat().st_size for path in segments(cache))

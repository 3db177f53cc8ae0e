"""What a plan is made of: files of this machine here, objects of a store in `in_store`; only parts of them are read."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from stoker.loader.source import paths
from stoker.loader.source.volume import Volume, open_volume
from stoker.pack.plan import SourceFile, source_file


class Found(Protocol):
    """What was named, in the order in which it is packed."""

    names: list[str]
    """Paths, or addresses."""

    def nbytes(self, name: str) -> int:
        """The size of one."""

    def file(self, name: str, rows: int | None) -> SourceFile:
        """One as it is now."""

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """One, to be read in parts."""

    def each(self, *, first: int = 0, last: int = 0) -> Iterator[tuple[str, IO[bytes]]]:
        """All of them, one open at a time; that so many bytes of their beginning, or end, will be read is known."""

    def read(self, names: Sequence[str]) -> Iterator[Any]:
        """The whole content of some, one after the other."""


class FoundVolumes(Protocol):
    """Volumes that were named, in the order in which they are packed."""

    names: list[str]

    def file(self, name: str, rows: int | None) -> SourceFile:
        """One as it is now."""

    def volume(self, name: str) -> Volume:
        """One, to be read box by box."""


class Here:
    """Files of this machine."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def nbytes(self, name: str) -> int:
        """The size of a file."""
        return paths.nbytes(name)

    def file(self, name: str, rows: int | None) -> SourceFile:
        """A file as it is now."""
        return source_file(name, rows)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file, to be read in parts."""
        paths.nbytes(name)  # one that is not there is named
        with Path(name).open("rb") as file:
            yield file

    def each(self, *, first: int = 0, last: int = 0) -> Iterator[tuple[str, IO[bytes]]]:
        """All files, one open at a time."""
        for name in self.names:
            with self.open(name) as file:
                yield name, file

    def read(self, names: Sequence[str]) -> Iterator[Any]:
        """The whole content of some files, one after the other."""
        return (Path(name).read_bytes() for name in names)

    def volume(self, name: str) -> Volume:
        """A file, or a folder, as a volume."""
        return open_volume(name)

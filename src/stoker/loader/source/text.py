"""Text as rows of tokens: packed to one length, or a row per document, padded to the longest of its batch."""

import hashlib
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptError, NoDataError, TruncatedError
from stoker.loader.source import paths, tokens
from stoker.loader.source.blocks import EvenBlocks, Ints
from stoker.loader.source.interface import Batch, Field, Lease, Pick, Skipped, Source
from stoker.loader.source.tokenise import Spent

RAM_BYTES = 1 << 28
"""Tokens of up to so many bytes are held in memory; more are mapped."""

Long = Literal["cut", "split"]

_BLOCK_BYTES = 1 << 16
_CHECK_S = 0.2
_INT64 = np.dtype(np.int64)


class TextSource(Source):
    """Tokens in memory or mapped. Use `stoker.open("x.jsonl", tokenizer="tokenizer.json", length=512, pack=True)`."""

    kind = "text"
    pads = True

    def __init__(
        self,
        files: Sequence[str],
        found: Sequence[tokens.TokenFile],
        *,
        length: int,
        pack: bool,
        long: Long = "cut",
        pad: int = 0,
        spent: Spent | None = None,
        block_rows: int | None = None,
    ) -> None:
        self._files, self._found = list(files), list(found)
        self._length, self._pack, self._long, self._pad = length, pack, long, pad
        self._block_rows = block_rows
        self.spent = spent or Spent()
        self.skipped = tuple(
            Skipped(file, row or 0, rows, reason)
            for file, one in zip(files, found, strict=True)
            for row, rows, reason in one.about["skipped"]
        )
        self._first = np.concatenate([[0], np.cumsum([one.tokens for one in found])]).astype(np.int64)
        """The first token of each file, of all tokens."""
        self._documents = np.concatenate([[0], np.cumsum([len(one.offsets) - 1 for one in found])]).astype(np.int64)
        starts = [one.offsets[:-1] + first for one, first in zip(found, self._first, strict=False)]
        self._offsets = np.concatenate([*starts, self._first[-1:]])
        """The first token of each document, and the number of tokens at the end."""
        if not self._first[-1]:
            why = "".join(f"; the first left out: {one.path}: {one.reason}" for one in self.skipped[:1])
            raise NoDataError(f"there is no text in {len(files)} files, the first of which is {files[0]}{why}")
        self._lay_out(self._rows())
        self._open()

    def _rows(self) -> int:
        if self._pack:
            return -(-int(self._first[-1]) // self._length)
        sizes = np.diff(self._offsets)
        per_document = np.maximum(1, -(-sizes // self._length))
        if self._long == "split" and bool((per_document > 1).any()):
            document = np.repeat(np.arange(len(sizes)), per_document)
            ends = np.cumsum(per_document)
            within = np.arange(ends[-1]) - np.repeat(ends - per_document, per_document)
            self._begin = self._offsets[document] + within * self._length
            self._size = np.minimum(self._length, self._offsets[document + 1] - self._begin)
            self._row_starts = np.concatenate([[0], ends])[self._documents]
            return len(document)
        longer = int((sizes > self._length).sum())
        if longer:
            warnings.warn(
                f"{longer} of {len(sizes)} documents are longer than {self._length} tokens (the longest has "
                f"{int(sizes.max())}) and are cut there; long='split' makes several rows of them, pack=True packs all",
                stacklevel=6,  # the line of the user that opened it
            )
        self._begin, self._size = self._offsets[:-1], np.minimum(sizes, self._length)
        self._row_starts = self._documents
        return len(sizes)

    def _lay_out(self, rows: int) -> None:
        if self._pack:
            width = self._length
            self._row_starts = -(-self._first // self._length)
            self.fields = (Field("tokens", _INT64, (width,)), Field("segment", _INT64, (width,)))
            self.row_bytes = 2.0 * width * _INT64.itemsize
        else:
            width = max(1, round(float(self._size.mean())))
            self.fields = (Field("tokens", _INT64, ragged=True), Field("lengths", _INT64))
            self.row_bytes = float((width + 1) * _INT64.itemsize)
        size = self._block_rows or max(1, _BLOCK_BYTES // (width * self._found[0].dtype.itemsize))
        self.blocks = EvenBlocks(rows, size)
        self._padding = [0, 0]

    def _open(self) -> None:
        """Hold the tokens in memory if they are few; else map them."""
        self._lock = threading.Lock()
        self._check_due_s = 0.0
        self._maps = [one.map() for one in self._found]
        self._mapped = sum(one.nbytes for one in self._maps) > RAM_BYTES
        widest = np.dtype(max((one.dtype for one in self._found), key=lambda dtype: dtype.itemsize))
        if not self._mapped:
            for number, one in enumerate(self._found):
                self._compare(number, range(len(one.checks)))
            self._maps = [np.concatenate([one.astype(widest, copy=False) for one in self._maps])]
        step = tokens.CHECK_BYTES
        self._verified = [np.zeros(-(-one.nbytes // step) if self._mapped else 0, np.bool_) for one in self._maps]

    # ---- batches

    def batch_bytes(self, rows: int) -> float:
        """Memory of a batch: not packed, each of its rows may have to be padded to the longest of all."""
        return rows * self.row_bytes if self._pack else rows * (float(self._size.max()) + 1) * _INT64.itemsize

    def gather(self, pick: Pick, lease: Lease) -> Batch:
        """Tokens of all rows in one step per file, straight into the batch's buffers."""
        return self._packed(pick.rows, lease) if self._pack else self._padded(pick.rows, lease)

    def _packed(self, rows: Ints, lease: Lease) -> Batch:
        begin = rows * self._length
        size = np.minimum(self._length, self._first[-1] - begin)
        batch = {name: lease(len(rows), (self._length,), _INT64)[0] for name in ("tokens", "segment")}
        self._fill(batch["tokens"].numpy(), begin, size)
        segment = batch["segment"].numpy()
        self._number(segment, begin, size)
        if int(size.min()) < self._length:
            segment[np.arange(self._length) >= size[:, None]] = 0
        self._count(size, segment.size)
        return batch

    def _number(self, segment: NDArray[np.int64], begin: Ints, size: Ints) -> None:
        """Which document of the row each token belongs to, from 1 on."""
        first = np.searchsorted(self._offsets, begin, side="right")
        last = np.searchsorted(self._offsets, begin + size, side="left")
        within = np.maximum(0, last - first)
        row = np.repeat(np.arange(len(begin)), within)
        document = np.repeat(first - np.cumsum(within) + within, within) + np.arange(len(row))
        segment[:] = 0
        at = self._offsets[document] - begin[row]
        # Documents without a token begin where the next one does, and count once with it.
        segment[row, at] = 1
        segment[:, 0] = 1
        np.cumsum(segment, axis=1, out=segment)

    def _padded(self, rows: Ints, lease: Lease) -> Batch:
        begin, size = self._begin[rows], self._size[rows]
        width = max(1, int(size.max()))
        found = lease(len(rows), (width,), _INT64)[0]
        lengths = lease(len(rows), (), _INT64)[0]
        lengths.numpy()[:] = size
        self._fill(found.numpy(), begin, size)
        self._count(size, len(rows) * width)
        return {"tokens": found, "lengths": lengths}

    def _fill(self, out: NDArray[np.int64], begin: Ints, size: Ints) -> None:
        """Put `size[i]` tokens from `begin[i]` on into row i, and padding behind them."""
        at = begin[:, None] + np.arange(out.shape[1])
        there = None if int(size.min()) == out.shape[1] else np.arange(out.shape[1]) < size[:, None]
        if not self._mapped:
            np.minimum(at, self._first[-1] - 1, out=at)
            out[...] = np.take(self._maps[0], at)
        else:
            self._fill_mapped(out, at, begin, size)
        if there is not None:
            out[~there] = self._pad

    def _fill_mapped(self, out: NDArray[np.int64], at: Ints, begin: Ints, size: Ints) -> None:
        if time.monotonic() > self._check_due_s:
            self._check_files()
        for number in range(len(self._maps)):
            low, high = int(self._first[number]), int(self._first[number + 1])
            mine = (begin < high) & (begin + size > low)
            if not mine.any():
                continue
            rows = np.flatnonzero(mine)
            self._verify(number, np.maximum(begin[rows], low) - low, np.minimum(begin[rows] + size[rows], high) - low)
            local = at[rows] - low
            if bool((local[:, 0] >= 0).all()) and int(local[:, -1].max()) < high - low:
                out[rows] = np.take(self._maps[number], local)
                continue
            here = (local >= 0) & (local < high - low)
            part = out[rows]
            part[here] = np.take(self._maps[number], local[here])
            out[rows] = part

    def _verify(self, number: int, begin: Ints, end: Ints) -> None:
        """Compare with its checksum what is read for the first time."""
        step = tokens.CHECK_BYTES // self._found[number].dtype.itemsize
        low, high = begin // step, np.maximum(begin, end - 1) // step
        wanted = np.unique(np.concatenate([low + more for more in range(int((high - low).max()) + 1)]))
        wanted = wanted[wanted < len(self._verified[number])]
        fresh = wanted[~self._verified[number][wanted]]
        if len(fresh):
            self._compare(number, fresh.tolist())
            self._verified[number][fresh] = True

    def _compare(self, number: int, blocks: Sequence[int]) -> None:
        """Compare parts of a file with their checksums; one of the cache that is damaged must not be met again."""
        one = self._found[number]
        try:
            one.verify(self._maps[number], blocks)
        except CorruptError as error:
            if one.path == self._files[number]:
                raise
            Path(one.path).unlink(missing_ok=True)
            raise CorruptError(
                error.path, f"{error.reason}; it is removed now: open the text again, to have it made anew", error.row
            ) from error

    def _check_files(self) -> None:
        """Refuse files that were cut short: reading a mapping past the end of its file ends the process."""
        for one in self._found:
            with suppress(FileNotFoundError):  # what is mapped stays readable when its name is gone
                if Path(one.path).stat().st_size < one.size:
                    raise TruncatedError(one.path, "was cut short while in use")
        self._check_due_s = time.monotonic() + _CHECK_S

    def _count(self, size: Ints, elements: int) -> None:
        with self._lock:
            self._padding[0] += elements - int(size.sum())
            self._padding[1] += elements

    @property
    def padding_share(self) -> float | None:  # type: ignore[override]
        """Of what was gathered, the share of tokens that are padding."""
        return self._padding[0] / self._padding[1] if self._padding[1] else None

    def lengths(self, pick: Pick) -> Ints:
        """The tokens of each row."""
        found: Ints = np.full(len(pick.rows), self._length) if self._pack else self._size[pick.rows]
        return found

    # ---- what it is

    def locate(self, row: int) -> tuple[str, int]:
        """The file of a row's first token, and the number of its document there."""
        begin = row * self._length if self._pack else int(self._begin[row])
        document = int(np.searchsorted(self._offsets[:-1], begin, side="right")) - 1
        document = row if not self._pack and self._row_starts is self._documents else document
        file = int(np.searchsorted(self._documents, document, side="right")) - 1
        return self._files[file], document - int(self._documents[file])

    def paths(self) -> list[str]:
        """The files of text, in order."""
        return self._files

    def file_starts(self) -> Ints:
        """The first row of each file, and the number of rows at the end."""
        return self._row_starts

    def fingerprint(self) -> dict[str, Any]:
        """Files, tokens, the tokenizer, and how rows are made."""
        how = f"pack, length {self._length}" if self._pack else f"length {self._length}, long {self._long}"
        made = self._found[0].about["tokenizer"]
        checks = [(one.tokens, int(np.bitwise_xor.reduce(one.checks, initial=0))) for one in self._found]
        files = [
            (file, one.about["bytes"], int(rows))
            for file, one, rows in zip(self._files, self._found, np.diff(self._row_starts), strict=True)
        ]
        return paths.fingerprint(self.kind, f"{how}, tokenizer {made[:12]}, tokens {_hash(checks)}", files)

    def describe(self) -> Mapping[str, Any]:
        """For people: kind, files, rows, fields, tokens, and where the time of opening went."""
        return {
            **super().describe(),
            "documents": len(self._offsets) - 1,
            "tokens": int(self._first[-1]),
            "in_memory": not self._mapped,
            "tokenise_s": self.spent.tokenise_s,
            "tokenised": tuple(self.spent.tokenised),
        }

    def close(self) -> None:
        """Give back the mappings."""
        self._maps = []

    def __getstate__(self) -> dict[str, Any]:
        options = {"length": self._length, "pack": self._pack, "long": self._long, "pad": self._pad}
        found = [one.path for one in self._found]
        return {"files": self._files, "tokens": found, "options": options, "skipped": self.skipped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = [tokens.read(path) for path in state["tokens"]]
        self.__init__(state["files"], found, **state["options"])  # type: ignore[misc]
        self.skipped = state["skipped"]


def _hash(checks: list[tuple[int, int]]) -> str:
    """A few characters that differ when the tokens do."""
    return hashlib.sha256(repr(checks).encode()).hexdigest()[:16]

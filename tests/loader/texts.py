"""Small texts whose every token follows from the document's id."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from stoker.loader.source.interface import Source
from stoker.loader.source.open_text import open_text
from stoker.loader.source.text import TextSource
from stoker.loader.source.tokenise import Recipe, Spent, tokenise, tokenizer_text

WORDS = 400
LENGTH = 6


def words(i: int, exactly: int | None = None) -> list[int]:
    """The tokens of document i: its id, and then others; 1 to 6 of them, or `exactly` so many."""
    return [i, *((i * 7 + j) % WORDS for j in range(1, exactly or 1 + i % LENGTH))]


def tokenizer(folder: Path, shift: int = 0) -> Path:
    """Word `n` is token n (plus `shift`)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.WordLevel({str(n): n + shift for n in range(WORDS)}, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = folder / f"tokenizer{shift}.json"
    made.save(str(path))
    return path


def write(path: Path, documents: Sequence[Sequence[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": " ".join(map(str, one))}) + "\n" for one in documents))


def _files(folder: Path, sizes: Sequence[int], exactly: int | None) -> list[str]:
    first = 0
    for number, rows in enumerate(sizes):
        write(folder / f"{number:03}.jsonl", [words(first + i, exactly) for i in range(rows)])
        first += rows
    return sorted(str(path) for path in folder.glob("*.jsonl"))


def _open(folder: Path, sizes: Sequence[int], *, pack: bool) -> Source:
    files = _files(folder, sizes, LENGTH if pack else None)
    recipe = Recipe(tokenizer_text(tokenizer(folder)))
    found: Any = tokenise(files, recipe, folder / "cache", Spent())
    return TextSource(files, found, length=LENGTH, pack=pack, pad=-1, block_rows=4)


def padded(folder: Path, sizes: Sequence[int]) -> Source:
    """A row per document."""
    return _open(folder, sizes, pack=False)


def packed(folder: Path, sizes: Sequence[int]) -> Source:
    """Documents that fill a row each."""
    return _open(folder, sizes, pack=True)


def check(batch: dict[str, Any]) -> list[int]:
    """The ids of a batch, after every token was compared with what its id says."""
    found = batch["tokens"]
    assert found.dtype == torch.int64
    ids = found[:, 0].tolist()
    if "segment" in batch:
        np.testing.assert_array_equal(found, [words(i, LENGTH) for i in ids])
        np.testing.assert_array_equal(batch["segment"], np.ones((len(ids), LENGTH)))
        return [int(i) for i in ids]
    for i, row, length in zip(ids, found.tolist(), batch["lengths"].tolist(), strict=True):
        assert row == words(i) + [-1] * (found.shape[1] - length)
        assert len(words(i)) == length
    assert found.shape[1] == max(batch["lengths"].tolist())
    return [int(i) for i in ids]


__all__ = ["check", "open_text", "packed", "padded", "tokenizer", "words", "write"]

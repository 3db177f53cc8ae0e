"""From what a user named to a source of tokens: texts found, brought from their store, tokenised once."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stoker.errors import DataError, NoDataError, OtherTokenizerError, UsageError
from stoker.loader.source import documents, paths, tokens
from stoker.loader.source.interface import Skipped
from stoker.loader.source.text import Long, TextSource
from stoker.loader.source.text_remote import RemoteTexts
from stoker.loader.source.text_remote import find as find_remote
from stoker.loader.source.tokenise import CACHE, Recipe, Spent, make_cache, tokenise, tokenizer_text

_INT64 = np.dtype(np.int64)


def open_text(
    given: paths.Paths,
    *,
    length: int,
    tokenizer: Any = None,
    column: str = "text",
    pack: bool = False,
    long: Long = "cut",
    pad: int = 0,
    end: str | None = None,
    documents: documents.Unit = "line",
    cache: str | os.PathLike[str] = CACHE,
    on_error: Literal["raise", "skip"] = "raise",
    **store: Any,
) -> "TextSource":
    """Rows of at most `length` tokens, from JSON lines, Parquet, plain text, or files of tokens that were packed.

    With `pack`, documents follow each other without a gap and every row is full; `segment` numbers the documents of a
    row from 1 on, and 0 is padding. Without, a row is a document: `tokens` padded with `pad` to the longest of the
    batch, and `lengths`. A document that is longer is cut, or split into several rows (`long="split"`).
    """
    _check(length, pack, long, pad, documents)
    if not (end is None or isinstance(end, str)):
        raise UsageError(f"end is {end!r}; expected a token's text, such as '<eos>'")
    if "cache_bytes" in store:
        raise UsageError("cache_bytes= is no option of text: of a store's text only the tokens are kept")
    texts = find_remote(paths.addresses(given), KINDS, **store) if paths.is_remote(given) else None
    if store and texts is None:
        raise UsageError(f"{next(iter(store))}= goes with text of a store, such as s3://bucket/*.jsonl")
    files, left_out = _there(paths.find(given, KINDS), on_error) if texts is None else _listed(texts, on_error)
    packed = [file for file in files if Path(file).suffix == tokens.SUFFIX]
    if packed and len(packed) < len(files):
        raise UsageError(f"{packed[0]} holds tokens and {(set(files) - set(packed)).pop()} text; open one kind")
    spent, home = Spent(), paths.at_home(cache)
    if packed:
        every = [_packed(file, texts, home, on_error) for file in packed]
    elif not files[0].endswith(tuple(_SUFFIXES)):
        raise UsageError(f"{files[0]} is no text; length= goes with {', '.join(_SUFFIXES[:4])} and .tokens")
    elif tokenizer is None:
        raise UsageError(f"{files[0]} is text; say how to tokenise it with tokenizer='tokenizer.json'")
    else:
        recipe = Recipe(tokenizer_text(tokenizer), column, documents, end, on_error)
        every = tokenise(files, recipe, home, spent, texts)
    files, found = _brought(files, every, left_out)
    if packed:
        _check_tokenizer(found, tokenizer)
    source = TextSource(files, found, length=length, pack=pack, long=long, pad=pad, spent=spent)
    source.skipped = (*left_out, *source.skipped)
    return source


def _there(files: list[str], on_error: str) -> tuple[list[str], list[Skipped]]:
    """The files that are there; others are an error, or are left out."""
    there, left_out = [], []
    for file in files:
        try:
            paths.nbytes(file)
        except DataError as error:
            if on_error == "raise":
                raise
            left_out.append(Skipped(file, 0, 0, error.reason))
        else:
            there.append(file)
    _check_any(there, left_out)
    return there, left_out


def _listed(texts: RemoteTexts, on_error: str) -> tuple[list[str], list[Skipped]]:
    """The addresses of a store's texts; links to nothing are an error, or are left out."""
    if texts.lost and on_error == "raise":
        raise texts.lost[0]
    return texts.addresses, [Skipped(one.path, 0, 0, one.reason) for one in texts.lost]


def _packed(file: str, texts: RemoteTexts | None, home: Path, on_error: str) -> tokens.TokenFile | DataError:
    """The tokens of a file; of one that cannot be brought from its store the error, if it may be left out."""
    if texts is None:
        return tokens.read(file)
    try:
        kept = texts.kept(file, make_cache(home))
    except DataError as error:
        if on_error == "raise":
            raise
        return error
    return tokens.read(kept)


def _brought(
    files: list[str], every: Sequence[tokens.TokenFile | DataError], left_out: list[Skipped]
) -> tuple[list[str], list[tokens.TokenFile]]:
    """The files whose tokens are here; others join what is left out."""
    there, found = [], []
    for file, one in zip(files, every, strict=True):
        if isinstance(one, DataError):
            left_out.append(Skipped(file, 0, 0, one.reason))
        else:
            there.append(file)
            found.append(one)
    _check_any(there, left_out)
    return there, found


def _check_any(there: list[str], left_out: list[Skipped]) -> None:
    if not there:
        raise NoDataError(f"none of {len(left_out)} files can be loaded; the first: {left_out[0].reason}")


_SUFFIXES = [
    *documents.SUFFIXES,
    *(f".{kind}{packed}" for kind in ("jsonl", "ndjson", "txt") for packed in documents.PACKED),
]

KINDS = [*_SUFFIXES, tokens.SUFFIX]


def _check(length: int, pack: bool, long: Long, pad: int, unit: documents.Unit) -> None:
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise UsageError(f"length is {length!r}; expected a number of tokens from 1 on")
    if not isinstance(pack, bool):
        raise UsageError(f"pack is {pack!r}; expected True or False")
    if long not in ("cut", "split"):
        raise UsageError(f"long is {long!r}; expected 'cut' or 'split'")
    if unit not in ("line", "file"):
        raise UsageError(f"documents is {unit!r}; expected 'line' or 'file'")
    if not isinstance(pad, int) or isinstance(pad, bool) or pad.bit_length() >= _INT64.itemsize * 8:
        raise UsageError(f"pad is {pad!r}; expected the number of a token")


def _check_tokenizer(found: list[tokens.TokenFile], tokenizer: Any) -> None:
    """Files of tokens must all come from one tokenizer; from the one that is given, if one is."""
    expected = found[0].about["tokenizer"] if tokenizer is None else Recipe(tokenizer_text(tokenizer)).digest()
    for one in found:
        if one.about["tokenizer"] != expected:
            raise OtherTokenizerError(
                one.path, f"was made with tokenizer {one.about['tokenizer'][:12]}; expected {expected[:12]}"
            )

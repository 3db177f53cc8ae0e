"""Text into tokens, once: a file of tokens for each file of text, in a cache that is keyed by content and tokenizer."""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from stoker.errors import DataError, MissingExtraError, UsageError
from stoker.loader.progress import Progress
from stoker.loader.source import documents, tokens
from stoker.loader.source.alone import alone, no_room

CACHE = Path(".stoker/cache/text")
_READ_BYTES = 1 << 22
_LISTED_MOST = 1000
_VERIFIED_MOST = 1 << 28
"""A cached file of up to so many bytes is compared with its checksums when opened; larger ones as they are read."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the tokens of a document."""

    tokenizer: str
    """The tokenizer itself, as JSON."""
    column: str = "text"
    unit: documents.Unit = "line"
    end: str | None = None
    """A token that is put behind every document."""
    on_error: Literal["raise", "skip"] = "raise"

    def digest(self) -> str:
        """The tokenizer in a few characters."""
        return _digest(self.tokenizer)

    def key(self, path: str, content: str) -> str:
        """The name of the tokens of a content, in a file of this kind."""
        kind = documents.suffix(path), Path(path).suffix
        return _digest(repr((2, self.digest(), self.column, self.unit, self.end, kind, content)))

    def load(self) -> Any:
        """The tokenizer, set to neither cut nor pad: lengths are the source's business."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError("tokenizers", "text") from error
        try:
            made = Tokenizer.from_str(self.tokenizer)
        except Exception as error:  # tokenizers raises plain Exception
            raise UsageError(f"the tokenizer cannot be used: {error}") from error
        made.no_padding()
        made.no_truncation()
        return made


@dataclass(slots=True)
class Spent:
    """Where the time of opening went. All zeros: everything was cached."""

    tokenise_s: float = 0.0
    """In the tokenizer itself, all of its threads at once."""
    tokenised: list[str] = field(default_factory=list)
    """Files that had to be tokenised."""


class Takes(Protocol):
    """What documents can be written to."""

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64], /) -> None:
        """Documents after each other, and how long each is."""


def tokenizer_text(given: Any) -> str:
    """A tokenizer as JSON: from the path of a tokenizer.json, from a `tokenizers.Tokenizer` or from transformers."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.is_dir():
            path /= "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            json.loads(text)
        except OSError as error:
            raise UsageError(
                f"the tokenizer {path} cannot be read ({error.strerror}); expected the path of a tokenizer.json"
            ) from error
        except ValueError as error:
            raise UsageError(f"the tokenizer {path} is not JSON ({error}); expected a tokenizer.json") from error
        return text
    given = getattr(given, "backend_tokenizer", given)  # what transformers wraps
    if not hasattr(given, "to_str"):
        raise UsageError(f"tokenizer is {type(given).__name__}; expected a path or a tokenizers.Tokenizer")
    return str(given.to_str())


class Texts(Protocol):
    """Where files of text are."""

    def nbytes(self, path: str) -> int:
        """The size of one."""

    def digest(self, path: str) -> str:
        """What changes when its content does."""

    def local(self, path: str, folder: Path) -> AbstractContextManager[str]:
        """Where it can be read; what has to be brought for that goes into the folder."""


def tokenise(
    paths: list[str], recipe: Recipe, cache: Path, spent: Spent, texts: Texts | None = None
) -> list[tokens.TokenFile | DataError]:
    """The tokens of each file, from the cache where they are there and whole; or why it cannot be had."""
    make_cache(cache)
    texts = texts or _Files(cache)
    names = [cache / f"{recipe.key(path, texts.digest(path))}{tokens.SUFFIX}" for path in paths]
    found: list[tokens.TokenFile | DataError | None] = [_cached(name, recipe) for name in names]
    todo = [at for at, one in enumerate(found) if one is None]
    if todo:
        # Ranks and runs on one machine tokenise once: the others wait here, and then find it done.
        with alone(cache / ".lock"):
            _sweep(cache)
            total = sum(texts.nbytes(paths[at]) for at in todo)
            tokenizer = None
            with Progress(f"tokenising {len(todo)} file{'s' * (len(todo) > 1)}", total) as progress:
                for at in todo:
                    found[at] = _cached(names[at], recipe)
                    if found[at] is None:
                        tokenizer = tokenizer or recipe.load()
                        try:
                            with texts.local(paths[at], cache) as path:
                                found[at] = _make(path, names[at], recipe, tokenizer, spent, progress)
                            spent.tokenised.append(paths[at])
                        except DataError as error:  # it was not brought; that is not kept, for it may be back next time
                            if recipe.on_error == "raise":
                                raise
                            found[at] = error
    return [one for one in found if one is not None]


def make_cache(cache: Path) -> Path:
    """Make the folder, or say why that cannot be."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the cache {cache} cannot be made ({error.strerror}); name another with cache=") from error
    return cache


def _cached(name: Path, recipe: Recipe) -> tokens.TokenFile | None:
    """A file of the cache, if it is there, whole, and made with this tokenizer."""
    if not name.exists():
        return None
    try:
        found = tokens.read(str(name))
        if found.size <= _VERIFIED_MOST:
            found.verify(found.map(), range(len(found.checks)))
    except (DataError, ValueError, KeyError, OSError) as error:
        warnings.warn(f"the cached tokens are damaged and are made again ({error})", stacklevel=6)
        return None
    if found.about.get("tokenizer") != recipe.digest():
        warnings.warn(f"{name} was made with another tokenizer and is made again", stacklevel=6)
        return None
    skipped = found.about["skipped"]
    return None if skipped and recipe.on_error == "raise" else found


def _make(path: str, name: Path, recipe: Recipe, tokenizer: Any, spent: Spent, progress: Progress) -> tokens.TokenFile:
    kind = tokens.narrowest(largest(tokenizer))

    def put(fill: Callable[[tokens.Writer], list[list[Any]]]) -> None:
        with tokens.Writer(name, kind, {"tokenizer": recipe.digest()}) as writer:
            skipped = fill(writer)
            writer.finish(name=Path(path).name, bytes=Path(path).stat().st_size, skipped=skipped)

    with no_room(name.parent, f"the tokens of {path}"):
        try:
            put(lambda writer: write_documents(path, recipe, tokenizer, writer, spent, progress))
        except DataError as error:
            if recipe.on_error == "raise":
                raise
            # The file is left out whole: of one that was cut short, the last line may be half a line.
            reason = [error.row, 0, error.reason]
            put(lambda _: [reason])
    return tokens.read(str(name))


def write_documents(
    path: str, recipe: Recipe, tokenizer: Any, writer: Takes, spent: Spent, progress: Progress | None = None
) -> list[list[Any]]:
    """Tokenise a file into a writer; what was left out comes back as (row, rows, reason)."""
    skipped: list[list[Any]] = []

    def on_bad(error: DataError) -> None:
        if recipe.on_error == "raise":
            raise error
        if len(skipped) < _LISTED_MOST:
            skipped.append([error.row, 1, error.reason])
        else:
            skipped[-1][1] += 1

    last = _end(tokenizer, recipe.end)
    at = 0
    for texts, now in documents.batches(path, recipe.column, recipe.unit, on_bad):
        begin = time.perf_counter()
        encoded = tokenizer.encode_batch_fast(texts)
        lists = [one.ids for one in encoded]
        spent.tokenise_s += time.perf_counter() - begin
        lengths = np.fromiter((len(ids) for ids in lists), np.int64, len(lists))
        flat = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        if last is not None:
            flat = np.insert(flat, np.cumsum(lengths), last)
            lengths = lengths + 1
        writer.add(flat, lengths)
        if progress is not None:
            progress.advance(now - at)
        at = now
    if skipped and skipped[-1][1] > 1:
        skipped[-1][2] += ", and others after it"
    return skipped


def _end(tokenizer: Any, end: str | None) -> int | None:
    if end is None:
        return None
    found = tokenizer.token_to_id(end)
    if found is None:
        raise UsageError(f"end is {end!r}, which the tokenizer has no token for")
    return int(found)


def largest(tokenizer: Any) -> int:
    """The largest number of a token."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Files:
    """Files of this machine. What they hold is kept as digests; a file that has not changed is not read again."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "digests"
        self._folder.mkdir(exist_ok=True)

    def nbytes(self, path: str) -> int:
        """The size of a file."""
        return Path(path).stat().st_size

    def local(self, path: str, folder: Path) -> AbstractContextManager[str]:
        """Where it is."""
        return nullcontext(path)

    def digest(self, path: str) -> str:
        """The digest of a file's content."""
        about = Path(path).stat()
        # Tools that copy into a file, or unpack archives, set its time back; that of its last change they cannot set.
        stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
        note = self._folder / _digest(str(Path(path).resolve()))
        with suppress(OSError, ValueError, KeyError):
            known = json.loads(note.read_text())
            if known["stamp"] == stamp:
                return str(known["content"])
        content = _content(path)
        # A file that was written a moment ago may change again within one tick of the file system's clock.
        if time.time_ns() - max(about.st_mtime_ns, about.st_ctime_ns) > 2 * 10**9:
            partial = note.with_name(f"{note.name}.partial-{os.getpid()}")
            with suppress(OSError):
                partial.write_text(json.dumps({"stamp": stamp, "content": content}))
                partial.replace(note)
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return content


def _content(path: str) -> str:
    hashed = hashlib.sha256()
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file, Progress(f"reading {Path(path).name}", size) as progress:
        while piece := file.read(_READ_BYTES):
            hashed.update(piece)
            progress.advance(len(piece))
    return hashed.hexdigest()


def _sweep(cache: Path) -> None:
    """Remove what a killed run left behind."""
    for left in [*cache.glob(f"*{tokens.SUFFIX}.partial-*"), *cache.glob("incoming-*.partial-*")]:
        pid = left.name.rpartition(".partial-")[2].partition(".")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            left.unlink(missing_ok=True)

"""Documents, to files of tokens: one for each file of text, or all documents dealt out at random."""

from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stoker.errors import DataError, UsageError
from stoker.loader.source import documents, tokens
from stoker.loader.source.tokenise import Recipe, Spent, largest, tokenizer_text, write_documents
from stoker.pack import keys
from stoker.pack.found import Found
from stoker.pack.plan import VERSION, Options, Output, Piece, Plan, count_for
from stoker.pack.sources import HERE, Sources
from stoker.pack.spill import SavedTable, TableSpill, merge

_TOKENS = 0.25
"""A guess, for a file that says nothing: tokens for every byte of it."""
_LOOKED_AT, _LOOK_CHARACTERS = 4, 1 << 16
"""Files of each kind that are tokenised before a plan is made, and how much of each, for how many tokens there will
be: a byte may be a token, and the tenth part of a text that was compressed. The number of outputs depends on it."""
_COPIES = 6
_TOKENIZER_BYTES = 1 << 26
"""What a tokenizer takes for a batch of documents, and keeps."""
_HELD_BYTES = 24
"""Of a token, while the documents of an output are put in order and written."""


def make_plan(found: Found, options: Options) -> Plan:
    """A file of tokens for each file of text, or as many as it takes for the shuffled documents."""
    files = found.names
    if options.tokenizer is None:
        raise UsageError(f"{files[0]} is text; say how to tokenise it with --tokenizer tokenizer.json")
    if options.compress:
        raise UsageError("tokens are mapped as they lie, so they are never compressed; leave --compress out")
    text = tokenizer_text(options.tokenizer)
    recipe = Recipe(text, options.column, options.documents, options.end)
    tokenizer = recipe.load()
    dtype = tokens.narrowest(largest(tokenizer))
    sources = tuple(found.file(file, None) for file in files)
    each = _tokens_per_byte(found, recipe, tokenizer)
    sizes = [source.bytes * each[Path(source.path).suffix] * dtype.itemsize for source in sources]
    if options.shuffle:
        fit = options.memory_bytes // 6 * dtype.itemsize // _HELD_BYTES
        count = count_for(sum(sizes), min(options.shard_bytes, fit))
        outputs = [Output(f"text-{i:05}-of-{count:05}.tokens", 0, 0, int(sum(sizes) / count)) for i in range(count)]
    else:
        outputs = [
            Output(f"text-{i:05}-of-{len(files):05}.tokens", i, i + 1, int(size)) for i, size in enumerate(sizes)
        ]
    return Plan(
        version=VERSION,
        kind="text",
        files=sources,
        rows=None,
        row_bytes=0.0,
        seed=options.seed if options.shuffle else None,
        settings={
            "tokenizer": text,
            "column": options.column,
            "documents": options.documents,
            "end": options.end,
            "dtype": dtype.str,
            "part_bytes": options.memory_bytes // (4 * _COPIES),
        },
        pieces=tuple(Piece(i, i + 1) for i in range(len(files))) if options.shuffle else (),
        outputs=tuple(outputs),
        writer=f"tokenizers {version('tokenizers')}",
    )


def _tokens_per_byte(found: Found, recipe: Recipe, tokenizer: Any) -> dict[str, float]:
    """How many tokens a byte of a file becomes, by the end of its name."""
    each = {}
    for suffix in {Path(file).suffix for file in found.names}:
        alike = [file for file in found.names if Path(file).suffix == suffix]
        some = np.linspace(0, len(alike) - 1, min(_LOOKED_AT, len(alike))).astype(int).tolist()
        looks = [_look(found, alike[at], recipe, tokenizer) for at in some]
        read = sum(one[1] for one in looks)
        each[suffix] = sum(one[0] for one in looks) / read if read else _TOKENS
    return each


def _look(found: Found, path: str, recipe: Recipe, tokenizer: Any) -> tuple[float, int]:
    """How many tokens the first documents of a file become, and how many bytes of the file they are."""
    size = found.nbytes(path)
    try:
        every = documents.batches(path, recipe.column, recipe.unit, lambda _: None, opened=found.open, size=size)
        with closing(every) as batches:
            texts, read = next(batches, ([], 0))
    except (UsageError, DataError):  # said when the file's turn comes
        return 0.0, 0
    characters = np.cumsum([len(text) for text in texts])
    few = texts[: int(np.searchsorted(characters, _LOOK_CHARACTERS)) + 1]
    if not few:
        return 0.0, 0
    counted = sum(len(one.ids) for one in tokenizer.encode_batch_fast([text[:_LOOK_CHARACTERS] for text in few]))
    seen = sum(min(len(text), _LOOK_CHARACTERS) for text in few)
    if Path(path).suffix in documents.PACKED:  # how much of it was read is not known: a decompressor reads ahead
        return documents.growth(path, opened=found.open) * counted, seen
    return counted * float(characters[-1]) / max(1, seen), read


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    part = plan.settings["part_bytes"]
    assert isinstance(part, int)
    most = max(output.bytes for output in plan.outputs) if plan.seed is not None else 0
    held = most * _HELD_BYTES // np.dtype(str(plan.settings["dtype"])).itemsize
    return _TOKENIZER_BYTES + max(_COPIES * max(1 << 24, min(part, 2 * plan.output_bytes)), held)


def _recipe(plan: Plan) -> Recipe:
    told = plan.settings
    unit: documents.Unit = "file" if told["documents"] == "file" else "line"
    return Recipe(str(told["tokenizer"]), str(told["column"]), unit, None if told["end"] is None else str(told["end"]))


class _Dealer:
    """Takes documents as they are tokenised, and spills them in parts that fit into memory."""

    def __init__(self, plan: Plan, number: int, folder: Path | None) -> None:
        self._plan, self._folder = plan, folder
        self._next = number << keys.FILE_SHIFT
        self._flat: list[NDArray[Any]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._held = 0
        self.parts: list[TableSpill] = []
        self._count = 0

    def add(self, flat: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Documents after each other, and how long each is."""
        self._flat.append(flat.astype(np.uint32))
        self._lengths.append(lengths)
        self._held += 4 * len(flat) + 24 * len(lengths)
        part = self._plan.settings["part_bytes"]
        assert isinstance(part, int)
        if self._held > part:
            self.flush()

    def flush(self) -> None:
        """Deal out what is held."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        if not len(lengths):
            return
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.concatenate(self._flat)
        table = pa.table({"tokens": pa.LargeListArray.from_arrays(offsets, flat)})
        assert self._plan.seed is not None
        found = keys.keys(self._plan.seed, self._next, self._next + len(lengths))
        dealt = TableSpill(table, found, len(self._plan.outputs))
        if self._folder is None:
            self.parts.append(dealt)
        else:
            dealt.save(self._folder / f"{self._count:05}.arrow")
        self._count += 1
        self._next += len(lengths)
        self._flat, self._lengths, self._held = [], [], 0


class _Parts:
    """The parts of a file's spill, as one."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def slice(self, output: int) -> list[pa.Table]:
        """The rows of one output, of each part."""
        return [part.slice(output) for part in self._parts]


def spill(plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> _Parts | None:
    """Tokenise a file and deal its documents out; into a folder, or into memory if there is none."""
    dealer = _Dealer(plan, number, folder)
    recipe = _recipe(plan)
    with sources.local(plan.files[number]) as path:
        write_documents(path, recipe, recipe.load(), dealer, Spent())
    dealer.flush()
    return _Parts(dealer.parts) if folder is None else None


def saved(plan: Plan, folder: Path) -> _Parts:  # noqa: ARG001  every layout has this signature
    """A spill that was dealt out into a folder."""
    return _Parts([SavedTable(path) for path in sorted(folder.glob("*.arrow"))])


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any], sources: Sources = HERE) -> tuple[int, None]:
    """Write a file of tokens; returns its documents."""
    recipe = _recipe(plan)
    with tokens.Writer(place, np.dtype(str(plan.settings["dtype"])), {"tokenizer": recipe.digest()}) as writer:
        if plan.seed is None:
            with sources.local(plan.files[number]) as path:
                write_documents(path, recipe, recipe.load(), writer, Spent())
        else:
            slices = [table for spill in spills for table in spill.slice(number)]
            if slices:
                column = merge(slices).column("tokens").combine_chunks()
                lengths = pc.list_value_length(column).to_numpy()
                writer.add(column.flatten().to_numpy(), lengths)
        writer.finish(name=plan.outputs[number].name, bytes=0, skipped=[])
    return writer.documents, None

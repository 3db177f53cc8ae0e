"""A row group in memory: Arrow's columns as tensors can hold them, in one buffer, and where everything lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from stoker.errors import UsageError
from stoker.loader.source.blocks import Bytes, Ints
from stoker.loader.source.interface import Field, Lease, Pick
from stoker.loader.source.runs import Memory

ALIGN = 64
_BYTE = np.dtype(np.uint8)
_NONE = np.empty(0, np.uint8)


def field_of(column: pa.Field) -> Field:
    """How a column arrives; a type that no tensor can hold is refused by name."""
    kind, ragged, shape = column.type, False, []
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Field(column.name, np.dtype("U"), text=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Field(column.name, np.dtype("S"), text=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ragged, kind = True, kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if pa.types.is_temporal(kind):
        return Field(column.name, np.dtype(f"i{kind.bit_width // 8}"), tuple(shape), ragged)
    if pa.types.is_boolean(kind) or (pa.types.is_primitive(kind) and not pa.types.is_null(kind)):
        return Field(column.name, np.dtype(kind.to_pandas_dtype()), tuple(shape), ragged)
    raise UsageError(
        f"column {column.name} is {column.type}, which no tensor can hold; expected numbers, lists of numbers, strings "
        "or binary. Leave it out with columns=, or rewrite it"
    )


def decoded(field: Field, array: pa.Array) -> tuple[Bytes, Bytes | None]:
    """The bytes of a column's values, and of its list offsets if rows differ in length."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (field.ragged or field.text):
        return _values(field, array), None
    if field.dtype.kind == "U":
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {field.name} is not text: {error} of these rows") from error
    width = offset_bytes(array.type)
    offsets = _bytes(array.buffers()[1])[array.offset * width : (array.offset + len(array) + 1) * width]
    return _bytes(array.buffers()[2]) if field.text else _values(field, array.values), offsets


def _values(field: Field, values: pa.Array) -> Bytes:
    """The numbers below fixed-size lists, as bytes."""
    for _ in field.shape:
        if values.null_count:
            raise ValueError(f"column {field.name} has a null where a list of {field.shape[0]} is expected")
        values = values.flatten()
    if values.null_count:
        if field.dtype.kind != "f":
            raise ValueError(f"column {field.name} has a null, and {field.dtype} has no value for it")
        values = pc.fill_null(values, float("nan"))
    if pa.types.is_boolean(values.type):
        bits = _bytes(values.buffers()[1])
        return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :]
    size = field.dtype.itemsize
    return _bytes(values.buffers()[1])[values.offset * size : (values.offset + len(values)) * size]


def _bytes(buffer: pa.Buffer | None) -> Bytes:
    return _NONE if buffer is None else np.frombuffer(buffer, np.uint8)


def offset_bytes(kind: pa.DataType) -> int:
    """The width of the offsets of a list, a string or a binary."""
    return 8 if pa.types.is_large_list(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """A decoded row group, all of it in one buffer; the addresses of values and of list offsets, by column."""

    memory: torch.Tensor
    values: list[int]
    offsets: list[int]
    twins: list[int]
    """For each column the first one with the same offsets: usually all ragged columns of a file have the same."""
    nbytes: int
    stored_bytes: int


def pack(columns: list[tuple[Bytes, Bytes | None]], stored_bytes: int, usual_bytes: int, lease: Lease) -> Loaded:
    """Copy a block's columns into one reused buffer: Arrow can then reuse its own for the next block.

    Buffers have the size of the largest block, so that any block fits into any; what is not written takes no memory.
    """
    twins: list[int] = []
    for _, offsets in columns:
        twins.append(_twin(offsets, columns, len(twins)))
    parts = [values for values, _ in columns]
    parts += [_NONE if offsets is None or twins[i] != i else offsets for i, (_, offsets) in enumerate(columns)]
    starts = np.cumsum([0, *(-(-part.nbytes // ALIGN) * ALIGN for part in parts)]).tolist()
    memory, _ = lease(max(usual_bytes, starts[-1]), (), _BYTE)
    target = memory.numpy()
    for part, start in zip(parts, starts, strict=False):
        np.copyto(target[start : start + part.nbytes], part)
    addresses = [memory.data_ptr() + start for start in starts]
    offset_addresses = [addresses[len(columns) + twin] for twin in twins]
    return Loaded(memory, addresses[: len(columns)], offset_addresses, twins, starts[-1], stored_bytes)


def _twins_in_all(twins: Sequence[Sequence[int]], columns: int) -> tuple[int, ...]:
    """For each column the first one that is its twin in every block; in a small block two can be alike by chance."""
    by_column = list(zip(*twins, strict=True)) or [(index,) for index in range(columns)]
    return tuple(by_column.index(one) for one in by_column)


def _twin(offsets: Bytes | None, columns: list[tuple[Bytes, Bytes | None]], index: int) -> int:
    """The first column with these offsets."""
    for other, (_, others) in enumerate(columns[:index]):
        if offsets is not None and others is not None and np.array_equal(offsets, others):
            return other
    return index


class Stack:
    """The addresses of a window's blocks: arrays of columns by blocks. A block that failed has none."""

    def __init__(self, values: Ints, offsets: Ints, twins: tuple[int, ...], low: int, high: int) -> None:
        self.values = values
        self.offsets = offsets
        self.twins = twins
        self.memory = Memory(low, high)

    @classmethod
    def of(cls, blocks: Sequence[Loaded | BaseException], columns: int) -> "Stack":
        """The blocks of one window."""
        good = [block for block in blocks if isinstance(block, Loaded)]
        blank = [0] * columns
        values = [block.values if isinstance(block, Loaded) else blank for block in blocks]
        offsets = [block.offsets if isinstance(block, Loaded) else blank for block in blocks]
        low = min((block.memory.data_ptr() for block in good), default=0)
        high = max((block.memory.data_ptr() + block.nbytes for block in good), default=0)
        twins = _twins_in_all([block.twins for block in good], columns)
        return cls(np.array(values, np.int64).T, np.array(offsets, np.int64).T, twins, low, high)

    @classmethod
    def joined(cls, stacks: Sequence["Stack"]) -> "Stack":
        """The blocks of several windows as those of one."""
        if len(stacks) == 1:
            return stacks[0]
        return cls(
            np.concatenate([stack.values for stack in stacks], axis=1),
            np.concatenate([stack.offsets for stack in stacks], axis=1),
            _twins_in_all([stack.twins for stack in stacks], len(stacks[0].twins)),
            min(stack.memory.low for stack in stacks if stack.memory.high),
            max(stack.memory.high for stack in stacks),
        )


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of a batch's rows in one column, and in its twins. Neighbours in memory make one run."""

    first: Ints
    """Where each run begins, in elements of its block."""
    lengths: Ints
    runs: Ints
    """The row that each run begins with."""
    offsets: torch.Tensor
    """Where each row begins in the batch, and the end."""

    @classmethod
    def between(cls, first: Ints, last: Ints, runs: Ints) -> "Lists":
        """From where each row begins and ends in its block."""
        offsets = np.zeros(len(first) + 1, np.int64)
        np.cumsum(last - first, out=offsets[1:])
        ends = np.append(runs[1:], len(first))
        return cls(first[runs], offsets[ends] - offsets[runs], runs, torch.from_numpy(offsets))


def runs_of(pick: Pick) -> Ints:
    """The rows that do not follow the row before them in memory."""
    follows = (np.diff(pick.slot) == 0) & (np.diff(pick.inner) == 1)
    return np.concatenate([[0], np.flatnonzero(~follows) + 1])


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, whether a dictionary holds them or not."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def single(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

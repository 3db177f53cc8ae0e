"""Writing volumes as Zarr: one file per shard, chunks that suit the patch, every chunk with its checksum."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import MissingExtraError, OtherTypeError
from stoker.loader.source.volume import Box

SHARD_BYTES = 1 << 26
"""A shard is written at once, so it has to fit into memory several times."""

_CHUNKS_PER_PATCH = 2
_DTYPES = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


def chunks_for(patch: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Chunks of half a patch: read with little waste wherever a patch lies, and not too small for a disk."""
    spatial = [min(side, -(-part // _CHUNKS_PER_PATCH)) for part, side in zip(patch, shape[-len(patch) :], strict=True)]
    return (*(1 for _ in shape[: -len(patch)]), *spatial)


def shard_for(shape: Sequence[int], chunk: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Whole chunks along each axis: all of the volume, if that is not too much for one file."""
    shard = [-(-side // part) * part for side, part in zip(shape, chunk, strict=True)]
    for axis in range(len(shard)):
        while np.prod(shard, dtype=np.float64) * itemsize > SHARD_BYTES and shard[axis] > chunk[axis]:
            shard[axis] = -(-shard[axis] // (2 * chunk[axis])) * chunk[axis]
    return tuple(shard)


def boxes(shape: Sequence[int], shard: Sequence[int]) -> Iterator[Box]:
    """The shards of a volume."""
    counts = [-(-side // part) for side, part in zip(shape, shard, strict=True)]
    for index in np.ndindex(*counts):
        yield tuple(
            slice(i * part, min(side, (i + 1) * part)) for i, part, side in zip(index, shard, shape, strict=True)
        )


def create(path: Path, shape: Sequence[int], dtype: np.dtype[Any], chunk: Sequence[int], *, compress: bool) -> Any:
    """A new array at `path`, to be written shard by shard; empty chunks are written too, so that none is missing."""
    try:
        import tensorstore
    except ImportError as error:
        raise MissingExtraError("tensorstore", "volumes") from error
    if dtype.str[1:] not in _DTYPES:
        raise OtherTypeError(str(path), f"its voxels would be {dtype}; expected whole numbers or floats")
    inner: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if compress:
        inner.append({"name": "zstd", "configuration": {"level": 3}})
    inner.append({"name": "crc32c"})
    shard = shard_for(shape, chunk, dtype.itemsize)
    sharding = {"chunk_shape": list(chunk), "codecs": inner, "index_codecs": [inner[0], {"name": "crc32c"}]}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path.resolve())},
        "metadata": {
            "shape": list(shape),
            "data_type": np.dtype(dtype).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shard)}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
        "store_data_equal_to_fill_value": True,
        "context": {"cache_pool": {"total_bytes_limit": 0}},
    }
    return tensorstore.open(spec, create=True, delete_existing=False).result()

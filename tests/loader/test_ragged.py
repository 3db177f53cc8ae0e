"""Ragged fields: values and offsets, nested, padded; and buckets that keep padding small."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import stoker
from loader.sources import npy, parquet, pulse
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source.interface import Source


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_share_their_offsets(tmp_path: Path) -> None:
    with Loader(parquet(tmp_path, [20]), 20, ragged="nested") as loader:
        batch = next(iter(loader))
        assert batch["pulses"].is_nested
        assert [row.tolist() for row in batch["pulses"].unbind()] == [pulse(i) for i in range(20)]
        assert (batch["pulses"] * batch["flags"]).is_nested


def test_padded_rows_are_filled_with_zeros(tmp_path: Path) -> None:
    with Loader(parquet(tmp_path, [20]), 20, ragged="padded") as loader:
        for _ in range(2):  # the second time, into memory that was used before
            values, lengths = next(iter(loader))["pulses"]
            assert values.shape == (20, 12)
            for row, length, expected in zip(values, lengths, map(pulse, range(20)), strict=True):
                assert row.tolist() == expected + [0] * (12 - len(expected))
                assert int(length) == len(expected)
        share = loader.stats().padding_share
        total = sum(len(pulse(i)) for i in range(20))
        assert share == pytest.approx(1 - total / 240)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"])
def test_numbers_of_every_type_can_be_padded(tmp_path: Path, dtype: str) -> None:
    large = np.array([1, 2, 3, 0], dtype)
    large[-1] = np.iinfo(dtype).max if large.dtype.kind in "ui" else 1
    lists = pa.ListArray.from_arrays(np.array([0, 1, 1, 4], np.int32), pa.array(large))
    pq.write_table(pa.table({"x": lists}), tmp_path / "x.parquet")
    with Loader(stoker.open(tmp_path), 3, ragged="padded") as loader:
        values, lengths = next(iter(loader))["x"]
    assert values.numpy().dtype == large.dtype
    assert values.tolist() == [[large[0], 0, 0], [0, 0, 0], large[1:].tolist()]
    assert lengths.tolist() == [1, 0, 3]


def events(folder: Path) -> Source:
    lengths = np.random.default_rng(0).lognormal(4, 1, 6000).astype(int) + 1
    values = pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), np.zeros(lengths.sum(), "i2"))
    pq.write_table(pa.table({"id": np.arange(6000), "x": values}), folder / "x.parquet", row_group_size=500)
    return stoker.open(folder)


def test_buckets_save_padding_and_still_deliver_every_row_once_and_resumably(tmp_path: Path) -> None:
    source = events(tmp_path)
    with Loader(source, 32, True, ragged="padded") as plain:
        list(plain)
        waste = plain.stats().padding_share
    with Loader(source, 32, True, ragged="padded", buckets=True, window=5) as loader:
        batches = [batch["id"].tolist() for batch in loader]
        saved = loader.stats().padding_share
        state = None
        loader.set_epoch(0)
        iterator = iter(loader)
        begun = [batch["id"].tolist() for batch in itertools.islice(iterator, 77)]
        state = loader.state_dict()
    assert sorted(itertools.chain(*batches)) == list(range(6000))
    assert waste is not None
    assert saved is not None
    assert saved < 0.5 * waste
    with Loader(source, 32, True, ragged="padded", buckets=True, threads=0) as other:
        other.load_state_dict(state)
        assert begun + [batch["id"].tolist() for batch in other] == batches


def test_buckets_on_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    source = events(tmp_path)
    how = {"shuffle": True, "ragged": "padded", "buckets": True}
    with Loader(source, 30, **how) as loader:  # type: ignore[arg-type]
        alone = [batch["id"].tolist() for batch in loader]
    passes = []
    for rank in range(2):
        with Loader(source, 30, rank=rank, world_size=2, **how) as loader:  # type: ignore[arg-type]
            passes.append([batch["id"].tolist() for batch in loader])
    assert [batch for pair in zip(*passes, strict=True) for batch in pair] == alone


def test_what_cannot_be_bucketed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="no field is ragged"):
        Loader(npy(tmp_path / "n", [4]), 2, True, ragged="padded", buckets=True)
    with pytest.raises(errors.UsageError, match="it needs ragged='padded' and shuffle=True"):
        Loader(parquet(tmp_path / "p", [4]), 2, buckets=True)
    with pytest.raises(errors.UsageError, match="ragged is 'jagged'; expected 'values', 'nested' or 'padded'"):
        Loader(parquet(tmp_path / "p", [4]), 2, ragged="jagged")  # type: ignore[arg-type]


def test_the_cpu_is_a_device_where_batches_already_are(tmp_path: Path) -> None:
    with Loader(npy(tmp_path, [4]), 2, device="cpu") as loader:
        assert next(iter(loader))["id"].device == torch.device("cpu")


def test_a_batch_that_one_long_row_pads_beyond_memory_is_refused(tmp_path: Path) -> None:
    table = pa.table({"v": [[1.0]] * 999 + [[1.0] * 20_000]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    with Loader(stoker.open(tmp_path / "a.parquet"), 1000, ragged="padded", memory="64MiB") as loader:
        says = (
            r"1000 rows, padded to the longest of them, which has 20000 elements, takes 160\.0 MB, and memory is 67\.1"
        )
        with pytest.raises(errors.UsageError, match=says):
            next(iter(loader))
    with Loader(stoker.open(tmp_path / "a.parquet"), 100, ragged="padded", memory="64MiB") as loader:
        assert [batch["v"].values.shape for batch in loader] == [(100, 1)] * 9 + [(100, 20_000)]

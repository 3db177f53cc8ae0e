"""Parquet: every type of column, and every fault named by file and row."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import stoker
from loader.sources import check, parquet
from stoker import errors
from stoker.loader.front import Loader


def read_into(got: list[int], loader: Loader) -> None:
    for batch in loader:
        got += check(batch)


def one_batch(folder: Path, table: pa.Table, **how: Any) -> dict[str, Any]:
    pq.write_table(table, folder / "x.parquet", row_group_size=2)
    with Loader(stoker.open(folder, **how), len(table)) as loader:
        batch: dict[str, Any] = next(iter(loader))
        return batch


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", "M8[ns]", "M8[D]"]
)
def test_numbers_of_every_type_arrive_as_they_are(tmp_path: Path, dtype: str) -> None:
    values = np.arange(7).astype("i4").astype(dtype)
    got = one_batch(tmp_path, pa.table({"x": values}))["x"].numpy()
    np.testing.assert_array_equal(got, values.astype(got.dtype))


def test_lists_arrive_by_type(tmp_path: Path) -> None:
    table = pa.table(
        {
            "pairs": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "grid": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.int8(), 2), 2)),
            "points": pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.list_(pa.list_(pa.int32(), 2))),
            "large": pa.array([[1.5], None, [2.5, float("nan")]], pa.large_list(pa.float64())),
            "word": pa.array(["é", "", "abc"], pa.large_string()),
            "raw": pa.array([b"\x00", b"\xff\xfe", b""]),
            "category": pa.array(["b", "a", "b"]).dictionary_encode(),
        }
    )
    batch = one_batch(tmp_path, table)
    assert batch["pairs"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["grid"].shape == (3, 2, 2)
    assert batch["points"].values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["points"].offsets.tolist() == [0, 2, 2, 3]
    assert batch["large"].offsets.tolist() == [0, 1, 1, 3]
    assert batch["large"].values.isnan().tolist() == [False, False, True]
    assert (batch["word"], batch["raw"]) == (["é", "", "abc"], [b"\x00", b"\xff\xfe", b""])
    assert batch["category"] == ["b", "a", "b"]


def test_a_missing_number_is_nan_or_an_error_with_its_rows(tmp_path: Path) -> None:
    assert one_batch(tmp_path, pa.table({"x": pa.array([1.0, None], pa.float32())}))["x"].isnan().tolist() == [
        False,
        True,
    ]
    with pytest.raises(errors.CorruptError, match=r"x\.parquet, row 2: rows 2 to 3 .*column x has a null"):
        one_batch(tmp_path, pa.table({"x": pa.array([1, 2, 3, None])}))


def test_a_type_that_no_tensor_can_hold_is_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "when": [{"a": 1}]}), tmp_path / "x.parquet")
    with pytest.raises(errors.UsageError, match="column when is struct"):
        stoker.open(tmp_path)
    with Loader(stoker.open(tmp_path, columns=["x"]), 1) as loader:
        assert list(next(iter(loader))) == ["x"]
    with pytest.raises(errors.UsageError, match=r"no column is called y; .* has x, when"):
        stoker.open(tmp_path, columns=["y"])


def test_a_dot_in_a_name_is_a_letter_like_others(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2, 3], "a": [4, 5, 6], "c.d": [[1], [], [2, 3]]})
    for names in (["a.b"], ["c.d"], ["a"], ["c.d", "a", "a.b"]):
        batch = one_batch(tmp_path, table, columns=names)
        assert list(batch) == names
    assert (batch["a.b"].tolist(), batch["a"].tolist()) == ([1, 2, 3], [4, 5, 6])
    assert batch["c.d"].values.tolist() == [1, 2, 3]
    assert list(one_batch(tmp_path, table.select(["a.b"]))) == ["a.b"]


def test_columns_that_cannot_be_told_apart_or_are_none_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], names=["x", "x", "y"])
    with pytest.raises(errors.UsageError, match=r"x\.parquet has 2 columns called x; .*columns="):
        one_batch(tmp_path, twice)
    assert one_batch(tmp_path, twice, columns=["y"])["y"].tolist() == [5, 6]
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "a.parquet")
    with pytest.raises(errors.OtherTypeError, match=r"x\.parquet: has 2 columns x; expected one, int64, as in .*a"):
        stoker.open(tmp_path)
    with pytest.raises(errors.UsageError, match=r"columns is empty; expected some of x, y"):
        stoker.open(tmp_path, columns=[])


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_a_string_that_is_not_utf8_names_its_rows_or_is_left_out(tmp_path: Path, kind: str) -> None:
    words = pa.array([b"a", b"b", b"c", b"\xff\xfe", b"e"])
    width, of = (8, pa.large_string()) if kind == "large_string" else (4, pa.string())
    offsets = pa.py_buffer(np.array([0, 1, 2, 3, 5, 6], f"i{width}"))
    words = pa.Array.from_buffers(of, 5, [None, offsets, words.buffers()[2]])
    if kind == "dictionary":
        words = words.dictionary_encode()
    table = pa.table({"word": words, "id": range(5)})
    with pytest.raises(errors.CorruptError, match=r"x\.parquet, row 2: rows 2 to 3 .*column word .*UTF8") as caught:
        one_batch(tmp_path, table)
    assert caught.value.row == 2
    with Loader(stoker.open(tmp_path), 2, on_error="skip") as loader:
        assert [word for batch in loader for word in batch["word"]] == ["a", "b", "e"]
        assert loader.stats().skipped_rows == 2


def test_an_empty_file_does_not_decide_the_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int32())}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [1, 2]}), tmp_path / "1.parquet")
    with pytest.raises(errors.EmptyFileError, match=r"0\.parquet: has no row"):
        stoker.open(tmp_path)
    source = stoker.open(tmp_path, on_error="skip")
    assert [Path(one.path).name for one in source.skipped] == ["0.parquet"]
    with Loader(source, 2) as loader:
        assert next(iter(loader))["b"].tolist() == [1, 2]


def corrupt(path: Path, group: int) -> None:
    """Overwrite the pages of one row group."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(0)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)


def test_a_corrupt_page_names_file_and_rows_or_is_left_out(tmp_path: Path) -> None:
    source = parquet(tmp_path, [12, 12])
    corrupt(tmp_path / "001.parquet", 1)
    with Loader(source, 5) as loader:
        got: list[int] = []
        with pytest.raises(errors.CorruptError, match=r"001\.parquet, row 4: rows 4 to 7 cannot be decoded") as caught:
            read_into(got, loader)
        assert caught.value.row == 4
        assert got == list(range(15)) == list(range(loader.state_dict()["position"]))
    with Loader(source, 5, True, on_error="skip") as loader:
        assert sorted(i for batch in loader for i in check(batch)) == [*range(16), *range(20, 24)]
        stats = loader.stats()
    assert stats.skipped_rows == 4
    assert [(Path(s.path).name, s.row, s.rows) for s in stats.skipped] == [("001.parquet", 4, 4)]


def test_a_file_that_vanishes_or_changes_mid_epoch_is_named(tmp_path: Path) -> None:
    source = parquet(tmp_path, [12, 12])
    (tmp_path / "001.parquet").unlink()
    with Loader(source, 6) as loader, pytest.raises(errors.VanishedError, match=r"001\.parquet, row 0"):
        list(loader)
    (tmp_path / "001.parquet").write_bytes(b"another")
    with Loader(source, 6) as loader, pytest.raises(errors.CorruptError, match="has changed since it was opened"):
        list(loader)


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    parquet(tmp_path, [12])
    bad = tmp_path / "001.parquet"
    bad.write_bytes(b"")
    with pytest.raises(errors.EmptyFileError, match=r"001\.parquet: the file is empty"):
        stoker.open(tmp_path)
    bad.write_bytes((tmp_path / "000.parquet").read_bytes()[:-9])
    with pytest.raises(errors.CorruptError, match=r"001\.parquet: its footer cannot be read"):
        stoker.open(tmp_path)
    pq.write_table(pa.table({"id": ["text"]}), bad)
    with pytest.raises(errors.OtherTypeError, match=r"001\.parquet: column id is string; expected int64, as in .*000"):
        stoker.open(tmp_path)
    pq.write_table(pa.table({"other": [1]}), bad)
    with pytest.raises(errors.OtherTypeError, match=r"001\.parquet: has no column id"):
        stoker.open(tmp_path)
    assert len(stoker.open(tmp_path, on_error="skip")) == 12


def test_a_budget_that_holds_no_two_blocks_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.zeros((2, 200_000)).tolist()}), tmp_path / "x.parquet", row_group_size=1)
    with pytest.raises(errors.UsageError, match="a block of this parquet source takes about 2 MB"):
        Loader(stoker.open(tmp_path), 1, True, memory="2MiB")
    with pytest.raises(errors.UsageError, match="shuffle='full' reads single rows"):
        Loader(stoker.open(tmp_path), 1, "full")


def test_a_state_whose_window_does_not_fit_the_memory_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.zeros((8, 50_000)).tolist()}), tmp_path / "x.parquet", row_group_size=1)
    with Loader(stoker.open(tmp_path), 1, True) as loader:
        state = loader.state_dict()
    with (
        Loader(stoker.open(tmp_path), 1, True, memory="3MiB") as loader,
        pytest.raises(errors.UsageError, match=r"the state mixes 8 blocks at a time, and memory=3145728 holds \d"),
    ):
        loader.load_state_dict(state)


def test_blocks_that_stay_in_memory_are_decoded_once(tmp_path: Path) -> None:
    source = parquet(tmp_path, [40, 40])
    with Loader(source, 7, True) as loader:
        list(loader)
        read = loader.stats().bytes_read
        list(loader)
        assert loader.stats().bytes_read == read


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.7])
def test_blocks_that_fill_most_of_the_budget_are_decoded_once_too(tmp_path: Path, share: float) -> None:
    random = np.random.default_rng(0)
    for number in range(4):
        values = pa.FixedSizeListArray.from_arrays(pa.array(random.random(5000 * 64)), 64)
        pq.write_table(pa.table({"x": values}), tmp_path / f"{number}.parquet", row_group_size=250)
    source = stoker.open(tmp_path)
    with Loader(source, 500, True, memory=int(len(source) * source.row_bytes / share)) as loader:
        list(loader)
        read = loader.stats().bytes_read
        for _ in range(2):
            list(loader)
        assert loader.stats().window_blocks == 80
        assert loader.stats().bytes_read == read


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    source = parquet(tmp_path, [40] * 20)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with Loader(source, 7, True, threads=2, window=2) as loader:
        list(loader)
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_a_kept_field_does_not_keep_the_others(tmp_path: Path) -> None:
    with Loader(parquet(tmp_path, [40]), 10) as loader:
        batch = next(iter(loader))
        assert batch["id"].untyped_storage().nbytes() == 80
        assert batch["pulses"].values.untyped_storage().nbytes() == 2 * len(batch["pulses"].values)
        assert isinstance(batch["id"], torch.Tensor)

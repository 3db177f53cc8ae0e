"""Broken text: every fault is named by file and row, or left out, counted and listed."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from loader.texts import tokenizer, words, write
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.stats import Stats


def put(folder: Path, **files: bytes) -> Path:
    """Files in a folder; `a_txt` is written as `a.txt`."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def read(folder: Path, **options: Any) -> tuple[list[list[int]], Stats]:
    """The documents of a folder, and what the loader says of them."""
    options = {"tokenizer": tokenizer(folder.parent / "made"), "cache": folder.parent / "cache", **options}
    with Loader(stoker.open(folder, length=4, **options), 3) as loader:
        found = [
            row[:length]
            for batch in loader
            for row, length in zip(batch["tokens"].tolist(), batch["lengths"].tolist(), strict=True)
        ]
        return found, loader.stats()


def parquet_of(folder: Path, raw: list[bytes]) -> bytes:
    """A Parquet file whose strings are these bytes."""
    ends = np.cumsum([0, *map(len, raw)]).astype(np.int32)
    words = pa.Array.from_buffers(pa.string(), len(raw), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(raw))])
    pq.write_table(pa.table({"text": words}), folder / "made.parquet")
    return (folder / "made.parquet").read_bytes()


BROKEN_LINES = {
    "surrogate": (b'{"text": "1"}\n{"text": "\\ud800 2"}\n{"text": "3"}\n', "line 2: 'text' is not Unicode"),
    "deep": (b'{"text": "1"}\n' + b"[" * 200_000 + b'\n{"text": "3"}\n', "line 2 is not JSON"),
    "bytes": (b'{"text": "1"}\n{"text": "\xff"}\n{"text": "3"}\n', "line 2 is not JSON"),
}


@pytest.mark.parametrize("fault", list(BROKEN_LINES))
def test_a_line_that_is_no_text_is_named_or_left_out(tmp_path: Path, fault: str) -> None:
    content, says = BROKEN_LINES[fault]
    folder = put(tmp_path / "data", a_jsonl=content)
    with pytest.raises(errors.CorruptError, match=rf"a\.jsonl, row 1: {says}"):
        read(folder)
    found, stats = read(folder, on_error="skip")
    assert found == [[1], [3]]
    assert (stats.skipped_rows, [one.row for one in stats.skipped]) == (1, [1])


def test_a_row_of_parquet_that_is_not_utf8_is_named_or_left_out(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", a_parquet=parquet_of(tmp_path, [b"1", b"\xff\xfe", b"3"]))
    with pytest.raises(errors.CorruptError, match=r"a\.parquet, row 1: 'text' is not UTF-8"):
        read(folder)
    found, stats = read(folder, on_error="skip")
    assert (found, stats.skipped_rows) == ([[1], [3]], 1)


def test_only_the_column_of_this_very_name_is_read(tmp_path: Path) -> None:
    folder = put(tmp_path / "data")
    pq.write_table(pa.table({"text.raw": ["9"], "text": ["1 2"]}), folder / "a.parquet")
    assert read(folder)[0] == [[1, 2]]
    assert read(folder, column="text.raw")[0] == [[9]]
    twice = pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["text", "text"])
    pq.write_table(twice, folder / "a.parquet")
    with pytest.raises(errors.UsageError, match=r"a\.parquet has 2 columns 'text'; expected one"):
        read(folder)


BROKEN_FILES = {
    "empty": ("b.txt", b"", "the file is empty"),
    "cut": ("b.txt.gz", gzip.compress(b"5 6\n7\n" * 1000)[:-12], "cannot be decompressed"),
    "no Parquet": ("b.parquet", b"PAR1", "cannot be read as Parquet"),
}


@pytest.mark.parametrize("fault", list(BROKEN_FILES))
def test_a_file_that_cannot_be_read_to_its_end_is_left_out_whole_and_listed(tmp_path: Path, fault: str) -> None:
    name, content, says = BROKEN_FILES[fault]
    folder = put(tmp_path / "data", **{"a_txt": b"1 2\n", name: content})
    for _ in range(2):  # the second time, the cache knows
        found, stats = read(folder, on_error="skip")
        assert found == [[1, 2]]
        [skipped] = stats.skipped
        assert (Path(skipped.path).name, skipped.rows) == (name, 0)
        assert says in skipped.reason
        with pytest.raises(errors.DataError, match=rf"{re.escape(name)}: {says}"):
            read(folder)
    (folder / "a.txt").unlink()
    with pytest.raises(errors.NoDataError, match=rf"there is no text in 1 files.*left out.*{says}"):
        read(folder, on_error="skip")


def test_a_document_of_a_whole_file_that_is_not_utf8_is_named_or_left_out(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", a_txt=b"1 2\n3", b_txt=b"\xff\xfe\n3\n")
    with pytest.raises(errors.CorruptError, match=r"b\.txt, row 0: is not UTF-8 \(invalid start byte at byte 0\)"):
        read(folder, documents="file")
    found, stats = read(folder, documents="file", on_error="skip")
    assert (found, stats.skipped_rows) == ([[1, 2, 3]], 1)


def test_all_that_was_left_out_is_counted_though_not_all_is_listed(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", a_jsonl=b'{"text": "1"}\n' + b"nope\n" * 1500)
    found, stats = read(folder, on_error="skip")
    assert (found, stats.skipped_rows, len(stats.skipped)) == ([[1]], 1500, 1000)
    assert stats.skipped[-1].rows == 501
    assert stats.skipped[-1].reason.endswith("and others after it")


def test_documents_without_a_token_are_no_data(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", a_jsonl=b'{"text": ""}\n{"text": " "}\n')
    for pack in (False, True):
        with pytest.raises(errors.NoDataError, match="there is no text in 1 files"):
            read(folder, pack=pack)
    put(folder, b_jsonl=b'{"text": "7"}\n')
    assert read(folder)[0] == [[], [], [7]]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    folder = put(
        tmp_path / "data",
        a_txt=mark + b"1 2\n3\n",
        b_txt=mark,
        c_jsonl=mark + b'{"text": "4"}\n',
        d_txt_gz=gzip.compress(mark + b"5\n"),
    )
    assert read(folder)[0] == [[1, 2], [3], [4], [5]]
    assert read(put(tmp_path / "whole", a_txt=mark + b"1 2\n3\n"), documents="file")[0] == [[1, 2, 3]]


def test_a_file_renamed_to_another_kind_is_tokenised_anew(tmp_path: Path) -> None:
    folder = put(tmp_path / "data", a_txt=b'{"text": "1"}\n')
    assert read(folder)[0] == [[0, 0]]  # two words that are no number
    (folder / "a.txt").rename(folder / "a.jsonl")
    assert read(folder)[0] == [[1]]


def test_a_row_that_memory_cannot_hold_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [words(0)])
    how: dict[str, Any] = {"tokenizer": str(tokenizer(tmp_path)), "cache": tmp_path / "cache", "pack": True}
    source = stoker.open(tmp_path / "a.jsonl", length=10**9, **how)
    says = r"a batch of 1 row takes about 16,000\.0 MB, and memory is 2,147\.5 MB; .*fewer or shorter rows"
    with pytest.raises(errors.UsageError, match=says):
        Loader(source, 4)


def test_a_batch_that_one_long_document_pads_beyond_memory_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [*(words(0) for _ in range(500)), [1] * 50_000])
    how: dict[str, Any] = {"tokenizer": str(tokenizer(tmp_path)), "cache": tmp_path / "cache"}
    source = stoker.open(tmp_path / "a.jsonl", length=100_000, **how)
    says = r"a batch of 500 rows, padded to the longest of them, takes about 200\.0 MB, and memory is 67\.1 MB; .*"
    with pytest.raises(errors.UsageError, match=says):
        Loader(source, 500, memory="64MiB")
    with Loader(stoker.open(tmp_path / "a.jsonl", length=1000, long="split", **how), 500, memory="64MiB") as loader:
        assert sum(len(batch["tokens"]) for batch in loader) == 550


def test_an_end_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [words(0)])
    with pytest.raises(errors.UsageError, match="end is 1; expected a token's text, such as '<eos>'"):
        stoker.open(tmp_path / "a.jsonl", tokenizer=str(tokenizer(tmp_path)), length=4, end=1)

"""Text: tokenised once, packed or padded, from files of every kind."""

import gzip
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from loader.texts import tokenizer, words, write
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source import text as text_module
from stoker.loader.source import tokens as tokens_module
from stoker.loader.source.text import TextSource

documents_of_files = st.lists(
    st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=6), min_size=1, max_size=3
).filter(lambda files: all(files) and any(itertools.chain.from_iterable(itertools.chain.from_iterable(files))))


def opened(folder: Path, **options: Any) -> TextSource:
    options = {"tokenizer": tokenizer(folder.parent / "made"), "cache": folder.parent / "cache", **options}
    source = stoker.open(folder, **options)
    assert isinstance(source, TextSource)
    return source


def rows_of(source: TextSource, batch_size: int = 3) -> list[dict[str, Any]]:
    with Loader(source, batch_size) as loader:
        return [
            {name: value[i].tolist() for name, value in batch.items()}
            for batch in loader
            for i in range(len(batch["tokens"]))
        ]


def naive_packing(documents: list[list[int]], length: int) -> list[tuple[list[int], list[int]]]:
    """Document after document, token by token."""
    flat = [(token, number) for number, one in enumerate(documents) for token in one]
    rows = []
    for start in range(0, len(flat), length):
        part = flat[start : start + length]
        numbers = list(dict.fromkeys(number for _, number in part))
        padding = [0] * (length - len(part))
        rows.append(([token for token, _ in part] + padding, [numbers.index(n) + 1 for _, n in part] + padding))
    return rows


@settings(max_examples=60, deadline=None)
@given(files=documents_of_files, length=st.integers(1, 9), mapped=st.booleans(), batch_size=st.integers(1, 5))
def test_packed_rows_are_the_documents_after_each_other(
    files: list[list[list[int]]], length: int, mapped: bool, batch_size: int
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "RAM_BYTES", 0 if mapped else 1 << 20)
        folder = Path(name) / "data"
        for number, documents in enumerate(files):
            write(folder / f"{number}.jsonl", documents)
        source = opened(folder, length=length, pack=True)
        got = [(row["tokens"], row["segment"]) for row in rows_of(source, batch_size)]
        assert got == naive_packing(list(itertools.chain.from_iterable(files)), length)
        assert source.describe()["in_memory"] is not mapped


@settings(max_examples=60, deadline=None)
@given(files=documents_of_files, length=st.integers(1, 9), split=st.booleans(), mapped=st.booleans())
def test_without_packing_a_row_is_a_document_cut_or_split(
    files: list[list[list[int]]], length: int, split: bool, mapped: bool
) -> None:
    documents = list(itertools.chain.from_iterable(files))
    expected = [one[:length] for one in documents]
    if split:
        expected = [one[at : at + length] for one in documents for at in range(0, max(1, len(one)), length)]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*documents are longer than")
        patch.setattr(text_module, "RAM_BYTES", 0 if mapped else 1 << 20)
        folder = Path(name) / "data"
        for number, part in enumerate(files):
            write(folder / f"{number}.jsonl", part)
        source = opened(folder, length=length, long="split" if split else "cut")
        assert [row["tokens"][: row["lengths"]] for row in rows_of(source)] == expected
        owners = [source.locate(row) for row in range(len(source))]
        names = [str(folder / f"{number}.jsonl") for number in range(len(files))]
        every = [(name, at) for name, part in zip(names, files, strict=True) for at in range(len(part))]
        if not split:
            assert owners == every
        elif all(documents):
            assert list(dict.fromkeys(owners)) == every


def test_cutting_documents_is_said(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[1, 2, 3], [4]])
    with pytest.warns(UserWarning, match=r"1 of 2 documents are longer than 2 tokens \(the longest has 3\)"):
        opened(tmp_path / "data", length=2)


def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path) -> None:
    documents = [words(i) for i in range(50)]
    texts = [" ".join(map(str, one)) for one in documents]
    write(tmp_path / "a" / "x.jsonl", documents)
    lines = "".join(f"{one}\n" for one in texts)
    for name, content in (("b/x.txt", lines.encode()), ("c/x.txt.gz", gzip.compress(lines.encode()))):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    (tmp_path / "d").mkdir()
    pq.write_table(pa.table({"n": range(50), "text": texts}), tmp_path / "d" / "x.parquet", row_group_size=7)
    (tmp_path / "e").mkdir()
    with pa.CompressedOutputStream(str(tmp_path / "e" / "x.jsonl.zst"), "zstd") as file:
        file.write((tmp_path / "a" / "x.jsonl").read_bytes())
    expected = rows_of(opened(tmp_path / "a", length=6))
    assert [row["tokens"][: row["lengths"]] for row in expected] == documents
    for folder in "bcde":
        assert rows_of(opened(tmp_path / folder, length=6)) == expected, folder
    whole = opened(tmp_path / "b", length=500, documents="file")
    assert rows_of(whole)[0]["tokens"] == list(itertools.chain.from_iterable(documents))


def test_a_token_can_be_put_behind_every_document(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[5, 6], [7]])
    rows = rows_of(opened(tmp_path / "data", length=6, pack=True, end="399"))
    assert rows == [{"tokens": [5, 6, 399, 7, 399, 0], "segment": [1, 1, 1, 2, 2, 0]}]
    with pytest.raises(errors.UsageError, match="has no token for"):
        opened(tmp_path / "data", length=6, pack=True, end="<eos>")


def test_a_second_opening_and_later_epochs_do_not_tokenise(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(90)])
    first = opened(tmp_path / "data", length=6)
    assert first.spent.tokenise_s > 0
    assert [Path(path).name for path in first.spent.tokenised] == ["a.jsonl"]
    spent_s = first.spent.tokenise_s
    with Loader(first, 8, True) as loader:
        for _ in range(3):
            assert sum(len(batch["tokens"]) for batch in loader) == 90
    assert first.spent.tokenise_s == spent_s
    second = opened(tmp_path / "data", length=3, pack=True)  # other rows, same tokens
    assert (second.spent.tokenise_s, second.spent.tokenised) == (0.0, [])
    moved = tmp_path / "elsewhere"
    (tmp_path / "data").rename(moved)
    assert opened(moved, length=6).spent.tokenised == []
    write(moved / "b.jsonl", [[1, 2, 3]])
    assert [Path(path).name for path in opened(moved, length=6).spent.tokenised] == ["b.jsonl"]


def test_changed_text_is_tokenised_again_even_with_its_old_time(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.jsonl"
    write(path, [[1, 2, 3]])
    opened(tmp_path / "data", length=3)
    before = path.stat()
    write(path, [[1, 2, 4]])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert rows_of(opened(tmp_path / "data", length=3))[0]["tokens"] == [1, 2, 4]


def test_text_that_was_copied_into_an_old_file_with_its_old_time_is_tokenised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data" / "a.jsonl"
    write(path, [[1, 2, 3]])
    os.utime(path, ns=(10**18, 10**18))
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 10**10)  # the file was last touched some seconds ago
    opened(tmp_path / "data", length=3)
    with path.open("r+") as file:
        file.write(path.read_text().replace("1 2 3", "1 2 4"))
    os.utime(path, ns=(10**18, 10**18))
    assert rows_of(opened(tmp_path / "data", length=3))[0]["tokens"] == [1, 2, 4]


def test_a_cache_of_another_tokenizer_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[1, 2, 3]])
    opened(tmp_path / "data", length=3)
    other = tokenizer(tmp_path / "made", shift=10)
    assert rows_of(opened(tmp_path / "data", length=3, tokenizer=other))[0]["tokens"] == [11, 12, 13]
    assert rows_of(opened(tmp_path / "data", length=3))[0]["tokens"] == [1, 2, 3]
    # Even under the right name: files of the two tokenizers, swapped by hand.
    one, two = sorted((tmp_path / "cache").glob("*.tokens"))
    swap = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(swap)
    with pytest.warns(UserWarning, match="made with another tokenizer"):
        assert rows_of(opened(tmp_path / "data", length=3))[0]["tokens"] == [1, 2, 3]


def test_files_of_tokens_open_alone_and_refuse_another_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[1, 2, 3]])
    expected = rows_of(opened(tmp_path / "data", length=3))
    made = stoker.open(tmp_path / "cache" / "*.tokens", length=3)
    assert isinstance(made, TextSource)
    assert rows_of(made) == expected
    with pytest.raises(errors.OtherTokenizerError, match=r"\.tokens: was made with tokenizer \w+; expected \w+"):
        stoker.open(tmp_path / "cache" / "*.tokens", length=3, tokenizer=tokenizer(tmp_path, shift=5))


@pytest.mark.parametrize("at", [0, 3, 70, -60, -30, -1])
def test_a_damaged_cache_is_made_again(tmp_path: Path, at: int) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(40)])
    expected = rows_of(opened(tmp_path / "data", length=6))
    (path,) = (tmp_path / "cache").glob("*.tokens")
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x55
    path.write_bytes(raw)
    with pytest.warns(UserWarning, match="damaged and are made again"):
        assert rows_of(opened(tmp_path / "data", length=6)) == expected
    assert rows_of(opened(tmp_path / "data", length=6)) == expected


@pytest.mark.parametrize("left", [0, 10, 64, 100, 300, -1])
def test_a_cache_cut_short_is_made_again(tmp_path: Path, left: int) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(40)])
    expected = rows_of(opened(tmp_path / "data", length=6))
    (path,) = (tmp_path / "cache").glob("*.tokens")
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    with pytest.warns(UserWarning, match="damaged and are made again"):
        assert rows_of(opened(tmp_path / "data", length=6)) == expected


def test_tokens_that_are_too_many_to_check_at_once_are_checked_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "RAM_BYTES", 0)
    monkeypatch.setattr(tokens_module, "CHECK_BYTES", 64)
    monkeypatch.setattr("stoker.loader.source.tokenise._VERIFIED_MOST", 0)
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(200)])
    opened(tmp_path / "data", length=6)
    (path,) = (tmp_path / "cache").glob("*.tokens")
    raw = bytearray(path.read_bytes())
    raw[64 + 500] ^= 1
    path.write_bytes(raw)
    source = opened(tmp_path / "data", length=6)
    got = []
    with (
        Loader(source, 4) as loader,
        pytest.raises(
            errors.CorruptError, match=r"\.tokens, row \d+: MiB 7 of its tokens does not .*; it is removed now"
        ),
    ):
        got += [batch["tokens"][:, 0].tolist() for batch in loader]
    again = opened(tmp_path / "data", length=6)
    assert [row["tokens"][0] for row in rows_of(again)] == list(range(200))


def test_tokens_that_are_too_many_to_hold_stay_readable_when_the_cache_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "RAM_BYTES", 0)
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(200)])
    source = opened(tmp_path / "data", length=6)
    shutil.rmtree(tmp_path / "cache")
    assert len(rows_of(source)) == 200


def test_a_damaged_cache_is_made_again_also_if_it_is_large(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[1, 2, 3]])
    opened(tmp_path / "data", length=3)
    (path,) = (tmp_path / "cache").glob("*.tokens")
    about = tokens_module.read(str(path)).about
    with tokens_module.Writer(path, np.dtype("<u2"), about) as writer:
        writer.add(np.zeros(50_000_000, np.uint16), np.array([50_000_000]))
        writer.finish()
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    with pytest.warns(UserWarning, match="damaged and are made again"):
        assert rows_of(opened(tmp_path / "data", length=3))[0]["tokens"] == [1, 2, 3]


def test_mapped_tokens_cut_short_while_in_use_are_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "RAM_BYTES", 0)
    monkeypatch.setattr(text_module, "_CHECK_S", -1.0)
    write(tmp_path / "data" / "a.jsonl", [words(i, 6) for i in range(3000)])
    source = opened(tmp_path / "data", length=6, pack=True)
    (path,) = (tmp_path / "cache").glob("*.tokens")
    os.truncate(path, 5000)
    with Loader(source, 4) as loader, pytest.raises(errors.TruncatedError, match="cut short while in use"):
        list(loader)


def test_a_broken_line_is_named_or_left_out_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.jsonl"
    write(path, [[1], [2]])
    with path.open("a") as file:
        file.write('{"text": "3\n\n{"body": "4"}\n{"text": 5}\n[6]\n{"text": "7"}\n{"te')
    with pytest.raises(errors.CorruptError, match=r"a\.jsonl, row 2: line 3 is not JSON \(.*\)") as caught:
        opened(tmp_path / "data", length=2)
    assert (caught.value.path, caught.value.row) == (str(path), 2)
    source = opened(tmp_path / "data", length=2, on_error="skip")
    assert [row["tokens"] for row in rows_of(source)] == [[1], [2], [7]]
    told = [(skipped.row, skipped.reason.split(" (")[0]) for skipped in source.skipped]
    assert told == [
        (2, "line 3 is not JSON"),
        (4, "line 5 has no 'text'; it has body"),
        (5, "line 6: 'text' is int; expected text"),
        (6, "line 7 has no 'text'; it has list"),
        (8, "line 9 is not JSON"),
    ]
    assert opened(tmp_path / "data", length=2, on_error="skip").skipped == source.skipped
    with pytest.raises(errors.CorruptError, match="row 2"):  # also though the cache holds what was left
        opened(tmp_path / "data", length=2)


def test_wrong_calls_say_what_is_allowed(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [[1]])
    data = tmp_path / "data"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"length": 0}, "length is 0"),
        ({"length": 3, "pack": "yes"}, "expected True or False"),
        ({"length": 3, "long": "drop"}, "'cut' or 'split'"),
        ({"length": 3, "documents": "page"}, "'line' or 'file'"),
        ({"length": 3, "pad": 1 << 63}, "pad is 9223372036854775808; expected the number of a token"),
        ({"length": 3, "wide": 3}, "wide= is no option here; there are .*tokenizer"),
        ({"length": 3, "tokenizer": data / "no.json"}, "cannot be read"),
        ({"length": 3, "tokenizer": data / "a.jsonl"}, "cannot be used"),
        ({"length": 3, "tokenizer": 3}, "tokenizer is int"),
        ({"length": 3, "tokenizer": None}, "say how to tokenise it with tokenizer="),
        ({"length": 3, "column": "body"}, "has no 'body'; it has text"),
    ]
    for options, says in wrong:
        with pytest.raises((errors.UsageError, errors.CorruptError), match=says):
            opened(data, **options)
    with pytest.raises(errors.UsageError, match=r"a\.jsonl needs tokenizer='tokenizer.json' and length=512"):
        stoker.open(data / "a.jsonl")
    (data / "a.jsonl").write_text("\n\n")
    with pytest.raises(errors.NoDataError, match="there is no text in 1 files"):
        opened(data, length=3)
    (data / "a.jsonl").write_text("")
    with pytest.raises(errors.EmptyFileError, match=r"a\.jsonl: the file is empty"):
        opened(data, length=3)


def test_a_state_of_the_same_text_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i, 6) for i in range(40)])
    with Loader(opened(tmp_path / "data", length=6, pack=True), 4, True) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    others: list[dict[str, Any]] = [
        {"tokenizer": tokenizer(tmp_path / "made", shift=10)},
        {"length": 5},
        {"pack": False},
    ]
    for options in others:
        with (
            Loader(opened(tmp_path / "data", **{"length": 6, "pack": True, **options}), 4, True) as loader,
            pytest.raises(errors.OtherSourceError),
        ):
            loader.load_state_dict(state)


def test_grouping_by_length_bounds_the_padding(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sizes = np.exp(random.normal(3.5, 0.8, 4000)).astype(int).clip(1, 300)
    write(tmp_path / "data" / "a.jsonl", [[1] * int(size) for size in sizes])
    source = opened(tmp_path / "data", length=300)
    with Loader(source, 16, True, buckets=True) as loader:
        first = [batch["lengths"].tolist() for batch in loader]
        share = loader.stats().padding_share
        second = [batch["lengths"].tolist() for batch in loader]
    assert sorted(itertools.chain.from_iterable(first)) == sorted(sizes.tolist())
    assert share is not None
    assert share < 0.1
    assert first != second
    means = np.array([np.mean(batch) for batch in first])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3  # not sorted by length
    unsorted = 1 - sizes.sum() / sum(16 * max(sizes[at : at + 16]) for at in range(0, 4000, 16))
    assert unsorted > 0.4


def test_a_source_can_be_pickled(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(20)])
    source = opened(tmp_path / "data", length=6)
    again = pickle.loads(pickle.dumps(source))
    assert rows_of(again) == rows_of(source)
    assert again.fingerprint() == source.fingerprint()


KILLED = """
    import os, signal, sys
    import stoker
    from stoker.loader.source import tokens
    kept = tokens.Writer.{method}
    def die(*args, **kwargs):
        kept(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    tokens.Writer.{method} = die
    stoker.open(sys.argv[1], tokenizer=sys.argv[2], length=6, cache=sys.argv[3])
"""


@pytest.mark.parametrize("method", ["__init__", "add", "finish"])
def test_tokenising_survives_a_kill_at_any_point(tmp_path: Path, method: str) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i) for i in range(40)])
    code = textwrap.dedent(KILLED.format(method=method))
    arguments = [tmp_path / "data", tokenizer(tmp_path / "made"), tmp_path / "cache"]
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=False)
    assert done.returncode == -9
    rows = rows_of(opened(tmp_path / "data", length=6))
    assert [row["tokens"][: row["lengths"]] for row in rows] == [words(i) for i in range(40)]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]) <= 3
    assert not list((tmp_path / "cache").glob("*partial*"))


@pytest.mark.parametrize("room", [0, 100, 8192])
def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i, 6) for i in range(3000)])
    code = """
        import resource, signal, sys
        import stoker
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
        try:
            stoker.open(sys.argv[1], tokenizer=sys.argv[2], length=6, cache=sys.argv[3])
        except stoker.errors.DiskFullError as error:
            print(error)
    """
    arguments = [tmp_path / "data", tokenizer(tmp_path / "made"), tmp_path / "cache", room]
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    time.sleep(2.1)  # what a file of this age holds is noted, too
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "no room for the tokens of" in done.stdout
    assert "name another directory with cache=" in done.stdout
    assert not [one for one in (tmp_path / "cache").rglob("*") if ".tokens" in one.name or ".partial" in one.name]


def test_two_processes_tokenise_a_file_once(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [words(i, 6) for i in range(30000)])
    code = "import stoker, sys; s = stoker.open(sys.argv[1], tokenizer=sys.argv[2], length=6, cache=sys.argv[3])"
    arguments = [tmp_path / "data", tokenizer(tmp_path / "made"), tmp_path / "cache"]
    command = [sys.executable, "-c", f"{code}; print(len(s.spent.tokenised))", *map(str, arguments)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [one.communicate(timeout=100)[0].strip() for one in running]
    assert sorted(told) == ["0", "0", "1"]
